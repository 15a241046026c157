//! Counts of a partition, the fates of its groups, and its rows by key.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::{Dispositions, Freed};
use crate::row::RowHandle;

/// Counts of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStats {
    /// Its name.
    pub task: String,
    /// Rows that lack columns.
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
    /// Rows that the task has acked and other tasks have not.
    pub acked_rows: usize,
}

impl TaskStats {
    /// Whether the task has acked every existing row.
    pub fn is_all_consumed(&self) -> bool {
        self.incomplete_rows + self.ready_rows + self.leased_rows + self.away_rows == 0
    }
}

/// Counts of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionStats {
    /// Existing rows.
    pub rows: usize,
    /// Rows of puts that are on their way.
    pub rows_reserved: usize,
    /// The capacity in rows.
    pub capacity_rows: usize,
    /// Bytes of payload, where the partition bounds them: in whole KiB for each put.
    pub payload_bytes: u64,
    /// The capacity in bytes, if there is one.
    pub capacity_bytes: Option<u64>,
    /// Existing groups, unfinished ones included.
    pub groups: usize,
    /// Leases that are held.
    pub leases: usize,
    /// Whether there will be no more puts.
    pub ended: bool,
    /// Freed rows, by disposition.
    pub dispositions: Dispositions,
    /// The tasks, in order of their declaration.
    pub tasks: Vec<TaskStats>,
    /// Rows that have each column: what has been produced.
    pub columns: BTreeMap<String, usize>,
    /// The newest policy version that a put had or that was announced.
    pub policy_version: u64,
    /// Counts the changes of the partition.
    pub revision: u64,
    /// Groups that lost rows after the revision that the call named
    /// ([`stats_after`](crate::Partition::stats_after)), oldest first, at most 1000; empty if it named none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fates: Vec<GroupFate>,
    /// Whether further groups lost rows, which are not remembered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fates_missed: bool,
}

/// Why rows were freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disposition {
    /// Every task acked them.
    Acked,
    /// They were dropped to make room.
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

/// The rows of a group that were freed at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupFate {
    /// The partition's revision after the change.
    pub revision: u64,
    /// The group.
    pub group: String,
    /// The number of freed rows.
    pub rows: usize,
    /// Why they were freed.
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
