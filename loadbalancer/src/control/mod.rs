//! Calls to an engine that do not generate: health, load, aborts, pauses, weight updates.
//!
//! Each dialect has a module. Control calls have connections of their own, so they never wait behind requests
//! that generate.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::header::HeaderValue;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub(crate) mod check;
mod excerpt;
mod fan_out;
pub(crate) mod http;
pub mod openai;
pub mod vllm;

pub use excerpt::excerpt;
pub use fan_out::fan_out;
pub use http::HttpControl;

/// The server that a control call goes to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerRef {
    /// The server's name in the fleet.
    pub name: Arc<str>,
    /// The server's base URL, if it is reached by HTTP.
    pub url: Option<Arc<str>>,
}

/// The load that an engine reports.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineLoad {
    /// Number of sequences that are being decoded.
    pub running: u64,
    /// Number of requests that wait to be scheduled.
    pub waiting: u64,
    /// Tokens generated since the engine's start, if the engine counts them. The count does not rise while
    /// the engine stalls.
    pub generation_tokens_total: Option<u64>,
    /// Share of the KV cache in use, from 0 to 1.
    pub kv_cache_usage: f64,
    /// Preemptions since the engine's start, if the engine counts them.
    pub preemptions_total: Option<u64>,
    /// Whether the engine is paused; `None` if it does not report this.
    pub paused: Option<bool>,
}

impl EngineLoad {
    /// The longest time for which one report counts in measurements, in seconds. Later the load may be another one.
    pub(crate) const COUNTS_S_MAX: f64 = 10.0;

    /// The share of the KV cache in use, from 0 to 1 whatever the engine reports. A NaN would stay in the sums
    /// of measurements.
    pub(crate) fn kv_cache_share(&self) -> f64 {
        if self.kv_cache_usage.is_finite() { self.kv_cache_usage.clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// What happens to running requests when an engine is paused. New requests wait until the engine is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseMode {
    /// Running requests end with the tokens that they have.
    Abort,
    /// Running requests stop, and continue when the engine is resumed.
    Keep,
    /// Running requests finish before the pause begins.
    Wait,
}

impl PauseMode {
    /// The mode's name in the engines' protocol.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Abort => "abort",
            Self::Keep => "keep",
            Self::Wait => "wait",
        }
    }
}

/// Why a control call has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The engine does not offer the call.
    #[error("server={server} does not offer {what}")]
    Unsupported {
        /// The server.
        server: Arc<str>,
        /// The call.
        what: &'static str,
    },
    /// The server did not answer, or answered with an error.
    #[error("server={server} failed at {what}: {reason}")]
    Failed {
        /// The server.
        server: Arc<str>,
        /// The call.
        what: &'static str,
        /// What happened.
        reason: String,
    },
    /// The call was not made, since this process or its machine has run out of a resource. This says nothing
    /// about the server.
    #[error("server={server} cannot be asked for {what}: {reason}")]
    Unasked {
        /// The server.
        server: Arc<str>,
        /// The call.
        what: &'static str,
        /// The resource that is missing.
        reason: String,
    },
}

