//! What a balancer is told.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::ServerId;

/// Which of the servers with room gets the next permit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The smallest share of its permits out; ties at random.
    #[default]
    LeastLoad,
    /// The less loaded of two at random.
    PowerOfTwo,
    /// In turn.
    RoundRobin,
    /// Any.
    Random,
}

/// Who goes first when requests wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// More of a group that has begun: finishing it frees more than beginning another.
    Started,
    /// A new group.
    New,
    /// Measurement, which nobody waits for.
    Validation,
}

/// One server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSpec {
    /// Unique in the fleet.
    pub name: String,
    /// Base URL; `None` for servers that are not reached by HTTP.
    #[serde(default)]
    pub url: Option<String>,
    /// Samples that may run at a time.
    pub capacity: u32,
}

/// See the fields.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct BalancerConfig {
    /// See [`Policy`].
    pub policy: Policy,
    /// Of random choices.
    pub seed: u64,
    /// Requests that may wait at a time; one more is refused.
    pub waiting_max: usize,
    /// Faults in a row that make a server dead.
    pub faults_max: u32,
    /// How long a 503 or 429 weighs on a server: its penalty halves every so many milliseconds.
    pub penalty_half_life_ms: u64,
}

impl Default for BalancerConfig {
    fn default() -> Self {
        Self {
            policy: Policy::LeastLoad,
            seed: 0,
            waiting_max: 1 << 20,
            faults_max: 3,
            penalty_half_life_ms: 1000,
        }
    }
}

impl BalancerConfig {
    pub(crate) fn penalty_half_life(&self) -> Duration {
        Duration::from_millis(self.penalty_half_life_ms.max(1))
    }
}

/// What a caller wants.
#[derive(Debug, Clone)]
pub struct PermitRequest {
    /// Number of samples; granted whole.
    pub weight: u32,
    /// See [`Priority`].
    pub priority: Priority,
    /// Servers to avoid while another one is alive: those that failed this request.
    pub exclude: Vec<ServerId>,
    /// When to give up waiting.
    pub deadline: Option<Instant>,
}
