//! The filter of groups (`[filter]`), and the queue that takes the accepted groups (`[queue]`).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rolldock_queue::{Durability, OnFull};
use rolldock_reward::{
    ExternalConfig, FilterMetric, GateConfig, GateRule, Gates, GatesConfig, GroupFilter, RewardError,
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::tasks::{ColumnType, Tasks};

/// `[filter]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// Whether groups without variance and groups that a gate rejects are dropped. If not, every group is
    /// kept.
    pub enable: bool,
    /// The value that must vary within a group: `acc` or `reward`; with `none` variance does not matter.
    #[serde(with = "metric_or_none")]
    pub metric: Option<FilterMetric>,
    /// Further gates. A group must pass all of them. A gate with the rule `variance` replaces the gate of
    /// `metric`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateConfig>,
    /// Gates outside of this process. They are asked about groups that pass all other gates, and about groups
    /// that only gates in `keep_if_short` reject.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outside: Vec<OutsideGate>,
    /// Names of gates whose rejected groups are kept when the step would end short of its target.
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
    /// The gates that a group must pass. Tasks of `tracker` ask gates outside of this process until `token`
    /// is cancelled.
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

    /// Whether a gate compares the samples of a group with each other.
    pub fn compares_samples(&self) -> bool {
        self.metric.is_some() || self.has_variance_rule()
    }

    /// The name of a gate in `keep_if_short` that compares the samples of a group with each other; `None` if there is
    /// none.
    pub fn keeps_alike(&self) -> Option<String> {
        let rules = self.rules().gates;
        let compares = |gate: &&GateConfig| matches!(gate.rule, GateRule::Variance { .. });
        let mut comparing = rules.iter().filter(compares).map(GateConfig::called);
        comparing.find(|name| self.keep_if_short.iter().any(|kept| kept == name)).map(str::to_owned)
    }

    fn has_variance_rule(&self) -> bool {
        self.gates.iter().any(|gate| matches!(gate.rule, GateRule::Variance { .. }))
    }

    fn rules(&self) -> GatesConfig {
        let published = self
            .metric
            .filter(|_| !self.has_variance_rule())
            .map(|metric| GroupFilter { enable: true, metric });
        let mut config = published.map(GatesConfig::from).unwrap_or_default();
        config.gates.extend(self.gates.iter().cloned());
        let is_inside = |name: &&String| !self.outside.iter().any(|outside| outside.name == **name);
        config.keep_if_short.gates = self.keep_if_short.iter().filter(is_inside).cloned().collect();
        config
    }
}

/// The filter's metric in a recipe: the name of a metric of the reward crate, or `none`.
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
    /// The runner of the gate: one table with the keys of an external reward and of its guard.
    pub ask: ExternalConfig,
}

/// `[queue]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// The name of the partition of training rows.
    pub partition: String,
    /// The tasks that must ack a row before it is freed: a list of names, or a table with the columns for
    /// which each task waits.
    pub tasks: Tasks,
    /// The types of columns that other processes add to rows. A column that is not named here gets the type
    /// of its first values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, ColumnType>,
    /// The failures that an acknowledged put survives.
    pub durability: Durability,
    /// Maximum number of rows (samples) in the partition, including rows that are taken and not acked.
    pub capacity_rows: usize,
    /// What a put does when the partition is full.
    pub on_full: OnFull,
    /// If a lease is not acked or renewed for this number of seconds, its rows are given out again.
    pub lease_s: f64,
    /// The address at which other processes are served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// The bearer token that processes must send to `listen`. It is a secret: the resolved recipe does not
    /// contain it.
    #[serde(skip_serializing)]
    pub token: Option<String>,
    /// A consumer in this process that takes and acks groups in place of a trainer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<Consumer>,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            partition: "train".to_owned(),
            tasks: Tasks::Names(vec!["train".to_owned()]),
            columns: BTreeMap::new(),
            durability: Durability::Fsync,
            capacity_rows: 65_536,
            on_full: OnFull::Block,
            lease_s: 600.0,
            listen: None,
            token: None,
            consumer: None,
        }
    }
}

impl Queue {
    /// The address at which the queue is served. It is `None` if the recipe has none or, in an unchecked
    /// recipe, an invalid one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listen.as_deref().and_then(|listen| listen.parse().ok())
    }
}

/// `[queue.consumer]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Consumer {
    /// The task for which the consumer takes groups.
    pub task: String,
    /// Number of groups in a batch.
    pub take_groups: usize,
    /// Number of steps at the end of the run whose rows stay in the queue.
    #[serde(default)]
    pub keep_last_steps: u64,
    /// Seconds for which the consumer simulates training on a batch before it acks the batch.
    #[serde(default)]
    pub train_s: f64,
    /// Whether the next policy version is announced after each batch.
    #[serde(default)]
    pub announces: bool,
}

impl Consumer {
    /// Whether the consumer stands in for a trainer, so that a batch takes time.
    pub fn trains(&self) -> bool {
        self.announces || self.train_s > 0.0
    }
}
