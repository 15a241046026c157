//! The configuration of a gateway, and what a trajectory may say about itself.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rolldock_listener::Connections;
use rolldock_queue::Durability;
use rolldock_reward::{Advantage, Estimator};
use rolldock_trajectory::{HistoryPolicy, Template};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Draws 128 random bits. Capabilities are made of them, so they must not be guessable.
#[derive(Clone)]
pub struct Entropy(pub Arc<dyn Fn() -> u128 + Send + Sync>);

impl Entropy {
    pub(crate) fn hex(&self) -> String {
        format!("{:032x}", (self.0)())
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Entropy")
    }
}

/// The configuration of a gateway.
#[derive(Clone)]
pub struct GatewayConfig {
    /// The directory of the log of trajectories.
    pub dir: PathBuf,
    /// The failure that a recorded step survives.
    pub durability: Durability,
    /// The chat template and the tokenizer of the model.
    pub template: Arc<dyn Template>,
    /// Number of ids of the model's vocabulary; `None` if it is unknown. An engine's answer with an id that is not below
    /// it is refused.
    pub vocab_size: Option<u32>,
    /// What becomes of sampled text that the template would show differently.
    pub history: HistoryPolicy,
    /// The model's name at the servers. If absent, the first model that a server lists is used.
    pub model: Option<String>,
    /// The partition of the queue for rows.
    pub partition: String,
    /// The sampling parameters that are enforced in all trajectories without their own.
    pub sampling: Sampling,
    /// The limits of trajectories without their own.
    pub limits: Limits,
    /// Maximum number of trajectories whose rows are not put yet. At this number, new trajectories are refused.
    pub trajectories_max: usize,
    /// What becomes of a trajectory without a reward when its group has ended.
    pub unrewarded: Unrewarded,
    /// How the rewards of a group become advantages. An estimator that needs the whole batch uses the group
    /// as the batch. With an estimator of turns, a reward must include the rewards of the turns, and rows
    /// have the advantages of tokens.
    pub advantage: Estimator,
    /// The seed from which the seeds of turns are derived, if a trajectory has none.
    pub seed: u64,
    /// The bearer token of control calls; absent if they need none.
    pub token: Option<String>,
    /// The URL at which agents reach the gateway; absent to use the host that a control call names.
    pub advertise: Option<String>,
    /// The time without a byte after which a stream gets a heartbeat.
    pub heartbeat: Duration,
    /// Maximum time that a call waits for a permit.
    pub permit_wait: Duration,
    /// Maximum time of an engine's answer.
    pub call_timeout: Duration,
    /// Maximum number of times that a turn is sent to an engine.
    pub attempts_max: u32,
    /// The open connections.
    pub connections: Connections,
    /// Whether an agent may give its trajectory the reward.
    pub agents_reward: bool,
    /// Random bits.
    pub entropy: Entropy,
    /// Seconds since 1970.
    pub unix_seconds: fn() -> u64,
}

impl fmt::Debug for GatewayConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GatewayConfig").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl GatewayConfig {
    /// The default of [`trajectories_max`](Self::trajectories_max). A trajectory of 20 turns with 200 tokens each
    /// takes about 75 KB.
    pub const TRAJECTORIES_MAX: usize = 16_384;

    /// The defaults, for a directory and a template. `entropy` must not be guessable.
    pub fn new(
        dir: impl Into<PathBuf>,
        template: Arc<dyn Template>,
        entropy: Entropy,
        unix_seconds: fn() -> u64,
    ) -> Self {
        Self {
            dir: dir.into(),
            durability: Durability::Os,
            template,
            vocab_size: None,
            history: HistoryPolicy::default(),
            model: None,
            partition: "train".to_owned(),
            sampling: Sampling::default(),
            limits: Limits::default(),
            trajectories_max: Self::TRAJECTORIES_MAX,
            unrewarded: Unrewarded::default(),
            advantage: Estimator::PerGroup(Advantage::GRPO),
            seed: 0,
            token: None,
            advertise: None,
            heartbeat: Duration::from_secs(10),
            permit_wait: Duration::from_secs(600),
            call_timeout: Duration::from_secs(3600),
            attempts_max: 3,
            connections: Connections::new("gateway", &rolldock_listener::ConnectionLimits::default()),
            agents_reward: false,
            entropy,
            unix_seconds,
        }
    }
}

