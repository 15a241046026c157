//! What comes out: rewards, the filter, how old a group may be, and the queue it goes to.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::recipe::{AdvantageEstimator, Durability, FilterMetric, OnFull, PolicyMode};

/// `[reward]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reward {
    /// "math_dapo", "gsm8k", "math", or "routed" by `data_source`.
    pub scorer: String,
    /// Which published `math_dapo`: "2025", or "2026" with the boxed fallback.
    pub variant: String,
    /// `math_dapo` only: only the last `\boxed{}` counts.
    pub strict_box: bool,
    /// Which published `gsm8k`: "strict" or "flexible".
    pub method: String,
    /// Soft punishment of long answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong: Option<OverlongShaping>,
    /// Gradings at a time.
    pub places: usize,
    /// From rewards to advantages.
    pub advantage: AdvantageEstimator,
}

impl Default for Reward {
    fn default() -> Self {
        Self {
            scorer: "math_dapo".to_owned(),
            variant: "2025".to_owned(),
            strict_box: false,
            method: "strict".to_owned(),
            overlong: None,
            places: 4,
            advantage: AdvantageEstimator::Grpo,
        }
    }
}

/// `reward.overlong`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OverlongShaping {
    /// Tokens before the limit in which the penalty grows.
    pub buffer_length: u32,
    /// The penalty at the limit.
    pub penalty_factor: f64,
}

/// `[filter]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// Drop groups without variance.
    pub enable: bool,
    /// Whose variance: `acc` or `reward`.
    pub metric: FilterMetric,
}

impl Default for Filter {
    fn default() -> Self {
        Self { enable: true, metric: FilterMetric::Acc }
    }
}

/// `[policy]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// `sync`, `one_step_off` or `fully_async`.
    pub mode: PolicyMode,
    /// Versions that a group may be behind when it counts.
    pub max_staleness: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { mode: PolicyMode::Sync, max_staleness: 1 }
    }
}

/// `[queue]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// The table of training rows.
    pub partition: String,
    /// Who must ack a row before it is freed.
    pub tasks: Vec<String>,
    /// What an acknowledged put survives.
    pub durability: Durability,
    /// Rows (samples) that the partition holds, taken but not acked ones included.
    pub capacity_rows: usize,
    /// What a put does when there is no room.
    pub on_full: OnFull,
    /// Serves other processes at this address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// What those have to send as a bearer token.
    #[serde(skip_serializing)]
    pub token: Option<String>,
    /// Takes and acks in this process, in a trainer's place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<Consumer>,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            partition: "train".to_owned(),
            tasks: vec!["train".to_owned()],
            durability: Durability::Fsync,
            capacity_rows: 65_536,
            on_full: OnFull::Block,
            listen: None,
            token: None,
            consumer: None,
        }
    }
}

impl Queue {
    /// Where it is served, once the recipe has been checked.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listen.as_deref().and_then(|listen| listen.parse().ok())
    }
}

/// `[queue.consumer]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Consumer {
    /// As whom it takes.
    pub task: String,
    /// Groups in a batch.
    pub take_groups: usize,
    /// The last so many steps are left in the queue.
    #[serde(default)]
    pub keep_last_steps: u64,
}
