//! Rows that are given to one consumer only, such as tasks for workers: what a row names is valid for one
//! attempt, so another worker must not get it.
//!
//! The owner of such rows looks at their states, and clears the rows that came back.

use super::table::Progress;
use super::{Partition, Table};
use crate::error::QueueError;
use crate::row::RowHandle;

/// The state of a row for one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowState {
    /// No consumer has it.
    Waiting,
    /// It is leased, or its ack is not durable yet.
    Leased,
    /// The task has acked it, and another task has not.
    Acked,
    /// Its lease ended without an ack, and the partition [gives rows once](Partition::give_once).
    Returned,
}

impl Table {
    fn state(&self, task: usize, row: RowHandle) -> Result<RowState, QueueError> {
        Ok(match self.row(row)?.progress[task] {
            Progress::Incomplete | Progress::Ready | Progress::Away => RowState::Waiting,
            Progress::Leased(_) | Progress::Leaving => RowState::Leased,
            Progress::Acked => RowState::Acked,
            Progress::Returned => RowState::Returned,
        })
    }
}

impl Partition {
    /// From now on, and in this process only, a row whose lease ends without an ack is given to no other
    /// consumer of the task. It counts as leased until its owner clears it.
    pub fn give_once(&self) {
        self.shared.table.lock().gives_once = true;
    }

    /// The state of a row for a task, after the leases that have expired were ended.
    ///
    /// # Errors
    /// [`QueueError::StaleHandle`]: the row was freed. [`QueueError::UnknownTask`].
    pub fn row_state(&self, task: &str, row: RowHandle) -> Result<RowState, QueueError> {
        self.shared.after_expiry(|table, _| table.state(table.task(task)?, row))
    }
}