/// Control of the engines of a fleet. Every call has a deadline of its own and is cancel-safe.
pub trait EngineControl: Send + Sync + 'static {
    /// Succeeds if the server is alive.
    fn health<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>>;

    /// The server's load.
    fn load<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<EngineLoad, ControlError>>;

    /// Aborts the request that was sent with `request_id`, even if the engine uses another id for it. It is
    /// not an error if the request has already ended, because engines do not report this.
    fn abort<'a>(
        &'a self,
        server: &'a ServerRef,
        request_id: &'a str,
    ) -> BoxFuture<'a, Result<(), ControlError>>;

    /// Aborts several requests, in one call if the engine takes a list.
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

    /// Makes the server generate one token. A server that reports good health may be unable to generate.
    fn probe<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        unsupported(server, "a probe")
    }

    /// Makes the server generate a few tokens, and fails unless their log-probabilities are
    /// [sound](logprob_is_sound). A server that has loaded an incomplete checkpoint reports success, and only
    /// this check notices the fault. Unsupported if the server reports no log-probabilities.
    fn check_generation<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        unsupported(server, "log-probabilities")
    }

    /// Pauses the engine. With [`PauseMode::Wait`] the call returns when the running requests have ended.
    fn pause<'a>(
        &'a self,
        server: &'a ServerRef,
        mode: PauseMode,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        let _ = mode;
        unsupported(server, "pausing")
    }

    /// Whether the engine is paused, by this process or by another client.
    fn is_paused<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<bool, ControlError>> {
        async move {
            let load = self.load(server).await?;
            let unreported = || ControlError::Unsupported {
                server: Arc::clone(&server.name),
                what: "whether it is paused",
            };
            load.paused.ok_or_else(unreported)
        }
        .boxed()
    }

    /// Resumes the engine. It is not an error if the engine was not paused.
    fn resume<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        unsupported(server, "resuming")
    }

    /// Frees the engine's GPU memory: level 1 keeps the weights in host memory, level 2 drops them.
    fn sleep<'a>(&'a self, server: &'a ServerRef, level: u8) -> BoxFuture<'a, Result<(), ControlError>> {
        let _ = level;
        unsupported(server, "sleeping")
    }

    /// Allocates the engine's GPU memory again after a sleep.
    fn wake<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        unsupported(server, "waking")
    }

    /// Empties the prefix cache. The blocks of the cache are valid only for the weights that computed them.
    fn reset_prefix_cache<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        unsupported(server, "resetting the prefix cache")
    }

    /// Empties the prefix cache and makes the engine compute the blocks of running requests again, with the
    /// present weights.
    fn recompute_running<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        unsupported(server, "resetting the prefix cache under running requests")
    }

    /// Calls a method of all workers of the server, with keyword arguments, and waits until all calls have
    /// returned.
    fn collective_rpc<'a>(
        &'a self,
        server: &'a ServerRef,
        method: &'a str,
        kwargs: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        let _ = (method, kwargs);
        unsupported(server, "calls of its workers")
    }

    /// Prepares the server to receive weights.
    fn start_weight_update<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        unsupported(server, "weight transfer")
    }

    /// Makes the server receive the weights that `body` describes. Only the trainer and the engine interpret
    /// `body`.
    fn update_weights<'a>(
        &'a self,
        server: &'a ServerRef,
        body: &'a Value,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        let _ = body;
        unsupported(server, "weight transfer")
    }

    /// Tells the server that all weights have been sent. From now on the weights are named `version`; without
    /// a version they keep their name.
    fn finish_weight_update<'a>(
        &'a self,
        server: &'a ServerRef,
        version: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        let _ = version;
        unsupported(server, "weight transfer")
    }

    /// The name of the server's weights.
    fn weight_version<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<Arc<str>, ControlError>> {
        unsupported(server, "weight versions")
    }

    /// Sets the name of the server's weights. The engine's answers contain the name for every token.
    fn set_weight_version<'a>(
        &'a self,
        server: &'a ServerRef,
        version: &'a str,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        let _ = version;
        unsupported(server, "weight versions")
    }
}

/// Whether an HTTP header can hold a secret. Line breaks and other control characters cannot be sent.
pub fn is_sendable(secret: &str) -> bool {
    HeaderValue::from_str(secret).is_ok()
}

/// Engines write -9999 instead of minus infinity and NaN. No sampled token has a log-probability near this
/// value.
const LOGPROB_MIN: f64 = -9000.0;
/// A probability is at most 1. Rounding may leave its logarithm slightly above 0.
const LOGPROB_MAX: f64 = 1e-3;

/// Whether a sampled token can have this log-probability (in nats). If it cannot, the engine's numbers are
/// broken.
// Each log-probability of an answer is checked. Without `inline`, a call from another crate costs more than the check.
#[inline]
pub fn logprob_is_sound(logprob: f64) -> bool {
    // NaN is in no range.
    (LOGPROB_MIN..LOGPROB_MAX).contains(&logprob)
}

fn unsupported<'a, T: Send + 'a>(
    server: &ServerRef,
    what: &'static str,
) -> BoxFuture<'a, Result<T, ControlError>> {
    let error = ControlError::Unsupported { server: Arc::clone(&server.name), what };
    futures::future::ready(Err(error)).boxed()
}

/// An abort is sent once after each of these pauses. It is sent several times because an abort within 10 ms
/// of its request is usually lost, although the engine answers "aborted".
pub(crate) const ABORT_PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(15), Duration::from_millis(60), Duration::from_millis(250)];
