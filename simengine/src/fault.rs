//! The ways a server can go wrong on purpose.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::hash::unit;

/// A fault to inject. Faults of different kinds add up until [`crate::SimServer::heal`].
///
/// Where a fault has a `share`, which requests it meets is decided by the server's name and the request's
/// id, so that a run with the same ids meets the same faults.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// The engine dies: running requests fail, `/health` says 503, after three seconds nobody listens.
    Die,
    /// Requests are accepted and never answered; `/health` stays 200.
    Stall,
    /// So many of the requests fail at once with status 500.
    Error500 {
        /// From 0 to 1.
        share: f64,
    },
    /// So many of the requests run to their end and then lose their connection.
    Reset {
        /// From 0 to 1.
        share: f64,
    },
    /// Every engine step takes so many times as long.
    Slow {
        /// Above 0.
        factor: f64,
    },
    /// Every new request is refused as if the queue were full.
    Busy503,
    /// The real server's behaviour after SIGTERM: nobody listens, and running requests neither answer nor
    /// fail.
    SigTerm,
    /// So many of the requests have log-probabilities that are not numbers.
    Nan {
        /// From 0 to 1.
        share: f64,
    },
    /// So many of the requests have token 0 with the marker -9999.0 throughout.
    Poison {
        /// From 0 to 1.
        share: f64,
    },
}

/// How the numbers of a response are spoiled.
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
    /// Adds a fault; what concerns the process's life is the caller's.
    pub(crate) fn add(&mut self, fault: Fault) {
        match fault {
            Fault::Die | Fault::SigTerm => {}
            Fault::Stall => self.stalled = true,
            Fault::Error500 { share } => self.error500_share = share,
            Fault::Reset { share } => self.reset_share = share,
            // A factor that is no positive number would stop the model's time.
            Fault::Slow { factor } if factor.is_finite() && factor > 0.0 => self.slow_factor = factor,
            Fault::Slow { .. } => {}
            Fault::Busy503 => self.busy = true,
            Fault::Nan { share } => self.nan_share = share,
            Fault::Poison { share } => self.poison_share = share,
        }
    }

    pub(crate) fn meets_error500(&self, server: &str, request_id: &str) -> bool {
        meets(self.error500_share, server, request_id, 1)
    }

    pub(crate) fn meets_reset(&self, server: &str, request_id: &str) -> bool {
        meets(self.reset_share, server, request_id, 2)
    }

    pub(crate) fn spoil(&self, server: &str, request_id: &str) -> Option<Spoil> {
        if meets(self.nan_share, server, request_id, 3) {
            return Some(Spoil::Nan);
        }
        meets(self.poison_share, server, request_id, 4).then_some(Spoil::Poison)
    }
}

fn meets(share: f64, server: &str, request_id: &str, kind: u64) -> bool {
    if share <= 0.0 {
        return false;
    }
    let hash = xxh3_64_with_seed(request_id.as_bytes(), xxh3_64_with_seed(server.as_bytes(), kind));
    unit(hash) < share
}
