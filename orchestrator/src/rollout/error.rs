//! The errors of the rollout core.

use crate::data::DataError;
use rolldock_dispatch::invariants::Violation;

/// Errors of the rollout core. What goes wrong with a single group is its fate, not an error.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// The data set cannot be read any further.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A worker task died; its groups were cut off.
    #[error("a worker died: {reason}")]
    WorkerDied {
        /// The panic's message.
        reason: String,
    },
    /// A reward failed, and its rule ends the run.
    #[error("{reason}")]
    Reward {
        /// The reward's message.
        reason: String,
    },
    /// A defect of this program; the run must not continue.
    #[error(transparent)]
    Invariant(#[from] Violation),
}
