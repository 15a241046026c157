//! Faults that can be injected into a server.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::hash::unit;

/// A fault to inject. Faults of different kinds can be in force together. All faults last until
/// [`SimServer::heal`](crate::SimServer::heal).
///
/// If a fault has a `share`, the server's name and the request's id determine whether the fault hits a
/// request. In runs with the same server names and request ids, a fault hits the same requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// The engine dies: running requests fail, `/health` answers 503, and the port is closed after three
    /// simulated seconds.
    Die,
    /// Requests are accepted but not answered until the server is healed. `/health` still answers 200.
    Stall,
    /// This share of the requests fails immediately with status 500.
    Error500 {
        /// From 0 to 1.
        share: f64,
    },
    /// This share of the requests runs to its end, but the connection is lost before the answer.
    Reset {
        /// From 0 to 1.
        share: f64,
    },
    /// Every engine step takes `factor` times as long.
    Slow {
        /// Above 0.
        factor: f64,
    },
    /// Every new request is refused as if the queue were full.
    Busy503,
    /// The server behaves as a real server does after SIGTERM: the port is closed, and running requests get
    /// neither an answer nor an error.
    SigTerm,
    /// The answers to this share of the requests contain only token 0, with NaN as log-probability.
    Nan {
        /// From 0 to 1.
        share: f64,
    },
    /// The answers to this share of the requests contain only token 0, with the marker -9999.0 as
    /// log-probability.
    Poison {
        /// From 0 to 1.
        share: f64,
    },
}

/// How a fault corrupts the tokens and log-probabilities of a response. If both hit, `Nan` is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoil {
    Nan,
    Poison,
}

/// The faults in force.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Faults {
    pub(crate) stalled: bool,
    pub(crate) busy: bool,
    pub(crate) slow_factor: f64,
    error500_share: f64,
    reset_share: f64,
    nan_share: f64,
    poison_share: f64,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            stalled: false,
            busy: false,
            slow_factor: 1.0,
            error500_share: 0.0,
            reset_share: 0.0,
            nan_share: 0.0,
            poison_share: 0.0,
        }
    }
}

impl Faults {
    /// Adds a fault. The caller handles the faults that end the process.
    pub(crate) fn add(&mut self, fault: Fault) {
        match fault {
            Fault::Die | Fault::SigTerm => {}
            Fault::Stall => self.stalled = true,
            Fault::Error500 { share } => self.error500_share = share,
            Fault::Reset { share } => self.reset_share = share,
            // A factor that is not positive and finite would stop the simulated time, so it is ignored.
            Fault::Slow { factor } if factor.is_finite() && factor > 0.0 => self.slow_factor = factor,
            Fault::Slow { .. } => {}
            Fault::Busy503 => self.busy = true,
            Fault::Nan { share } => self.nan_share = share,
            Fault::Poison { share } => self.poison_share = share,
        }
    }

    pub(crate) fn hits_error500(&self, server: &str, request_id: &str) -> bool {
        hits(self.error500_share, server, request_id, 1)
    }

    pub(crate) fn hits_reset(&self, server: &str, request_id: &str) -> bool {
        hits(self.reset_share, server, request_id, 2)
    }

    pub(crate) fn spoil(&self, server: &str, request_id: &str) -> Option<Spoil> {
        if hits(self.nan_share, server, request_id, 3) {
            return Some(Spoil::Nan);
        }
        hits(self.poison_share, server, request_id, 4).then_some(Spoil::Poison)
    }
}

fn hits(share: f64, server: &str, request_id: &str, kind: u64) -> bool {
    if share <= 0.0 {
        return false;
    }
    let hash = xxh3_64_with_seed(request_id.as_bytes(), xxh3_64_with_seed(server.as_bytes(), kind));
    unit(hash) < share
}
