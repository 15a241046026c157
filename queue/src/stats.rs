//! What a partition says of itself: counts, what became of its groups, rows by key.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::{Dispositions, Freed};
use crate::row::RowHandle;

/// Numbers of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStats {
    /// Its name.
    pub task: String,
    /// Rows whose columns are not all there.
    pub incomplete_rows: usize,
    /// Rows that can be taken.
    pub ready_rows: usize,
    /// Whole groups that can be taken.
    pub ready_groups: usize,
    /// Rows that are leased.
    pub leased_rows: usize,
    /// Rows that would be ready if their storage unit were not away.
    #[serde(default)]
    pub away_rows: usize,
    /// Rows that the task is done with and others are not: they are still there.
    pub acked_rows: usize,
}

impl TaskStats {
    /// Whether the task has acked every row that is there.
    pub fn is_all_consumed(&self) -> bool {
        self.incomplete_rows + self.ready_rows + self.leased_rows + self.away_rows == 0
    }
}

/// Numbers of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionStats {
    /// Existing rows.
    pub rows: usize,
    /// Rows of puts that are on their way.
    pub rows_reserved: usize,
    /// Rows that fit.
    pub capacity_rows: usize,
    /// Bytes of payload, where the partition bounds them: in whole KiB for each put.
    pub payload_bytes: u64,
    /// The bound, if there is one.
    pub capacity_bytes: Option<u64>,
    /// Existing groups, unfinished ones included.
    pub groups: usize,
    /// Leases that are held.
    pub leases: usize,
    /// Whether there will be no more puts.
    pub ended: bool,
    /// Rows that are gone, by what became of them.
    pub dispositions: Dispositions,
    /// In order of their declaration.
    pub tasks: Vec<TaskStats>,
    /// Rows that have each column: what has been produced.
    pub columns: BTreeMap<String, usize>,
    /// The newest policy version that a put had or that was announced.
    pub policy_version: u64,
    /// Counts the partition's changes.
    pub revision: u64,
    /// Groups whose rows have left since the revision that was asked [after](crate::Partition::stats_after),
    /// oldest first; the last thousand at most, and none where nothing was asked after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fates: Vec<GroupFate>,
    /// Whether more have left than are remembered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fates_missed: bool,
}

/// What became of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disposition {
    /// Every task acked them.
    Acked,
    /// They made room.
    Dropped,
    /// Their owner cleared them.
    Cleared,
    /// They could not be read back, or their storage unit is gone.
    Lost,
    /// Their policy version was too old for a take.
    Stale,
}

impl Disposition {
    /// The name of the disposition in JSON and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acked => "acked",
            Self::Dropped => "dropped",
            Self::Cleared => "cleared",
            Self::Lost => "lost",
            Self::Stale => "stale",
        }
    }
}

impl From<Freed> for Disposition {
    fn from(why: Freed) -> Self {
        match why {
            Freed::Acked => Self::Acked,
            Freed::Dropped => Self::Dropped,
            Freed::Cleared | Freed::ClearedAll => Self::Cleared,
            Freed::Lost => Self::Lost,
            Freed::Stale => Self::Stale,
        }
    }
}

/// Rows of a group have left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupFate {
    /// The partition's revision after the change.
    pub revision: u64,
    /// The group.
    pub group: String,
    /// How many of its rows.
    pub rows: usize,
    /// What became of them.
    pub fate: Disposition,
}

/// A row that has a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeyedRow {
    /// Its key.
    pub key: String,
    /// Its handle.
    pub row: RowHandle,
    /// The name of its group.
    pub group: String,
    /// Its owner's JSON; null if it has none.
    #[serde(default)]
    pub tags: Value,
}

/// A group that was closed before its samples were whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedGroup {
    /// Its name.
    pub group: String,
    /// Samples that it was declared with.
    pub samples: usize,
    /// Number of these samples that are whole.
    pub samples_whole: usize,
    /// Its rows.
    pub rows: usize,
}
