//! Rows that a consumer holds.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Partition, RowHandle};
use crate::QueueError;
use crate::journal::Record;

/// Rows of one task, held by one consumer until they are acked, nacked, or the lease expires.
#[derive(Debug)]
#[must_use = "dropping a lease gives its rows back"]
pub struct Lease {
    partition: Partition,
    id: u64,
    task: usize,
    task_name: String,
    rows: Vec<RowHandle>,
    groups: Vec<String>,
    batches: Vec<RecordBatch>,
    held: bool,
}

impl Lease {
    pub(super) fn new(
        partition: Partition,
        id: u64,
        task: usize,
        task_name: String,
        rows: Vec<RowHandle>,
    ) -> Self {
        Self { partition, id, task, task_name, rows, groups: Vec::new(), batches: Vec::new(), held: true }
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Handles, in the order of the batches' rows.
    pub fn rows(&self) -> &[RowHandle] {
        &self.rows
    }

    /// The group of each row.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    /// One batch for each stretch of rows that lie together: payload is not copied.
    pub fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }

    /// All rows as one batch; copies. Rows need to have the same columns.
    pub fn concat(&self) -> Result<RecordBatch, QueueError> {
        let Some(first) = self.batches.first() else { return Err(QueueError::Empty) };
        Ok(concat_batches(&first.schema(), &self.batches)?)
    }

    /// Reads the payload. On an error the rows are given back with the lease, but for those whose payload is damaged:
    /// they are lost.
    pub(super) async fn load(&mut self, columns: Option<&[String]>) -> Result<(), QueueError> {
        {
            let table = self.partition.shared.table.lock();
            let key = |row: &RowHandle| {
                Ok(table.groups.get(&table.row(*row)?.group).map(|group| group.key.clone()))
            };
            let groups: Result<Vec<Option<String>>, QueueError> = self.rows.iter().map(key).collect();
            self.groups = groups?.into_iter().map(Option::unwrap_or_default).collect();
        }
        let failure = match self.partition.read(&self.rows, columns).await {
            Ok(batches) => {
                self.batches = batches;
                return Ok(());
            }
            Err(failure) => failure,
        };
        if matches!(failure.error, QueueError::Corrupt { .. }) {
            // They would stand before every later row for ever.
            self.partition.lose(&self.rows[failure.rows], &failure.error).await;
        }
        Err(failure.error)
    }

    /// Consumes the rows for this task. When it returns they are consumed as durably as the queue is; an error means
    /// that they are not, and they are given again.
    ///
    /// Cancel-safe: it happens whole or not at all.
    pub async fn ack(mut self) -> Result<(), QueueError> {
        let shared = Arc::clone(&self.partition.shared);
        let lease = {
            let mut table = shared.table.lock();
            table.expire(Instant::now());
            self.held = false;
            table.begin_ack(self.id)?
        };
        let record = Record::Ack {
            partition: shared.name.clone(),
            task: self.task_name.clone(),
            rows: lease.rows.clone(),
        };
        let task = self.task;
        let (reply, outcome) = oneshot::channel();
        let owner = Arc::clone(&shared);
        shared.commit(None, Box::new(move |_| record), move |durable| {
            let acked = match durable {
                Ok(_) => {
                    let released = owner.table.lock().finish_ack(task, &lease.rows);
                    owner.reclaim(&released);
                    Ok(())
                }
                Err(error) => {
                    owner.table.lock().undo_ack(&lease);
                    Err(error)
                }
            };
            // Who waits for the end of this lease, or for its rows.
            owner.ready.notify_waiters();
            let _ = reply.send(acked);
        });
        let closed = QueueError::Closed { partition: shared.name.clone() };
        outcome.await.unwrap_or(Err(closed))
    }

    /// Gives the rows back.
    pub fn nack(mut self) -> Result<(), QueueError> {
        self.held = false;
        self.give_back()
    }

    fn give_back(&self) -> Result<(), QueueError> {
        let given = self.partition.shared.table.lock().nack(self.id);
        self.partition.shared.ready.notify_waiters();
        given
    }

    /// Lets the lease last for another full term from now.
    pub fn renew(&self) -> Result<(), QueueError> {
        let mut table = self.partition.shared.table.lock();
        let now = Instant::now();
        table.expire(now);
        let term = table.spec.lease();
        table.renew(self.id, now + term)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.held {
            // It may have expired; then its rows were given back already.
            let _ = self.give_back();
        }
    }
}
