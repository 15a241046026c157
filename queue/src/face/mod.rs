//! Faces: the calls of other queues, over this one.
//!
//! Who comes from another system finds its calls here, with its words: [`TransferQueueClient`], [`DataPool`],
//! [`TransferDock`]. Each is a thin layer over [`Queue`](crate::Queue), so that it works in this process and against a
//! server alike; what it knows lies in the queue's rows, keys, tags and groups, so that it survives what they survive and
//! any number of processes may use the same face at once.
//!
//! # Invariants, in all three
//! - Nothing is consumed by being read: rows come under a lease, and `consume` acks them. Dropped, they are given again.
//! - A type is what was put; nothing is cast, and what is no tensor (text, JSON, ragged lists) is a column like any other.
//! - Limits are the partition's: rows never exceed them, whether anybody fetches or not.
//!
//! # Deliberately absent
//! Overwriting: a column of a row is written once. Padding, and any framework's tensors: columns are Arrow.

pub mod data_pool;
pub mod transfer_dock;
pub mod transfer_queue;

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;

pub use data_pool::{DataPool, GroupSizes, PoolBatch, PoolConfig, Step};
pub use transfer_dock::{DockConfig, Experience, Pick, TransferDock};
pub use transfer_queue::{BatchMeta, MetaRequest, TakenMeta, TransferQueueClient};

use crate::remote::{common_schema, conformed};
use crate::{PartitionStats, QueueError, TaskStats};

/// Batches as one; a column that some of them lack is null there. Copies where there are several.
fn joined(batches: &[RecordBatch]) -> Result<RecordBatch, QueueError> {
    if let [batch] = batches {
        return Ok(batch.clone());
    }
    if batches.is_empty() {
        return Err(QueueError::Empty);
    }
    let schema = common_schema(batches);
    let batches = batches.iter().map(|batch| conformed(batch, &schema)).collect::<Result<Vec<_>, _>>()?;
    Ok(concat_batches(&schema, &batches)?)
}

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
