//! The configuration of a balancer, and the requests that it is asked to place.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::policy::{AffinityConfig, Policy};
use crate::server::ServerId;

/// The priority of a waiting request. The first variant is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Further samples of a group that has begun. They come first, because finishing a group frees more
    /// resources than beginning another one.
    Started,
    /// A new group.
    New,
    /// Samples for validation. No trainer waits for them.
    Validation,
}

/// A server that will join the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSpec {
    /// The server's name, unique in the fleet.
    pub name: String,
    /// The server's base URL; `None` for a server that is not reached by HTTP.
    #[serde(default)]
    pub url: Option<String>,
    /// Maximum number of samples that run at a time.
    pub capacity: u32,
    /// Maximum number of expected tokens that are outstanding at a time; unbounded if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_tokens: Option<u32>,
}

impl ServerSpec {
    /// A server that is reached by HTTP.
    pub fn new(name: impl Into<String>, url: impl Into<String>, capacity: u32) -> Self {
        Self { url: Some(url.into()), ..Self::unreached(name, capacity) }
    }

    /// A server that is not reached by HTTP.
    pub fn unreached(name: impl Into<String>, capacity: u32) -> Self {
        Self { name: name.into(), url: None, capacity, capacity_tokens: None }
    }
}

/// How a balancer chooses servers, bounds its requests, and judges failures.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct BalancerConfig {
    /// Which of the servers with room gets the next permit.
    pub policy: Policy,
    /// Seed of all random choices.
    pub seed: u64,
    /// When a group leaves its server, for [`Policy::GroupAffinity`].
    pub affinity: AffinityConfig,
    /// Maximum number of samples that run at a time on all servers together. If absent, only the servers'
    /// capacities limit this number.
    pub capacity_total: Option<u32>,
    /// Maximum number of waiting requests. Further requests are refused.
    pub waiting_max: usize,
    /// Number of faults in a row that makes a server suspect. A suspect server gets no requests during a
    /// cooldown, and then one request on trial.
    pub faults_max: u32,
    /// Number of faults among the last [`window`](Self::window) answers that makes a server suspect.
    pub window_faults_max: u32,
    /// Number of latest answers among which the faults are counted for
    /// [`window_faults_max`](Self::window_faults_max), at most 64.
    pub window: u32,
    /// The longest `Retry-After` that is honoured, in milliseconds. A longer one is cut to this time.
    pub retry_after_ms_max: u64,
    /// First cooldown of a server that died or became suspect, in milliseconds. Each further cooldown is
    /// twice as long, until the server succeeds outside of a trial.
    pub cooldown_ms_min: u64,
    /// The longest cooldown, in milliseconds.
    pub cooldown_ms_max: u64,
    /// Length of a trial in milliseconds. If the request on trial has not ended by then, another trial may
    /// begin.
    pub trial_ms_max: u64,
    /// Half-life of the load penalty that a 503 or 429 adds to a server, in milliseconds.
    pub penalty_half_life_ms: u64,
}

impl Default for BalancerConfig {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            seed: 0,
            affinity: AffinityConfig::default(),
            capacity_total: None,
            waiting_max: 1 << 20,
            faults_max: 3,
            window_faults_max: 10,
            window: 20,
            retry_after_ms_max: 30_000,
            cooldown_ms_min: 1_000,
            cooldown_ms_max: 60_000,
            trial_ms_max: 10_000,
            penalty_half_life_ms: 1000,
        }
    }
}

impl BalancerConfig {
    pub(crate) fn penalty_half_life(&self) -> Duration {
        Duration::from_millis(self.penalty_half_life_ms.max(1))
    }

    /// The cooldown of a server that has relapsed `relapses` times before.
    pub(crate) fn cooldown(&self, relapses: u32) -> Duration {
        let doubled = self.cooldown_ms_min.saturating_mul(1 << relapses.min(32));
        Duration::from_millis(doubled.min(self.cooldown_ms_max))
    }

    pub(crate) fn trial(&self) -> Duration {
        Duration::from_millis(self.trial_ms_max)
    }

    pub(crate) fn retry_after_max(&self) -> Duration {
        Duration::from_millis(self.retry_after_ms_max)
    }
}

/// A request for a permit.
#[derive(Debug, Clone)]
pub struct PermitRequest {
    /// Number of samples. The permit is granted for all of them or not at all.
    pub weight: u32,
    /// Tokens that each sample is expected to take; 0 means the mean of recent samples.
    pub expected_tokens: u32,
    /// The group that the samples belong to, for [`Policy::GroupAffinity`].
    pub group: Option<u64>,
    /// Tokens that all samples of the group begin with. A server computes and holds them once, however many of these
    /// samples it runs. `None` if the number is not known.
    pub shared_tokens: Option<u32>,
    /// Decides which waiting requests are served first.
    pub priority: Priority,
    /// Servers that have failed this request. They are avoided as long as another server may be asked.
    pub exclude: Vec<ServerId>,
    /// The time at which the request fails if it has no permit; unbounded if absent.
    pub deadline: Option<Instant>,
}

impl PermitRequest {
    /// A request for `weight` samples of a new group, without a deadline.
    pub fn new(weight: u32) -> Self {
        Self {
            weight,
            expected_tokens: 0,
            group: None,
            shared_tokens: None,
            priority: Priority::New,
            exclude: Vec::new(),
            deadline: None,
        }
    }
}
