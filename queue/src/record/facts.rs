//! The parts of records that describe groups and rows.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The tag of rows whose group was closed before its samples were whole.
pub const INCOMPLETE: &str = "incomplete";

/// A row's key and tags, where it has any.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Label {
    /// The key; unique among the rows of the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// The tags, which only the owner reads.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) tags: Value,
}

/// The sample that a put's rows belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplePart {
    /// The sample's name; unique among the samples of the partition's groups.
    pub uid: String,
    /// Whether the sample is whole with these rows.
    pub is_last: bool,
}

/// What becomes of the rows of groups that are closed before their samples are whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unfinished {
    /// They are ready as they are, with the tag [`INCOMPLETE`].
    Give,
    /// They are freed, for every task, with the disposition `dropped`.
    Drop,
}

/// Names of groups that take no more rows, for a journal without history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClosedNames {
    /// Groups that were put by samples.
    pub(crate) groups: Vec<String>,
    /// Groups that were put by rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) by_rows: Vec<String>,
    /// Groups that were given up: their late rows are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) given_up: Vec<String>,
}

impl ClosedNames {
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.by_rows.is_empty() && self.given_up.is_empty()
    }
}

/// What the journal keeps of a group's samples when it is rewritten.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SamplesRecord {
    pub(crate) group: String,
    pub(crate) group_size: usize,
    pub(crate) policy_version: u64,
    pub(crate) priority: i64,
    pub(crate) samples: Vec<(String, bool)>,
    pub(crate) closed: bool,
}

/// What became of rows that are gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispositions {
    /// Freed because every task acked them.
    pub acked: u64,
    /// Dropped to make room.
    pub dropped: u64,
    /// Cleared by their owner.
    pub cleared: u64,
    /// Their payload could not be read back.
    pub lost: u64,
    /// Dropped because their policy version was too old for a take.
    #[serde(default)]
    pub stale: u64,
}

/// Why rows are freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Freed {
    Acked,
    Dropped,
    Cleared,
    /// All rows were cleared; groups that lacked rows are forgotten.
    ClearedAll,
    Lost,
    Stale,
}
