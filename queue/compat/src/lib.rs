//! Compatibility: the client calls of other queues, offered over the transfer queue.
//!
//! Code that was written for another system finds that system's calls here, under their own names:
//! [`TransferQueueClient`], [`DataPool`] and [`TransferDock`]. Each is a thin layer over
//! [`Queue`](rolldock_queue::Queue), so it works in this process and against a server alike. It keeps no
//! state of its own: all of it lies in the queue's rows, keys, tags and groups. So its state survives
//! whatever these survive, and any number of processes may use one partition through the same calls at once.
//!
//! # Invariants of all three
//! - Reading consumes nothing: rows come under a lease, and `consume` acks them. Rows of a dropped lease are
//!   given out again.
//! - A column keeps the type that it was put with, and nothing is cast. Data other than tensors (text, JSON,
//!   ragged lists) are columns like any other.
//! - The partition's limits hold: its rows never exceed them, however slowly consumers fetch.
//!
//! # Deliberately absent
//! Nothing can be overwritten: a column of a row is written once. There is no padding, and there are no
//! tensors of a framework: columns are Arrow arrays.

pub mod data_pool;
pub mod transfer_dock;
pub mod transfer_queue;

pub use data_pool::{DataPool, GroupSizes, PoolBatch, PoolConfig, Step};
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
