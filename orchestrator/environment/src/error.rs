//! The errors of environments and of trajectories in them.

use rolldock_trajectory::TrajectoryError;

use crate::model::ModelError;

/// The class of an error, which tells callers how to react.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The model is unreachable or overloaded. Another trajectory may succeed.
    Retryable,
    /// The task or the recipe is wrong. Trying again gives the same error.
    Client,
    /// A server, an environment or a program failed.
    Fault,
}

/// An error of an environment. A mistake of the model is not an error: the environment answers it with an
/// observation.
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
    /// A setting of the environment is wrong.
    #[error("environment.{key}: expected {expected}, found {found}")]
    Misconfigured {
        /// The key below `environment`.
        key: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
}

/// Why a trajectory could not be run to an end.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The environment failed.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The environment was not ready in time.
    #[error("the environment was not reset within turn_time={seconds}")]
    Reset {
        /// The limit, in seconds.
        seconds: f64,
    },
    /// A turn could not be sampled.
    #[error("turn={turn}: {source}")]
    Model {
        /// The number of the turn, from 0.
        turn: u32,
        /// What happened.
        source: ModelError,
    },
    /// The prompt could not be made, or the turn could not be stored.
    #[error(transparent)]
    Trajectory(#[from] TrajectoryError),
}

/// Longest time that a setting can have, in seconds.
pub(crate) const SECONDS_MAX: f64 = 10_000_000.0;

impl EnvironmentError {
    /// The error of a setting.
    pub(crate) fn wrong(
        key: &'static str,
        expected: impl Into<String>,
        found: impl std::fmt::Display,
    ) -> Self {
        Self::Misconfigured { key, expected: expected.into(), found: found.to_string() }
    }

    /// The class of the error, which tells callers how to react.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Task { .. } | Self::Misconfigured { .. } => ErrorClass::Client,
            Self::Failed { .. } => ErrorClass::Fault,
        }
    }
}

impl RunError {
    /// The class of the error, which tells callers how to react.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Environment(error) => error.class(),
            Self::Model { .. } => ErrorClass::Retryable,
            Self::Reset { .. } => ErrorClass::Fault,
            Self::Trajectory(error) => match error.class() {
                rolldock_trajectory::ErrorClass::Client => ErrorClass::Client,
                rolldock_trajectory::ErrorClass::Fault => ErrorClass::Fault,
            },
        }
    }
}
