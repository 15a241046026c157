//! Counts of a partition, the fates of its groups, and rows by key.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::{Dispositions, Freed};
use crate::row::RowHandle;

/// The counts of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStats {
    /// The name of the task.
    pub task: String,
    /// Rows that lack columns.
    pub incomplete_rows: usize,
    /// Rows that can be taken.
    pub ready_rows: usize,
    /// Complete groups that can be taken.
    pub ready_groups: usize,
    /// Rows that are leased, rows whose ack or drop is not durable yet, and rows that were returned to a partition that
    /// gives each row only once.
    pub leased_rows: usize,
    /// Rows that would be ready if their storage unit answered.
    #[serde(default)]
    pub away_rows: usize,
    /// Rows that the task has acked and that at least one other task has not.
    pub acked_rows: usize,
}

impl TaskStats {
    /// Whether the task has acked every existing row.
    pub fn is_all_consumed(&self) -> bool {
        self.incomplete_rows + self.ready_rows + self.leased_rows + self.away_rows == 0
    }
}

/// The counts of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionStats {
    /// Existing rows.
    pub rows: usize,
    /// Rows that puts in progress have reserved.
    pub rows_reserved: usize,
    /// The capacity in rows.
    pub capacity_rows: usize,
    /// The bytes that the payload of existing rows takes as Arrow arrays. The bytes of each put are rounded up to whole
    /// KiB. The value is 0 if the partition has no capacity in bytes.
    pub payload_bytes: u64,
    /// The capacity in bytes, if there is one.
    pub capacity_bytes: Option<u64>,
    /// Existing groups, including incomplete groups.
    pub groups: usize,
    /// Leases that are held.
    pub leases: usize,
    /// Whether the puts have ended.
    pub ended: bool,
    /// Freed rows, by disposition.
    pub dispositions: Dispositions,
    /// The tasks, in order of their declaration.
    pub tasks: Vec<TaskStats>,
    /// The number of rows that have each column.
    pub columns: BTreeMap<String, usize>,
    /// The newest policy version of any put or announcement.
    pub policy_version: u64,
    /// The number of changes of the partition.
    pub revision: u64,
    /// The groups that lost rows after the revision in the call
    /// ([`stats_after`](crate::Partition::stats_after)), oldest first, at most 1024. Empty if the call has no
    /// revision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fates: Vec<GroupFate>,
    /// Whether more groups lost rows after that revision than are remembered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fates_missed: bool,
}

/// The reason why rows were freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disposition {
    /// Every task acked the rows.
    Acked,
    /// The rows were dropped to make room, or because their group was closed or given up before it was
    /// complete.
    Dropped,
    /// The owner cleared the rows.
    Cleared,
    /// The rows could not be read back, or their storage unit was removed from the queue.
    Lost,
    /// The policy version of the rows was too old for a take.
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

/// The rows of a group that were freed by one change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupFate {
    /// The revision of the partition after the change.
    pub revision: u64,
    /// The group.
    pub group: String,
    /// The number of freed rows.
    pub rows: usize,
    /// The reason why the rows were freed.
    pub fate: Disposition,
}

/// A row that has a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeyedRow {
    /// The key of the row.
    pub key: String,
    /// The handle of the row.
    pub row: RowHandle,
    /// The name of the row's group.
    pub group: String,
    /// The tags of the row, as JSON that only the owner interprets; null if the row has none.
    #[serde(default)]
    pub tags: Value,
}

/// A group that was closed before its samples were complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedGroup {
    /// The name of the group.
    pub group: String,
    /// The number of samples that the group was declared with.
    pub samples: usize,
    /// The number of samples that are complete.
    pub samples_whole: usize,
    /// The number of rows of the group.
    pub rows: usize,
}
