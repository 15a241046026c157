//! A description of a queue for people.

use serde::{Deserialize, Serialize};

use crate::config::ColumnSpec;
use crate::record::Dispositions;
use crate::units::UnitInspection;

/// The rows of a partition, counted by their state for a task.
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
    /// Rows on a storage unit that does not answer.
    #[serde(default)]
    pub away: usize,
}

/// A lease that is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseInspection {
    /// The number of the lease.
    pub lease: u64,
    /// The name of the lease: its number as 16 hexadecimal digits. Messages and logs show this name, and the
    /// header `rolldock-lease` begins with it. The name is empty if the server has an earlier version.
    #[serde(default)]
    pub name: String,
    /// The task.
    pub task: String,
    /// The names that the holders gave themselves ([`Take::holder`](crate::Take::holder)). Empty if they gave
    /// no names.
    pub holders: Vec<String>,
    /// The number of rows.
    pub rows: usize,
    /// The number of consumers that get these rows.
    pub members: u32,
    /// The number of these consumers that have acked.
    pub acked_members: usize,
    /// The time until the lease expires and its rows are ready again, in milliseconds.
    pub expires_in_ms: u64,
}

/// The description of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionInspection {
    /// The name of the partition.
    pub name: String,
    /// The number of existing rows.
    pub rows: usize,
    /// The number of existing groups.
    pub groups: usize,
    /// The capacity in rows.
    pub capacity_rows: usize,
    /// The columns with their types.
    pub columns: Vec<ColumnSpec>,
    /// The rows by state, for each task.
    pub tasks: Vec<TaskCounts>,
    /// The rows that were freed since the partition was declared, by disposition.
    pub dispositions: Dispositions,
    /// The leases of the partition.
    #[serde(default)]
    pub leases: Vec<LeaseInspection>,
}

/// The description of a whole queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueInspection {
    /// The partitions, in order of their names.
    pub partitions: Vec<PartitionInspection>,
    /// The bytes of the payload of existing rows in the queue's own store: as Arrow arrays in memory, or as
    /// Arrow streams in the segment files of a directory. A freed row still counts while at least half of the
    /// rows that were stored together with it exist. It stops counting at the latest when the queue is opened
    /// again.
    pub payload_bytes: u64,
    /// The storage units, in order of their names.
    #[serde(default)]
    pub units: Vec<UnitInspection>,
}
