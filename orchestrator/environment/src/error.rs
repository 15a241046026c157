//! The errors of environments and of trajectories in them.

use rolldock_engine::EngineError;
use rolldock_loadbalancer::BalancerError;
use rolldock_trajectory::TrajectoryError;

/// The class of an error, which tells callers how to react.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The fleet has no room. The trajectory may be run later.
    Backpressure,
    /// The task or the recipe is wrong. Another run of it has the same end.
    Client,
    /// A server, an environment or a program failed.
    Fault,
}

/// An error of an environment. What the model does wrong is not an error: the environment answers it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// The data row cannot be used.
    #[error("the environment cannot use the data row: {reason}")]
    Task {
        /// What was found and what was expected.
        reason: String,
    },
    /// The environment failed, or was asked for a step after its end.
    #[error("the environment failed: {reason}")]
    Failed {
        /// What happened.
        reason: String,
    },
}

/// Why a trajectory could not be run to an end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The environment failed.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// There was no permit.
    #[error("no permit for turn={turn}: {source}")]
    Permit {
        /// The number of the turn, from 0.
        turn: u32,
        /// The balancer's error.
        source: BalancerError,
    },
    /// All attempts of a turn failed.
    #[error("turn={turn} failed after attempts={attempts}: {source}")]
    Engine {
        /// The number of the turn, from 0.
        turn: u32,
        /// The number of attempts.
        attempts: u32,
        /// The error of the last attempt.
        source: EngineError,
    },
    /// The server died during the last attempt of a turn.
    #[error("turn={turn} lost its server after attempts={attempts}")]
    ServerLost {
        /// The number of the turn, from 0.
        turn: u32,
        /// The number of attempts.
        attempts: u32,
    },
    /// The prompt could not be made, or the turn could not be stored.
    #[error(transparent)]
    Trajectory(#[from] TrajectoryError),
}

impl EnvironmentError {
    /// The class of the error, which tells callers how to react.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Task { .. } => ErrorClass::Client,
            Self::Failed { .. } => ErrorClass::Fault,
        }
    }
}

impl RunError {
    /// The class of the error, which tells callers how to react.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Environment(error) => error.class(),
            Self::Permit {
                source: BalancerError::QueueFull { .. } | BalancerError::Deadline { .. }, ..
            } => ErrorClass::Backpressure,
            Self::Permit { .. } => ErrorClass::Client,
            Self::Engine { source, .. } => match source.class() {
                rolldock_engine::ErrorClass::Backpressure => ErrorClass::Backpressure,
                rolldock_engine::ErrorClass::Client => ErrorClass::Client,
                _ => ErrorClass::Fault,
            },
            Self::ServerLost { .. } => ErrorClass::Fault,
            Self::Trajectory(error) => match error.class() {
                rolldock_trajectory::ErrorClass::Client => ErrorClass::Client,
                rolldock_trajectory::ErrorClass::Fault => ErrorClass::Fault,
            },
        }
    }
}
