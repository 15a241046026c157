//! The errors of the rollout core.

use crate::data::DataError;
use rolldock_dispatch::invariants::Violation;

/// Errors of the rollout core. A failure of a single group is its fate, not an error.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// The data set cannot be read any further.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A worker task died, and its groups were cut off.
    #[error("a worker died: {reason}")]
    WorkerDied {
        /// The panic's message.
        reason: String,
    },
    /// A reward failed, and the recipe ends the run in this case.
    #[error("{reason}")]
    Reward {
        /// The reward's message.
        reason: String,
    },
    /// A violated invariant. This is a defect of the program, and the run must not continue.
    #[error(transparent)]
    Invariant(#[from] Violation),
}
