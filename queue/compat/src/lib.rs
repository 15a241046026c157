//! Compatibility: the client interfaces of other queues, on top of Rolldock's queue.
//!
//! Code that was written for another system finds the calls of that system here under their original names:
//! [`TransferQueueClient`], [`DataPool`] and [`TransferDock`]. Each interface is a
//! thin layer over [`Queue`](rolldock_queue::Queue), so each works with a queue in this process and with a
//! queue server. The interfaces keep all data in the queue's rows, keys, tags and groups. The data is therefore
//! as durable as the queue, and any number of processes may use one partition at the same time.
//!
//! # Invariants of all three interfaces
//! - Reading does not consume rows. Rows that a task takes are under a lease until `consume` acks the rows.
//!   Rows of a dropped lease are delivered again. `get_data` and `kv_batch_get` read rows without a lease.
//! - A column keeps the type of its first put, and values are never cast. Data other than tensors (text,
//!   JSON, ragged lists) is stored in ordinary columns.
//! - The rows never exceed the limits of the partition, even if consumers are slow.
//!
//! # Deliberately absent
//! Columns cannot be overwritten: a column of a row is written once. Tags can be replaced. There is no padding.
//! There are no tensors of a framework: columns are Arrow arrays.

pub mod data_pool;
pub mod transfer_dock;
pub mod transfer_queue;

pub use data_pool::{DataPool, GroupSizes, Path, PoolBatch, PoolConfig, Step, StepTurn};
pub use transfer_dock::{DockConfig, Experience, Pick, TransferDock};
pub use transfer_queue::{BatchMeta, MetaRequest, TakenMeta, TransferQueueClient};

use rolldock_queue::{PartitionStats, QueueError, TaskStats};

fn bad(reason: String) -> QueueError {
    QueueError::BadRequest { reason }
}

fn task_of<'a>(stats: &'a PartitionStats, partition: &str, task: &str) -> Result<&'a TaskStats, QueueError> {
    let unknown = || QueueError::UnknownTask {
        partition: partition.to_owned(),
        task: task.to_owned(),
        tasks: stats.tasks.iter().map(|task| task.task.as_str()).collect::<Vec<_>>().join(", "),
    };
    stats.tasks.iter().find(|stats| stats.task == task).ok_or_else(unknown)
}

fn check_counts(what: &str, expected: usize, found: usize) -> Result<(), QueueError> {
    if expected == found {
        return Ok(());
    }
    Err(bad(format!("expected {what} for each of rows={expected}, found {found}")))
}
