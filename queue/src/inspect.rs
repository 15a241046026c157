//! A description of a queue for people.

use serde::{Deserialize, Serialize};

use crate::config::ColumnSpec;
use crate::record::Dispositions;
use crate::units::UnitInspection;

/// Rows of a partition by their state for a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCounts {
    /// The task.
    pub task: String,
    /// Rows that lack columns.
    pub incomplete: usize,
    /// Rows that can be taken.
    pub ready: usize,
    /// Rows that are leased.
    pub leased: usize,
    /// Rows that the task has acked and other tasks have not.
    pub acked: usize,
    /// Rows on a storage unit that is away.
    #[serde(default)]
    pub away: usize,
}

/// A lease that is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseInspection {
    /// Its number.
    pub lease: u64,
    /// The task.
    pub task: String,
    /// The holders' names for themselves ([`Take::holder`](crate::Take::holder)); empty if they gave none,
    /// and after a restart.
    pub holders: Vec<String>,
    /// The number of rows.
    pub rows: usize,
    /// Number of consumers that get these rows.
    pub members: u32,
    /// Number of these consumers that have acked.
    pub acked_members: usize,
    /// Time until the lease expires and its rows are ready again, in milliseconds.
    pub expires_in_ms: u64,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionInspection {
    /// Its name.
    pub name: String,
    /// Existing rows.
    pub rows: usize,
    /// Existing groups.
    pub groups: usize,
    /// The capacity in rows.
    pub capacity_rows: usize,
    /// Columns with their types.
    pub columns: Vec<ColumnSpec>,
    /// Rows by state.
    pub tasks: Vec<TaskCounts>,
    /// Rows that were freed since the journal was last rewritten, by disposition.
    pub dispositions: Dispositions,
    /// The leases of the partition.
    #[serde(default)]
    pub leases: Vec<LeaseInspection>,
}

/// A whole queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueInspection {
    /// The partitions, in order of their names.
    pub partitions: Vec<PartitionInspection>,
    /// Bytes of live payload.
    pub payload_bytes: u64,
    /// Storage units, in order of their names.
    #[serde(default)]
    pub units: Vec<UnitInspection>,
}
