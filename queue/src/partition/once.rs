//! Rows that are given to one consumer only, such as tasks for workers. The task in a row is valid for one
//! attempt, so no other worker may get the row.
//!
//! The owner of such rows checks their states, and clears the rows whose leases ended without an ack.

use super::table::Progress;
use super::{Partition, Table};
use crate::error::QueueError;
use crate::row::RowHandle;

/// The state of a row for one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowState {
    /// No consumer has the row.
    Waiting,
    /// The row is leased, or its ack is not durable yet.
    Leased,
    /// The task has acked the row, and another task has not.
    Acked,
    /// The row's lease ended without an ack, and the partition [gives rows once](Partition::give_once).
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

    /// Ends the leases that have expired, and returns the state of a row for a task.
    ///
    /// # Errors
    /// Returns [`QueueError::StaleHandle`] if the row was freed, and [`QueueError::UnknownTask`] if the
    /// partition has no such task.
    pub fn row_state(&self, task: &str, row: RowHandle) -> Result<RowState, QueueError> {
        self.shared.after_expiry(|table, _| table.state(table.task(task)?, row))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;
    use std::time::Duration;

    use arrow_array::{RecordBatch, StringArray};
    use tokio::time::Instant;

    use super::*;
    use crate::config::{PartitionSpec, QueueConfig};
    use crate::put::Put;
    use crate::queue::TransferQueue;
    use crate::take::Take;

    async fn tasks() -> Partition {
        let queue = TransferQueue::open(QueueConfig::default()).unwrap();
        let spec = PartitionSpec { lease_ms: 1_000, ..PartitionSpec::new("tasks", ["work", "owner"], 8) };
        let partition = queue.declare(spec).await.unwrap();
        partition.give_once();
        partition
    }

    async fn put(partition: &Partition, name: &str) -> RowHandle {
        let column = Arc::new(StringArray::from(vec![name])) as arrow_array::ArrayRef;
        let batch = RecordBatch::try_from_iter([("task", column)]).unwrap();
        partition.put(Put::group(name, batch), None).await.unwrap()[0]
    }

    #[tokio::test(start_paused = true)]
    async fn a_returned_row_is_given_to_no_other_consumer() {
        let partition = tasks().await;
        for expires in [false, true] {
            let row = put(&partition, if expires { "expires" } else { "nacked" }).await;
            let state = || partition.row_state("work", row);
            assert_eq!(state().unwrap(), RowState::Waiting);
            let lease = partition.take(&Take::rows("work", 1)).await.unwrap().unwrap();
            assert_eq!(state().unwrap(), RowState::Leased);
            // A consumer that already waits when the row comes back does not get it either.
            let take = Take::rows("work", 1).until(Instant::now() + Duration::from_secs(5));
            let ending = async {
                if expires {
                    tokio::time::sleep(Duration::from_secs(2)).await;
                    assert!(lease.ack().await.is_err());
                } else {
                    lease.nack().await.unwrap();
                }
            };
            let (late, ()) = tokio::join!(partition.take(&take), ending);
            assert!(matches!(late, Err(QueueError::Deadline { .. })), "{late:?}");
            assert_eq!(state().unwrap(), RowState::Returned);
            assert_eq!(partition.stats().tasks[0].leased_rows, 1);
            assert_eq!(partition.shared.table.lock().violations(), []);
            partition.clear(&[row]).await.unwrap();
            assert!(matches!(state(), Err(QueueError::StaleHandle { .. })));
            assert_eq!(partition.stats().rows, 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn takers_see_the_end_although_rows_are_leased() {
        let partition = tasks().await;
        put(&partition, "leased").await;
        let lease = partition.take(&Take::rows("work", 1)).await.unwrap().unwrap();
        partition.end_of_puts();
        let take = Take::rows("work", 1).until(Instant::now() + Duration::from_secs(5));
        assert!(partition.take(&take).await.unwrap().is_none());
        lease.ack().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_acked_row_stays_until_its_owner_clears_it() {
        let partition = tasks().await;
        let row = put(&partition, "done").await;
        partition.take(&Take::rows("work", 1)).await.unwrap().unwrap().ack().await.unwrap();
        assert_eq!(partition.row_state("work", row).unwrap(), RowState::Acked);
        assert!(partition.row_state("no such task", row).is_err());
        partition.clear(&[row]).await.unwrap();
        assert_eq!(partition.shared.table.lock().violations(), []);
    }
}
