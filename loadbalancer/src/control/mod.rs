//! What can be asked of an engine besides generating: health, load, abort, pausing, other weights.
//!
//! One module per dialect. Control has connections of its own, so that it never waits behind data.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

mod fan_out;
pub(crate) mod http;
pub mod openai;
pub mod vllm;

pub use fan_out::fan_out;
pub use http::HttpControl;

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
    /// Sequences that were preempted ever, where the engine counts them.
    pub preemptions_total: Option<u64>,
    /// Whether it was paused; `None` where it does not say.
    pub paused: Option<bool>,
}

/// What becomes of running requests when an engine is paused. New ones wait until it is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseMode {
    /// They end with what they have.
    Abort,
    /// They stand still, and go on from where they are.
    Keep,
    /// They are finished first.
    Wait,
}

impl PauseMode {
    /// As engines write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Abort => "abort",
            Self::Keep => "keep",
            Self::Wait => "wait",
        }
    }
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
    /// It was not asked, since this process or its machine has run out of something. Says nothing about the server.
    #[error("server={server} cannot be asked for {what}: {reason}")]
    Unasked {
        /// The server.
        server: Arc<str>,
        /// What was to be asked.
        what: &'static str,
        /// What is wanting.
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

    /// The same for many at once, in one call where the engine takes them so.
    fn abort_many<'a>(
        &'a self,
        server: &'a ServerRef,
        request_ids: &'a [String],
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        async move {
            for request_id in request_ids {
                self.abort(server, request_id).await?;
            }
            Ok(())
        }
        .boxed()
    }

    /// Has it generate one token: that it says it is well is not always true.
    fn probe<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        unsupported(server, "a probe")
    }

    /// Stops it. [`PauseMode::Wait`] takes as long as what runs.
    fn pause<'a>(
        &'a self,
        server: &'a ServerRef,
        mode: PauseMode,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        let _ = mode;
        unsupported(server, "pausing")
    }

    /// Whether it is paused, whoever did it.
    fn is_paused<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<bool, ControlError>> {
        async move {
            let load = self.load(server).await?;
            let unsaid = || ControlError::Unsupported {
                server: Arc::clone(&server.name),
                what: "whether it is paused",
            };
            load.paused.ok_or_else(unsaid)
        }
        .boxed()
    }

    /// Lets it go on. No error if it was not paused.
    fn resume<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        unsupported(server, "resuming")
    }

    /// Frees its memory: 1 keeps the weights in the host's, 2 drops them.
    fn sleep<'a>(&'a self, server: &'a ServerRef, level: u8) -> BoxFuture<'a, Result<(), ControlError>> {
        let _ = level;
        unsupported(server, "sleeping")
    }

    /// Takes its memory again.
    fn wake<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        unsupported(server, "waking")
    }

    /// Forgets cached prefixes, which belong to the weights that they were computed with.
    fn reset_prefix_cache<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        unsupported(server, "resetting the prefix cache")
    }

    /// The same, and what running requests have cached is computed again, with the weights that are there then.
    fn recompute_running<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        unsupported(server, "resetting the prefix cache under running requests")
    }

    /// Calls a method of all its workers, with arguments by name, and waits until all have returned.
    fn collective_rpc<'a>(
        &'a self,
        server: &'a ServerRef,
        method: &'a str,
        kwargs: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        let _ = (method, kwargs);
        unsupported(server, "calls of its workers")
    }

    /// Makes it ready to be given weights.
    fn start_weight_update<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        unsupported(server, "weight transfer")
    }

    /// Has it receive weights, as `body` says; what it says is between the trainer and the engine.
    fn update_weights<'a>(
        &'a self,
        server: &'a ServerRef,
        body: &'a Value,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        let _ = body;
        unsupported(server, "weight transfer")
    }

    /// It has been given all weights, which are called `version` from now on; as before if absent.
    fn finish_weight_update<'a>(
        &'a self,
        server: &'a ServerRef,
        version: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        let _ = version;
        unsupported(server, "weight transfer")
    }

    /// What its weights are called.
    fn weight_version<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<Arc<str>, ControlError>> {
        unsupported(server, "weight versions")
    }

    /// Tells it what its weights are called: answers carry that name for every token.
    fn set_weight_version<'a>(
        &'a self,
        server: &'a ServerRef,
        version: &'a str,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        let _ = version;
        unsupported(server, "weight versions")
    }
}

fn unsupported<'a, T: Send + 'a>(
    server: &ServerRef,
    what: &'static str,
) -> BoxFuture<'a, Result<T, ControlError>> {
    let error = ControlError::Unsupported { server: Arc::clone(&server.name), what };
    futures::future::ready(Err(error)).boxed()
}

/// Pauses before repeated aborts: one that is sent within 10 ms of its request is usually lost, and the engine says
/// "aborted" all the same.
pub(crate) const ABORT_PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(15), Duration::from_millis(60), Duration::from_millis(250)];
