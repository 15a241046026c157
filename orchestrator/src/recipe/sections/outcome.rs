//! What comes out: the filter, and the queue that groups go to.

use std::net::SocketAddr;

use rolldock_queue::{Durability, OnFull};
use rolldock_reward::{
    ExternalConfig, FilterMetric, GateConfig, GateRule, Gates, GatesConfig, GroupFilter, RewardError,
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// `[filter]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// Whether to drop groups that have no variance or that `gates` reject; otherwise every group is kept.
    pub enable: bool,
    /// The value that must vary within a group: `acc` or `reward`; with `none` variance does not matter.
    #[serde(with = "metric_or_none")]
    pub metric: Option<FilterMetric>,
    /// Further gates, all of which must agree. A gate with the rule `variance` replaces that of `metric`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateConfig>,
    /// Gates outside of this process, which are asked about groups that all other gates let pass.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outside: Vec<OutsideGate>,
    /// Names of gates that yield when the step would end short of its target.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keep_if_short: Vec<String>,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            enable: true,
            metric: Some(FilterMetric::Acc),
            gates: Vec::new(),
            outside: Vec::new(),
            keep_if_short: Vec::new(),
        }
    }
}

impl Filter {
    /// The gates that a group has to pass. Tasks of `tracker` ask those outside until `token` is cancelled.
    pub fn gates(&self, tracker: &TaskTracker, token: &CancellationToken) -> Result<Gates, RewardError> {
        if !self.enable {
            return Ok(Gates::default());
        }
        let mut gates = Gates::new(&self.rules())?;
        for outside in &self.outside {
            let yields = self.keep_if_short.contains(&outside.name);
            let runner = outside.ask.build(tracker.clone(), token.clone())?;
            gates.push_outside(&outside.name, runner, yields)?;
        }
        Ok(gates)
    }

    fn rules(&self) -> GatesConfig {
        let has_variance = self.gates.iter().any(|gate| matches!(gate.rule, GateRule::Variance { .. }));
        let published =
            self.metric.filter(|_| !has_variance).map(|metric| GroupFilter { enable: true, metric });
        let mut config = published.map(GatesConfig::from).unwrap_or_default();
        config.gates.extend(self.gates.iter().cloned());
        let is_inside = |name: &&String| !self.outside.iter().any(|outside| outside.name == **name);
        config.keep_if_short.gates = self.keep_if_short.iter().filter(is_inside).cloned().collect();
        config
    }
}

/// The filter's metric as a recipe writes it: the reward's word, or `none`.
mod metric_or_none {
    use rolldock_reward::FilterMetric;
    use serde::de::value::{Error as WordError, StrDeserializer};
    use serde::de::{Error, IntoDeserializer};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    const NONE: &str = "none";
    const WORDS: &[&str] = &["acc", "reward", NONE];

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        reader: D,
    ) -> Result<Option<FilterMetric>, D::Error> {
        let word = String::deserialize(reader)?;
        if word == NONE {
            return Ok(None);
        }
        let known: StrDeserializer<'_, WordError> = word.as_str().into_deserializer();
        FilterMetric::deserialize(known).map(Some).map_err(|_| D::Error::unknown_variant(&word, WORDS))
    }

    #[expect(clippy::ref_option, reason = "serde calls it with a reference to the field")]
    pub(super) fn serialize<S: Serializer>(
        metric: &Option<FilterMetric>,
        writer: S,
    ) -> Result<S::Ok, S::Error> {
        match metric {
            Some(metric) => metric.serialize(writer),
            None => writer.serialize_str(NONE),
        }
    }
}

/// `[[filter.outside]]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OutsideGate {
    /// The gate's name in counters.
    pub name: String,
    /// What is asked, and how: the keys of a reward from outside and of its guard in one table.
    pub ask: ExternalConfig,
}

/// `[queue]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// The name of the partition of training rows.
    pub partition: String,
    /// The tasks that must ack a row before it is freed.
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
    /// The bearer token that those processes have to send.
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
    /// The address at which the queue is served, once the recipe has been checked.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listen.as_deref().and_then(|listen| listen.parse().ok())
    }
}

/// `[queue.consumer]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Consumer {
    /// The task for which it takes.
    pub task: String,
    /// Groups in a batch.
    pub take_groups: usize,
    /// Number of last steps whose rows are left in the queue.
    #[serde(default)]
    pub keep_last_steps: u64,
    /// Seconds that each batch is "trained" on before it is acked.
    #[serde(default)]
    pub train_s: f64,
    /// Announces the next policy version after each batch.
    #[serde(default)]
    pub announces: bool,
}
