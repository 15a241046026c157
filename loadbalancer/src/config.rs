//! What a balancer is told.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::ServerId;

/// Which of the servers with room gets the next permit; [`policy`](crate::policy) says which is for what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The smallest share of its permits out; ties at random.
    LeastLoad,
    /// The less loaded of two at random.
    PowerOfTwo,
    /// The fewest expected tokens outstanding.
    LeastWork,
    /// Where the group's first sample went, else least load.
    #[default]
    GroupAffinity,
    /// Where a further sample is decoded fastest.
    Weighted,
    /// In turn.
    RoundRobin,
    /// Any.
    Random,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 7] = [
        Self::LeastLoad,
        Self::PowerOfTwo,
        Self::LeastWork,
        Self::GroupAffinity,
        Self::Weighted,
        Self::RoundRobin,
        Self::Random,
    ];
}

/// When a group lets go of its server.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AffinityConfig {
    /// Share of its places above which the server is too full.
    pub load_max: f32,
    /// Times the mean of the others above which it is too full.
    pub ratio_max: f32,
    /// Below this share the ratio does not count.
    pub load_min: f32,
}

impl Default for AffinityConfig {
    fn default() -> Self {
        Self { load_max: 0.9, ratio_max: 1.5, load_min: 0.25 }
    }
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
    /// Expected tokens that may be outstanding at a time; no bound if absent.
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

/// See the fields.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct BalancerConfig {
    /// See [`Policy`].
    pub policy: Policy,
    /// Of random choices.
    pub seed: u64,
    /// For [`Policy::GroupAffinity`].
    pub affinity: AffinityConfig,
    /// Samples that may run at a time on all servers together; no bound but theirs if absent.
    pub capacity_total: Option<u32>,
    /// Requests that may wait at a time; one more is refused.
    pub waiting_max: usize,
    /// Faults in a row that make a server suspect: it gets nothing new for a while, and then one request on trial.
    pub faults_max: u32,
    /// Faults among the last [`window`](Self::window) answers that make a server suspect.
    pub window_faults_max: u32,
    /// Answers that are looked at together, at most 64.
    pub window: u32,
    /// A `Retry-After` counts no longer than so many milliseconds.
    pub retry_after_ms_max: u64,
    /// How long a server is left alone that died or became suspect, in milliseconds; twice as long each time, until it does
    /// well again.
    pub cooldown_ms_min: u64,
    /// It is left alone no longer than so many milliseconds.
    pub cooldown_ms_max: u64,
    /// A request on trial that has not ended after so many milliseconds does not keep the next one from a trial.
    pub trial_ms_max: u64,
    /// How long a 503 or 429 weighs on a server: its penalty halves every so many milliseconds.
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

    /// After so many deaths and suspicions in a row.
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

/// What a caller wants.
#[derive(Debug, Clone)]
pub struct PermitRequest {
    /// Number of samples; granted whole.
    pub weight: u32,
    /// Tokens that each of them is expected to take; 0: as many as samples have taken so far.
    pub expected_tokens: u32,
    /// The group that they belong to, for [`Policy::GroupAffinity`].
    pub group: Option<u64>,
    /// See [`Priority`].
    pub priority: Priority,
    /// Servers to avoid while another one is alive: those that failed this request.
    pub exclude: Vec<ServerId>,
    /// When to give up waiting.
    pub deadline: Option<Instant>,
}

impl PermitRequest {
    /// For the samples of a new group, without a deadline.
    pub fn new(weight: u32) -> Self {
        Self {
            weight,
            expected_tokens: 0,
            group: None,
            priority: Priority::New,
            exclude: Vec::new(),
            deadline: None,
        }
    }
}
