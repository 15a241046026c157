//! What the driver needs of the model.

use std::sync::Arc;

use futures::future::BoxFuture;
use rolldock_trajectory::Sampled;

/// The model, for the turns of one trajectory.
pub trait Model: Send + Sync {
    /// Samples one turn. The caller holds no permit before or after the call.
    ///
    /// Cancel-safe: a dropped call aborts the request and returns its permit.
    ///
    /// # Errors
    /// There was no permit, or no server answered.
    fn sample(&self, turn: TurnRequest) -> BoxFuture<'_, Result<Sampled, ModelError>>;
}

/// The request for one turn.
#[derive(Debug, Clone)]
pub struct TurnRequest {
    /// The number of the turn in its trajectory, from 0.
    pub number: u32,
    /// The ids that the model continues.
    pub ids: Arc<[u32]>,
    /// Maximum number of tokens to sample.
    pub tokens_max: u32,
}

/// Why a turn could not be sampled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ModelError {
    /// What happened.
    pub reason: String,
}
