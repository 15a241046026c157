//! The fleet at one moment, for operators and metrics.

use std::sync::Arc;

use serde::Serialize;

use crate::server::{AdminState, Epoch, Hold, ServerId, ServerState};

/// Counts of a server's requests by outcome, since the server joined the fleet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Outcomes {
    /// Requests that succeeded.
    pub success: u64,
    /// Response tokens of the answers, and of requests without a whole answer whose tokens were kept.
    pub tokens: u64,
    /// Tokens of cancelled or lost requests that were not kept. Where they are not known, their number is estimated.
    pub tokens_wasted: u64,
    /// Requests that were refused because they were wrong.
    pub client_error: u64,
    /// Requests that were refused with 503 or 429.
    pub backpressure: u64,
    /// Requests that failed because of the server or the connection to it.
    pub fault: u64,
    /// Requests that their callers cancelled.
    pub cancelled: u64,
}

/// The time in which a server decodes a token of each of its running samples. It grows with the number of
/// tokens in the KV cache, because every decoding step reads them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pace {
    /// Seconds per token with an empty cache.
    pub empty_s: f64,
    /// Seconds per token with a full cache. It is equal to `empty_s` until the cache was seen at different
    /// uses.
    pub full_s: f64,
    /// How far the measured times per token usually are from this pace, as a share of it; at most 1. It is the
    /// root mean square of the last logarithms of measured by expected time.
    pub error: f64,
}

impl Pace {
    /// Seconds per token when this share of the cache is in use.
    pub fn at(&self, usage: f64) -> f64 {
        self.empty_s + (self.full_s - self.empty_s) * usage
    }
}

/// One server at the moment of the snapshot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerSnapshot {
    /// The server's number.
    pub id: ServerId,
    /// The server's name.
    pub name: Arc<str>,
    /// The server's base URL, if it is reached by HTTP.
    pub url: Option<Arc<str>>,
    /// What the server can be used for.
    pub state: ServerState,
    /// What the operator wants the server to do.
    pub admin_state: AdminState,
    /// Why the server is dead or suspect, or why no permits are granted on it because of its weights.
    pub reason: Option<Arc<str>>,
    /// Set if no permits are granted on the server because of its weights. The state of such a server is
    /// `Paused`, unless the server is draining or dead.
    pub hold: Option<Hold>,
    /// The weight version that the server was given in this life; `None` for the weights that it was started
    /// with.
    pub weights_version: Option<u64>,
    /// The number of the server's present life.
    pub epoch: Epoch,
    /// Number of places.
    pub capacity: u32,
    /// Number of places taken.
    pub in_use: u32,
    /// Number of places taken beyond the capacity. There are such places only after the capacity was lowered.
    pub overhang: u32,
    /// Expected tokens of all permits that have not been returned.
    pub expected_tokens: u64,
    /// Samples of other clients on the engine at the last reading of its load.
    pub foreign: u32,
    /// Measured tokens a second of one running sample; `None` before the first measurement.
    pub tokens_per_second: Option<f64>,
    /// Tokens a second of one running sample, by the last readings of the engine's own count; `None` if the
    /// engine does not count tokens, or was not busy at two readings. Unlike `tokens_per_second`, this rate
    /// is known before the first answer.
    pub decode_rate: Option<f64>,
    /// The time per token by the same readings, for every use of the KV cache; `None` if the engine was not
    /// seen to generate tokens.
    pub pace: Option<Pace>,
    /// Share of the KV cache in use at the last reading, from 0 to 1. It is 0 if the engine does not report
    /// it.
    pub kv_cache_usage: f64,
    /// Requests that waited on the engine at the last reading of its load, of all clients. An engine with a full cache
    /// has preempted them, or has not begun them.
    pub engine_waiting: u64,
    /// Number of readings of the engine's load in this life.
    pub load_readings: u64,
    /// Number of permits granted so far.
    pub granted_total: u64,
    /// Outcomes of the server's requests.
    pub outcomes: Outcomes,
}

/// The whole fleet at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetSnapshot {
    /// The servers, in order of their numbers.
    pub servers: Vec<ServerSnapshot>,
    /// Number of requests that wait for a permit.
    pub waiting: usize,
    /// The weight version that a server needs before permits are granted on it; `None` if any weights will
    /// do.
    pub weights_required: Option<u64>,
    /// Length of a prompt in tokens from which it pays to keep the samples of a group on one server, where they share
    /// the prompt; `None` until the length of a sample is known.
    pub kept_tokens_min: Option<f64>,
}

impl FleetSnapshot {
    /// Number of places taken on all servers together.
    pub fn in_use(&self) -> u64 {
        self.servers.iter().map(|server| u64::from(server.in_use)).sum()
    }
}
