//! Parts of records that describe groups and rows.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The tag of rows whose group was closed before its samples were complete.
pub const INCOMPLETE: &str = "incomplete";

/// The key and the tags of a row, both optional.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Label {
    /// The key, which is unique among the rows of the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// The tags, which only the owner interprets.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) tags: Value,
}

/// The sample to which the rows of a put belong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplePart {
    /// The name of the sample, which is unique among the samples of the partition's groups.
    pub uid: String,
    /// Whether these rows complete the sample.
    pub is_last: bool,
}

/// What happens to the rows of groups that are closed before their samples are complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unfinished {
    /// The rows become ready as they are, with the tag [`INCOMPLETE`].
    Give,
    /// The rows are freed for every task, with the disposition `dropped`.
    Drop,
}

/// The names of groups that accept no more rows, as a rewritten journal keeps them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClosedNames {
    /// Groups that count samples.
    pub(crate) groups: Vec<String>,
    /// Groups that count rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) by_rows: Vec<String>,
    /// Groups that lost rows before all of their rows had arrived. Their late rows are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) given_up: Vec<String>,
}

impl ClosedNames {
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.by_rows.is_empty() && self.given_up.is_empty()
    }
}

/// The samples of a group, as a rewritten journal keeps them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SamplesRecord {
    pub(crate) group: String,
    pub(crate) group_size: usize,
    pub(crate) policy_version: u64,
    pub(crate) priority: i64,
    pub(crate) samples: Vec<(String, bool)>,
    pub(crate) closed: bool,
}

/// The numbers of freed rows, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispositions {
    /// Rows that were freed because every task acked them.
    pub acked: u64,
    /// Rows that were dropped to make room, or because their group was closed or given up before it was
    /// complete.
    pub dropped: u64,
    /// Rows that their owner cleared.
    pub cleared: u64,
    /// Rows whose payload could not be read back, or whose storage unit was removed from the queue.
    pub lost: u64,
    /// Rows that were dropped because their policy version was too old for a take.
    #[serde(default)]
    pub stale: u64,
}

/// The reason why rows are freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Freed {
    Acked,
    Dropped,
    Cleared,
    /// All rows were cleared, and groups that lacked rows were forgotten.
    ClearedAll,
    Lost,
    Stale,
}
