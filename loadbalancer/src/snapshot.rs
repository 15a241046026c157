//! The fleet at one moment, for people and metrics.

use std::sync::Arc;

use serde::Serialize;

use crate::{AdminState, Epoch, Hold, ServerId, ServerState};

/// How requests to a server went, over the life of the balancer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Outcomes {
    /// Answers.
    pub success: u64,
    /// Response tokens of them.
    pub tokens: u64,
    /// Tokens decoded for requests that were cancelled or lost, estimated.
    pub tokens_wasted: u64,
    /// Requests that were wrong.
    pub client_error: u64,
    /// 503 and 429.
    pub backpressure: u64,
    /// Failures.
    pub fault: u64,
    /// Requests whose callers lost interest.
    pub cancelled: u64,
}

/// One server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerSnapshot {
    /// Its number.
    pub id: ServerId,
    /// Its name.
    pub name: Arc<str>,
    /// Its base URL, if it has one.
    pub url: Option<Arc<str>>,
    /// See [`ServerState`].
    pub state: ServerState,
    /// What its operator wants of it.
    pub admin_state: AdminState,
    /// Why it is dead, suspect or kept out.
    pub reason: Option<Arc<str>>,
    /// What a weight update has to do with it; such a server is paused unless it is draining or dead.
    pub hold: Option<Hold>,
    /// The weights that it was given in this life; those that it was started with if absent.
    pub weights_version: Option<u64>,
    /// Its life.
    pub epoch: Epoch,
    /// Places.
    pub capacity: u32,
    /// Places taken.
    pub in_use: u32,
    /// Those of them that it has too many since its capacity was lowered.
    pub overhang: u32,
    /// Expected tokens of the permits out.
    pub expected_tokens: u64,
    /// Samples of others that it had when it was looked at.
    pub foreign: u32,
    /// Of one running sample, measured.
    pub tokens_per_second: Option<f64>,
    /// Permits granted ever.
    pub granted_total: u64,
    /// See [`Outcomes`].
    pub outcomes: Outcomes,
}

/// The whole fleet.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetSnapshot {
    /// In order of their numbers.
    pub servers: Vec<ServerSnapshot>,
    /// Requests that wait for a permit.
    pub waiting: usize,
    /// The weights that a server has to have to take permits; any if absent.
    pub weights_required: Option<u64>,
}

impl FleetSnapshot {
    /// Places taken over all servers.
    pub fn in_use(&self) -> u64 {
        self.servers.iter().map(|server| u64::from(server.in_use)).sum()
    }
}
