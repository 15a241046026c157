//! What must hold of a queue at every moment; used by debug assertions, by the model test and by
//! verification.

use serde::{Deserialize, Serialize};

use crate::inspect::PartitionInspection;

/// A broken invariant, in words that name the numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(transparent)]
#[error("broken invariant: {0}")]
pub struct Violation(pub String);

/// Rows, those on their way included, never exceed the capacity.
pub fn within_capacity(rows: usize, capacity_rows: usize) -> Result<(), Violation> {
    if rows <= capacity_rows {
        return Ok(());
    }
    Err(Violation(format!("rows={rows} above capacity_rows={capacity_rows}")))
}

/// A group has no more rows than were put, and no more were put than it has.
pub fn group_sound(group: &str, rows: usize, put: usize, size: usize) -> Result<(), Violation> {
    if rows <= put && put <= size {
        return Ok(());
    }
    Err(Violation(format!("group={group} has rows={rows} of put={put} of size={size}")))
}

/// What is counted is what is kept count of.
pub fn counts_agree(what: &str, counted: usize, kept: usize) -> Result<(), Violation> {
    if counted == kept {
        return Ok(());
    }
    Err(Violation(format!("{what}: counted {counted}, kept {kept}")))
}

/// A row is one thing for each task, and a row that all are done with is gone.
pub fn rows_accounted(partition: &PartitionInspection) -> Result<(), Violation> {
    for task in &partition.tasks {
        let sum = task.incomplete + task.ready + task.leased + task.acked + task.away;
        if sum != partition.rows {
            return Err(Violation(format!("task={} counts {sum} of rows={}", task.task, partition.rows)));
        }
    }
    let done = partition.tasks.iter().map(|task| task.acked).min().unwrap_or(0);
    if partition.tasks.len() == 1 && done > 0 {
        return Err(Violation(format!("rows={done} were acked by the only task and are still there")));
    }
    Ok(())
}
