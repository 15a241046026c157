//! The trait of environments, and what they exchange with the driver.

use futures::future::BoxFuture;
use serde_json::Value;

use crate::EnvironmentError;

/// A data row, from which an environment makes its first messages.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// The messages of the row's prompt.
    pub messages: Vec<Value>,
    /// The ground truth, as the data set writes it.
    pub answer: String,
    /// The row's other columns, as one object.
    pub fields: Value,
    /// The seed of all random choices of the environment. Samples of one group have different seeds only if
    /// their environments may differ.
    pub seed: u64,
}

/// What an environment begins with.
#[derive(Debug, Clone, PartialEq)]
pub struct Begun {
    /// The messages of the first prompt.
    pub messages: Vec<Value>,
    /// The tool list for the chat template, if the environment has tools.
    pub tools: Option<Value>,
}

/// What the model did in a turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Action<'a> {
    /// The text of the sampled ids, without special tokens.
    pub text: &'a str,
    /// The sampled ids.
    pub ids: &'a [u32],
}

/// What the model sees next. The model is not trained on these tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum Observation {
    /// Messages, which the chat template renders.
    Messages(Vec<Value>),
    /// Token ids, which are appended unchanged to the sampled ids.
    Ids(Vec<u32>),
}

/// An environment's reaction to an action.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// What the model sees next. The observation of the last step is ignored.
    pub observation: Observation,
    /// The reward of the turn, if it has one.
    pub reward: Option<f32>,
    /// Whether the trajectory ends here.
    pub is_done: bool,
    /// Further information about the step for people. Only the caller reads it.
    pub info: Value,
}

/// A world in which a model acts, turn by turn. One environment serves one trajectory at a time.
///
/// What a model does wrong (a call that cannot be read, an unknown tool) is answered with an observation.
/// Errors are for data rows that cannot be used, and for failures of the environment itself.
pub trait Environment: Send {
    /// Begins a trajectory. Everything of an earlier trajectory is forgotten.
    ///
    /// Cancel-safe: after a dropped call the environment can be reset again.
    fn reset<'a>(&'a mut self, task: &'a Task) -> BoxFuture<'a, Result<Begun, EnvironmentError>>;

    /// Reacts to a turn of the model. The driver holds no permit during this call.
    ///
    /// After a dropped call the environment must be reset.
    fn step<'a>(&'a mut self, action: Action<'a>) -> BoxFuture<'a, Result<Step, EnvironmentError>>;
}
