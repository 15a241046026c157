//! The invariants of a queue. Debug assertions, the model test and verification check them.

use serde::{Deserialize, Serialize};

use crate::inspect::PartitionInspection;

/// A violated invariant, described with the numbers involved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(transparent)]
#[error("broken invariant: {0}")]
pub struct Violation(pub String);

/// Checks that the rows, including those of puts in progress, do not exceed the capacity.
pub fn within_capacity(rows: usize, capacity_rows: usize) -> Result<(), Violation> {
    if rows <= capacity_rows {
        return Ok(());
    }
    Err(Violation(format!("expected at most capacity_rows={capacity_rows}, found rows={rows}")))
}

/// Checks that a group has at most as many rows as were put, and that at most `size` rows were put.
pub fn group_sound(group: &str, rows: usize, put: usize, size: usize) -> Result<(), Violation> {
    if rows <= put && put <= size {
        return Ok(());
    }
    Err(Violation(format!(
        "group={group}: expected rows <= put <= size, found rows={rows} put={put} size={size}"
    )))
}

/// Checks that a fresh count equals the stored count.
pub fn counts_agree(what: &str, counted: usize, kept: usize) -> Result<(), Violation> {
    if counted == kept {
        return Ok(());
    }
    Err(Violation(format!("{what}: counted {counted}, kept {kept}")))
}

/// Checks that each row has one state for each task. If the partition has only one task, checks that no row
/// that this task has acked is still there.
pub fn rows_accounted(partition: &PartitionInspection) -> Result<(), Violation> {
    for task in &partition.tasks {
        let sum = task.incomplete + task.ready + task.leased + task.acked + task.away;
        if sum != partition.rows {
            return Err(Violation(format!(
                "task={}: expected rows={}, counted {sum}",
                task.task, partition.rows
            )));
        }
    }
    let done = partition.tasks.iter().map(|task| task.acked).min().unwrap_or(0);
    if partition.tasks.len() == 1 && done > 0 {
        return Err(Violation(format!("rows={done} were acked by the only task and are still there")));
    }
    Ok(())
}
