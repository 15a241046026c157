//! The work of one agent.

use std::sync::Arc;

use rolldock_gateway::{CallMeter, Sampling};
use serde_json::Value;
use tokio::time::Instant;

/// What a sample waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A place in the pool.
    Place,
    /// A worker that takes its task.
    Worker,
    /// The agent, which is running.
    Agent,
}

/// Observes what a sample waits for.
pub trait Watch: std::fmt::Debug + Send + Sync {
    /// The sample waits for `stage` from now on.
    fn entered(&self, stage: Stage);
}

/// A sample for an agent.
#[derive(Debug, Clone)]
pub struct AgentJob<'a> {
    /// The name of the trajectory, unique over the run.
    pub uid: &'a str,
    /// The index of the sample in its group.
    pub index: u32,
    /// The seed of the sample.
    pub seed: u64,
    /// The data row, as a JSON object.
    pub task: &'a Value,
    /// The text that replaces `{prompt}`.
    pub prompt: &'a str,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// When the sample's time is over.
    pub deadline: Instant,
    /// The observer of the agent's calls.
    pub meter: Arc<dyn CallMeter>,
    /// The observer of what the sample waits for.
    pub watch: &'a dyn Watch,
}
