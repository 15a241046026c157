//! The errors of a gateway, and their classes.

use rolldock_queue::QueueError;

pub use crate::store::StoreError;

/// The class of an error, which tells callers how to react.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The configuration or the directory is wrong. Trying again gives the same error.
    Client,
    /// The machine, the queue or a server failed.
    Fault,
}

/// Errors of a [`Gateway`](crate::Gateway).
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The log cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The log can be read, but its records contradict each other.
    #[error("the log of trajectories is damaged: {0}")]
    Damaged(String),
    /// The client for calls to engines cannot be made.
    #[error("cannot start the client for engines: {0}")]
    Client(String),
    /// The configuration is wrong.
    #[error("{0}")]
    Config(String),
    /// An engine lacks the endpoints for agents, or does not answer.
    #[error("{0}")]
    Engine(String),
    /// A trajectory cannot be opened.
    #[error("cannot open a trajectory: {0}")]
    Opening(String),
    /// The queue refuses the partition.
    #[error("cannot declare the partition: {0}")]
    Queue(#[from] QueueError),
}

impl GatewayError {
    /// The class of the error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Config(_) | Self::Damaged(_) | Self::Store(StoreError::InUse { .. }) => ErrorClass::Client,
            Self::Store(_) | Self::Client(_) | Self::Queue(_) | Self::Engine(_) | Self::Opening(_) => {
                ErrorClass::Fault
            }
        }
    }
}
