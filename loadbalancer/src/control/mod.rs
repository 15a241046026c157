//! What can be asked of an engine besides generating: health, load, abort.
//!
//! One module per dialect. Control has connections of its own, so that it never waits behind data.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

pub mod vllm;

/// A server as control addresses it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerRef {
    /// Its name in the fleet.
    pub name: Arc<str>,
    /// Its base URL, if it is reached by HTTP.
    pub url: Option<Arc<str>>,
}

/// What an engine says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineLoad {
    /// Sequences being decoded.
    pub running: u64,
    /// Requests that wait for a place.
    pub waiting: u64,
    /// Tokens generated ever, where the engine counts them: stands still when the engine does.
    pub generation_tokens_total: Option<u64>,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_cache_usage: f64,
    /// Whether it was paused; `None` where it does not say.
    pub paused: Option<bool>,
}

/// Why an engine did not answer as hoped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The engine does not offer this.
    #[error("server={server} does not offer {what}")]
    Unsupported {
        /// The server.
        server: Arc<str>,
        /// What was asked.
        what: &'static str,
    },
    /// It did not answer, or not with success.
    #[error("server={server} failed at {what}: {reason}")]
    Failed {
        /// The server.
        server: Arc<str>,
        /// What was asked.
        what: &'static str,
        /// What happened.
        reason: String,
    },
}

/// Control of the engines of a fleet. Every call has a deadline of its own and is cancel-safe.
pub trait EngineControl: Send + Sync + 'static {
    /// Whether the server lives.
    fn health<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>>;

    /// What it is doing.
    fn load<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<EngineLoad, ControlError>>;

    /// Ends the request that was sent with `request_id`, under whatever id the engine keeps it. Saying so for a request
    /// that is gone is no error: engines do not know either.
    fn abort<'a>(
        &'a self,
        server: &'a ServerRef,
        request_id: &'a str,
    ) -> BoxFuture<'a, Result<(), ControlError>>;
}

/// Pauses between repeated aborts: one that is sent within 10 ms of its request is usually lost, and the engine says
/// "aborted" all the same.
pub const ABORT_PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(15), Duration::from_millis(60), Duration::from_millis(250)];
