//! Tasks for agents that run elsewhere. Each task is a row in a partition of the run's queue, and workers lease
//! the rows.
//!
//! A row is one attempt at a sample, with its own capability (the API key of the attempt's trajectory). The worker acks
//! the row when the agent has ended. If the worker gives the row back, or the lease expires, no other worker gets this
//! row: the run clears it and, up to `agent.attempts_max` attempts, puts a new row with a new capability.
//!
//! # Invariants
//! - A row exists only as long as its [`Offer`]. Dropping the offer clears the row, leased or not.
//! - The rows do not outlive the run: the partition is made anew when a run begins or continues.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use rolldock_queue::{
    Durability, Partition, PartitionSpec, Put, QueueError, RowHandle, RowState, TransferQueue,
};
use rolldock_scope::Scope;
use tokio::time::Instant;

use crate::config::{CONCURRENCY_MAX, TASKS_PARTITION};

/// The queue's task, that is the name of a consumer, with which workers lease rows.
const WORKERS: &str = "agent";
/// The queue's task of the run itself. The run never acks, so rows that workers have acked stay until the run clears
/// them.
const RUN: &str = "run";
/// The column with the agent's task, as JSON.
const COLUMN: &str = "task";
/// The time between two polls of a row's state.
const LOOK: Duration = Duration::from_millis(100);

/// The tasks of a run.
#[derive(Debug, Clone)]
pub(crate) struct Tasks {
    partition: Partition,
    scope: Scope,
}

/// A task that workers can take. Dropping it takes the task back.
#[derive(Debug)]
pub(crate) struct Offer {
    tasks: Tasks,
    row: RowHandle,
}

/// How an offer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OfferEnd {
    /// A worker acked it.
    Acked,
    /// A worker gave it back, its lease expired, or a client of the queue has cleared the row.
    Returned,
    /// The worker held the task for too long.
    Late,
}

impl Tasks {
    /// Makes the partition of the tasks. Rows of an earlier process of the run are removed. A lease expires
    /// after the time `lease` if the worker does not renew it.
    pub(crate) async fn open(
        queue: &TransferQueue,
        lease: Duration,
        scope: Scope,
    ) -> Result<Self, QueueError> {
        match queue.remove(TASKS_PARTITION).await {
            Ok(()) | Err(QueueError::UnknownPartition { .. }) => {}
            Err(error) => return Err(error),
        }
        let spec = PartitionSpec {
            lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
            // Rows are removed when a run continues, so they need not survive the death of the machine.
            durability: Some(Durability::Os),
            // Tasks that were taken back use capacity until they are cleared.
            ..PartitionSpec::new(TASKS_PARTITION, [WORKERS, RUN], 2 * CONCURRENCY_MAX)
        };
        let partition = queue.declare(spec).await?;
        partition.give_once();
        Ok(Self { partition, scope })
    }

    /// Offers a task. Cancel-safe: a dropped call takes the task back.
    pub(crate) async fn offer(&self, name: &str, task: String) -> Result<Offer, QueueError> {
        let column = Arc::new(StringArray::from(vec![task])) as ArrayRef;
        let put = Put::group(name, RecordBatch::try_from_iter([(COLUMN, column)])?);
        let (reply, offered) = tokio::sync::oneshot::channel();
        let tasks = self.clone();
        // A put that has begun adds its row even if this call is dropped. In that case the reply
        // cannot be sent, and the dropped offer clears the row.
        self.scope.spawn_detached("agent task", async move {
            let put = tasks.partition.put(put, None).await;
            let first = put.and_then(|rows| rows.first().copied().ok_or(QueueError::Empty));
            let _ = reply.send(first.map(|row| Offer { tasks, row }));
        });
        let closed = || QueueError::Closed { partition: TASKS_PARTITION.to_owned() };
        offered.await.unwrap_or_else(|_ended| Err(closed()))
    }

    /// Tells workers that there will be no more tasks.
    pub(crate) fn end(&self) {
        self.partition.end_of_puts();
    }
}

impl Offer {
    /// Waits for the end of the offer. `time` limits how long a worker holds the task; the wait for a worker has no
    /// limit here. `taken` is called once when a poll finds the task leased, so it is not called if a worker takes and
    /// acks the task between two polls. Cancel-safe.
    pub(crate) async fn until_ended(&self, time: Duration, taken: impl Fn()) -> Result<OfferEnd, QueueError> {
        let mut since: Option<Instant> = None;
        loop {
            match self.tasks.partition.row_state(WORKERS, self.row) {
                Ok(RowState::Waiting) => {}
                Ok(RowState::Leased) if since.is_none() => {
                    since = Some(Instant::now());
                    taken();
                }
                Ok(RowState::Leased) => {}
                Ok(RowState::Acked) => return Ok(OfferEnd::Acked),
                Ok(RowState::Returned) | Err(QueueError::StaleHandle { .. }) => {
                    return Ok(OfferEnd::Returned);
                }
                Err(error) => return Err(error),
            }
            if since.is_some_and(|since| since.elapsed() >= time) {
                return Ok(OfferEnd::Late);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let (partition, row) = (self.tasks.partition.clone(), self.row);
        self.tasks.scope.spawn_detached("agent task end", async move {
            // The call fails if a client of the queue has cleared the row, or if the queue is closed.
            if let Err(error) = partition.clear(&[row]).await {
                tracing::debug!(%error, "a task of an agent is not cleared");
            }
        });
    }
}
