//! Why an agent gives no sample.

use rolldock_gateway::GatewayError;
use rolldock_queue::QueueError;
use rolldock_reward::RewardError;

/// The class of an error, which tells callers how to react.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The configuration is wrong. Trying again gives the same error.
    Client,
    /// The agent, the machine or a server failed.
    Fault,
    /// The run is ending.
    Cancelled,
}

/// Errors of [`Agents`](crate::Agents).
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The recipe names something that does not exist, or that cannot be used.
    #[error("{key}: {reason}")]
    Config {
        /// The key of the recipe.
        key: &'static str,
        /// What was expected, and what was found.
        reason: String,
    },
    /// The gateway cannot be used.
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    /// The program of the agent could not be run.
    #[error(transparent)]
    Program(RewardError),
    /// The queue did not take the task of an agent.
    #[error("the task of an agent cannot be put: {0}")]
    Queue(#[from] QueueError),
    /// The agent ended with an error, or without a result that it should give.
    #[error("{0}")]
    Failed(String),
}

impl AgentError {
    /// The class of the error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Config { .. } => ErrorClass::Client,
            Self::Program(RewardError::Cancelled) | Self::Queue(QueueError::Closed { .. }) => {
                ErrorClass::Cancelled
            }
            Self::Gateway(_) | Self::Program(_) | Self::Queue(_) | Self::Failed(_) => ErrorClass::Fault,
        }
    }
}