/// How tokens are drawn. An agent cannot change it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// Nucleus mass in (0, 1].
    pub top_p: f32,
    /// Number of most probable tokens that are kept; -1 keeps all.
    pub top_k: i32,
    /// The seed of the trajectory; absent to derive it from the gateway's seed and the trajectory's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: -1, seed: None }
    }
}

impl Sampling {
    /// The reason why the numbers cannot be used; `None` if they can be used.
    pub(crate) fn fault(&self) -> Option<String> {
        if !(0.0..=100.0).contains(&self.temperature) {
            return Some(format!("expected sampling.temperature of 0 to 100, found {}", self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Some(format!("expected sampling.top_p above 0 and at most 1, found {}", self.top_p));
        }
        (self.top_k < -1).then(|| format!("expected sampling.top_k of -1 or more, found {}", self.top_k))
    }
}

/// The limits of a trajectory. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Maximum number of turns.
    pub turns: u32,
    /// Maximum number of sampled tokens in all turns.
    pub tokens: u64,
    /// Maximum number of sampled tokens of one turn. An agent's own limit only lowers it.
    pub turn_tokens: u32,
    /// Maximum time since the trajectory was opened.
    pub wall: f64,
    /// Maximum time without a call.
    pub idle: f64,
    /// Maximum time from the end of the calls until the reward.
    pub reward: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { turns: 64, tokens: 131_072, turn_tokens: 8192, wall: 3600.0, idle: 600.0, reward: 600.0 }
    }
}

/// Longest time that a limit can have.
const SECONDS_MAX: f64 = 10_000_000.0;

impl Limits {
    pub(crate) fn fault(&self) -> Option<String> {
        for (name, seconds) in [("wall", self.wall), ("idle", self.idle), ("reward", self.reward)] {
            if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
                return Some(format!(
                    "expected limits.{name} in seconds, above 0 and at most {SECONDS_MAX}, found {seconds}"
                ));
            }
        }
        let is_zero = self.turns == 0 || self.tokens == 0 || self.turn_tokens == 0;
        is_zero.then(|| "expected limits.turns, limits.tokens and limits.turn_tokens above 0".to_owned())
    }
}

/// What becomes of a trajectory that has no reward when its group has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unrewarded {
    /// Its rows are left out; the rows of the group's other trajectories are put.
    #[default]
    Drop,
    /// Its reward is 0.
    Zero,
    /// The whole group is left out.
    DropGroup,
}

/// Changes of the gateway's limits, in the request that makes a trajectory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitChanges {
    turns: Option<u32>,
    tokens: Option<u64>,
    turn_tokens: Option<u32>,
    wall: Option<f64>,
    idle: Option<f64>,
    reward: Option<f64>,
}

impl LimitChanges {
    pub(crate) fn applied_to(&self, limits: &Limits) -> Limits {
        Limits {
            turns: self.turns.unwrap_or(limits.turns),
            tokens: self.tokens.unwrap_or(limits.tokens),
            turn_tokens: self.turn_tokens.unwrap_or(limits.turn_tokens),
            wall: self.wall.unwrap_or(limits.wall),
            idle: self.idle.unwrap_or(limits.idle),
            reward: self.reward.unwrap_or(limits.reward),
        }
    }
}

/// The request that makes a trajectory.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Creation {
    /// What the agent works on: a text, messages, or anything else. The gateway only stores it and writes it
    /// into each row.
    pub(crate) prompt: Value,
    /// The group whose rows are put together; absent for a group of its own.
    pub(crate) group: Option<String>,
    /// The number of trajectories in the group.
    pub(crate) group_size: Option<u32>,
    pub(crate) limits: LimitChanges,
    pub(crate) sampling: Option<Sampling>,
    /// Only trajectories with the same salt share a prefix cache.
    pub(crate) cache_salt: Option<String>,
    /// The gateway only stores it and writes it into each row.
    pub(crate) metadata: Map<String, Value>,
}

/// The properties of a trajectory that are fixed when it is opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) uid: String,
    pub(crate) capability: String,
    /// Seconds since 1970.
    pub(crate) opened_s: u64,
    pub(crate) group: String,
    pub(crate) group_size: u32,
    pub(crate) limits: Limits,
    pub(crate) sampling: Sampling,
    /// The seed from which the seeds of its turns are derived.
    pub(crate) seed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cache_salt: Option<String>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) prompt: Value,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) metadata: Map<String, Value>,
}
