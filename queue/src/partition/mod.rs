//! A partition: puts, takes and acks over the control plane's table and the payload's store.

mod balance;
mod hold;
mod lease;
mod put;
mod read;
mod removal;
mod replay;
mod table;
mod take;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::config::{ColumnSpec, Durability, PartitionSpec};
use crate::inspect::{PartitionInspection, TaskCounts};
use crate::invariants;
use crate::journal::{Entry, Facts, Journal, Record, Recorder};
use crate::store::{MemoryStore, Store, take_rows};
use crate::{ChunkId, ChunkLocation, QueueError};

pub(crate) use lease::Hold;
pub use lease::Lease;
pub use put::Put;
pub(crate) use put::columns_of;
pub(crate) use replay::{Replay, live_records};
use table::{Admission, Claim, Released};
pub use table::{Dispositions, RowHandle};
pub(crate) use table::{Freed, Table};
pub use take::{Amount, Sampler, Share, Stale, Take};

/// Where payload goes.
#[derive(Clone)]
pub(crate) enum Plane {
    Memory(Arc<MemoryStore>),
    /// Segment files, behind the journal's writer.
    Disk {
        store: Arc<crate::store::DiskStore>,
        journal: Arc<Journal>,
        durability: Durability,
    },
    /// Segment files that nobody writes.
    ReadOnly(Arc<crate::store::DiskStore>),
}

impl Plane {
    pub(crate) fn store(&self) -> &dyn Store {
        match self {
            Self::Memory(store) => store.as_ref(),
            Self::Disk { store, .. } | Self::ReadOnly(store) => store,
        }
    }
}

/// Numbers of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStats {
    /// Its name.
    pub task: String,
    /// Rows whose columns are not all there.
    pub incomplete_rows: usize,
    /// Rows that can be taken.
    pub ready_rows: usize,
    /// Whole groups that can be taken.
    pub ready_groups: usize,
}

/// Numbers of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionStats {
    /// Rows that are there.
    pub rows: usize,
    /// Rows of puts that are on their way.
    pub rows_reserved: usize,
    /// Rows that fit.
    pub capacity_rows: usize,
    /// Groups that are there, unfinished ones included.
    pub groups: usize,
    /// Leases that are held.
    pub leases: usize,
    /// Whether there will be no more puts.
    pub ended: bool,
    /// Rows that are gone, by what became of them.
    pub dispositions: Dispositions,
    /// In order of their declaration.
    pub tasks: Vec<TaskStats>,
}

pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) table: Mutex<Table>,
    /// One permit per free row: waiting puts are served in turn.
    pub(crate) room: Semaphore,
    /// Something became ready, or the end came nearer.
    pub(crate) ready: Notify,
    pub(crate) plane: Plane,
    pub(crate) next_chunk: Arc<AtomicU64>,
    /// Set on the way out: nothing is written down about it any more.
    removed: Arc<AtomicBool>,
}

/// A handle to a partition; clones are of the same one.
#[derive(Clone)]
pub struct Partition {
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Partition").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

impl Shared {
    fn new_chunk(&self) -> ChunkId {
        ChunkId(self.next_chunk.fetch_add(1, Ordering::Relaxed))
    }

    /// Frees what the table has let go of: room first, payload outside the lock.
    fn reclaim(&self, released: &Released) {
        self.room.add_permits(released.rows);
        released.chunks.iter().for_each(|chunk| self.plane.store().free(*chunk));
        if let Plane::Memory(store) = &self.plane {
            released.sparse.iter().for_each(|chunk| self.compact(store, *chunk));
        }
    }

    /// Copies the rows that still need a chunk to one of their own, so that the others give their memory back. On disk
    /// a row's bytes stay until its segment goes: they cost no memory.
    fn compact(&self, store: &MemoryStore, chunk: ChunkId) {
        let rows = self.table.lock().chunk_rows(chunk);
        let places: Vec<u32> = rows.iter().map(|(_, place)| *place).collect();
        let Some(batch) = store.get(chunk) else { return };
        let copy = match take_rows(&batch, &places) {
            Ok(copy) => copy,
            Err(error) => {
                tracing::warn!(partition = %self.name, %error, "cannot compact a chunk; it stays as it is");
                return;
            }
        };
        let compacted = self.new_chunk();
        store.insert(compacted, copy);
        let handles: Vec<RowHandle> = rows.iter().map(|(handle, _)| *handle).collect();
        let needed = {
            let mut table = self.table.lock();
            table.move_chunk(chunk, compacted, &handles);
            table.needs(compacted)
        };
        if !needed {
            store.free(compacted);
        }
        store.free(chunk);
    }

    /// Makes `record` durable as far as the queue does, then calls `done`, on whatever thread gets there.
    fn commit(
        &self,
        payload: Option<Vec<u8>>,
        record: Recorder,
        done: impl FnOnce(Result<Option<ChunkLocation>, QueueError>) + Send + 'static,
    ) {
        match &self.plane {
            Plane::Memory(_) => self.commit_in_memory(done),
            Plane::ReadOnly(_) => done(Err(QueueError::ReadOnly)),
            Plane::Disk { journal, .. } => {
                let standing = self.standing();
                let facts: Facts = Box::new(move |location| standing().map(|()| vec![record(location)]));
                let entry = Entry { payload, facts, done: Box::new(done) };
                if let Err(entry) = journal.send(entry) {
                    (entry.done)(Err(QueueError::Closed { partition: self.name.clone() }));
                }
            }
        }
    }

    fn check_table(&self, table: &Table) {
        debug_assert_eq!(
            invariants::within_capacity(table.rows_live + table.rows_reserved, table.spec.capacity_rows),
            Ok(())
        );
    }
}

impl Partition {
    pub(crate) fn from_table(table: Table, plane: Plane, next_chunk: Arc<AtomicU64>) -> Self {
        let free = table.spec.capacity_rows.saturating_sub(table.rows_live);
        let shared = Shared {
            name: table.spec.name.clone(),
            room: Semaphore::new(free.min(Semaphore::MAX_PERMITS)),
            table: Mutex::new(table),
            ready: Notify::new(),
            plane,
            next_chunk,
            removed: Arc::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Writes a record down that has no payload; calls `apply` when it is durable, whoever still waits.
    pub(crate) async fn record<T: Send + 'static>(
        &self,
        record: Record,
        apply: impl FnOnce(Result<(), QueueError>) -> Result<T, QueueError> + Send + 'static,
    ) -> Result<T, QueueError> {
        let (reply, outcome) = tokio::sync::oneshot::channel();
        self.shared.commit(None, Box::new(move |_| record), move |durable| {
            // Nobody waits any more when the caller was cancelled.
            let _ = reply.send(apply(durable.map(drop)));
        });
        outcome.await.unwrap_or(Err(QueueError::Closed { partition: self.shared.name.clone() }))
    }

    /// Itself, if it was declared with `spec`.
    pub(crate) fn declared_as(self, spec: &PartitionSpec) -> Result<Self, QueueError> {
        let there = self.spec();
        if there == *spec {
            return Ok(self);
        }
        let what = format!("{there:?} is not {spec:?}");
        Err(QueueError::DeclaredOtherwise { name: spec.name.clone(), what })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// As it was declared.
    pub fn spec(&self) -> PartitionSpec {
        self.shared.table.lock().spec.clone()
    }

    /// Counts that cost nothing to read.
    pub fn stats(&self) -> PartitionStats {
        let table = self.shared.table.lock();
        PartitionStats {
            rows: table.rows_live,
            rows_reserved: table.rows_reserved,
            capacity_rows: table.spec.capacity_rows,
            groups: table.groups.len(),
            leases: table.lease_count(),
            ended: table.closed,
            dispositions: table.dispositions,
            tasks: table.task_stats(),
        }
    }

    /// Rows that are ready for a task.
    pub fn ready_rows(&self, task: &str) -> Result<usize, QueueError> {
        let table = self.shared.table.lock();
        Ok(table.ready_row_count(table.task(task)?))
    }

    /// Whole groups that are ready for a task.
    pub fn ready_groups(&self, task: &str) -> Result<usize, QueueError> {
        let table = self.shared.table.lock();
        Ok(table.ready_group_count(table.task(task)?))
    }

    /// No more puts: takers see the end instead of waiting for more.
    pub fn end_of_puts(&self) {
        self.shared.table.lock().closed = true;
        self.shared.ready.notify_waiters();
        self.shared.room.close();
    }

    /// Waits until no row is there and none is on its way. Cancel-safe.
    pub async fn drained(&self) {
        loop {
            let changed = self.shared.ready.notified();
            tokio::pin!(changed);
            // Registered before the table is read, so that no change between the two is missed.
            changed.as_mut().enable();
            let stats = self.stats();
            if stats.rows + stats.rows_reserved == 0 {
                return;
            }
            changed.await;
        }
    }

    /// The opaque records that came with puts, in order of the puts. They outlive their rows, so that the owner knows
    /// what it has put, until it forgets them.
    pub fn records(&self) -> Vec<String> {
        self.shared.table.lock().records().cloned().collect()
    }

    /// Forgets the oldest `count` records.
    ///
    /// Cancel-safe: it happens or it does not.
    pub async fn forget_records(&self, count: usize) -> Result<(), QueueError> {
        let record = Record::Forget { partition: self.shared.name.clone(), count };
        let shared = Arc::clone(&self.shared);
        self.record(record, move |durable| durable.map(|()| shared.table.lock().forget_records(count))).await
    }

    /// Frees rows, whoever holds them; handles of rows that are gone are an error and nothing is freed.
    ///
    /// Cancel-safe: it happens or it does not.
    pub async fn clear(&self, rows: &[RowHandle]) -> Result<(), QueueError> {
        {
            let table = self.shared.table.lock();
            rows.iter().try_for_each(|row| table.row(*row).map(drop))?;
        }
        self.free(rows.to_vec(), Freed::Cleared).await
    }

    /// Frees rows whose payload cannot be read back.
    async fn lose(&self, rows: &[RowHandle], why: &QueueError) {
        tracing::error!(partition = %self.shared.name, rows = rows.len(), %why, "rows are lost");
        if let Err(error) = self.free(rows.to_vec(), Freed::Lost).await {
            tracing::warn!(partition = %self.shared.name, %error, "cannot write down that rows are lost");
        }
    }

    async fn free(&self, rows: Vec<RowHandle>, why: Freed) -> Result<(), QueueError> {
        let shared = Arc::clone(&self.shared);
        let record = Record::Clear { partition: shared.name.clone(), rows: rows.clone(), why };
        let apply = move |durable: Result<(), QueueError>| {
            if durable.is_err() && matches!(why, Freed::Dropped | Freed::Stale) {
                shared.table.lock().undo_drop(&rows);
                shared.ready.notify_waiters();
            }
            durable?;
            let released = shared.table.lock().remove(&rows, why);
            shared.reclaim(&released);
            // Who waits for the end of what was held.
            shared.ready.notify_waiters();
            Ok(())
        };
        self.record(record, apply).await
    }

    /// The partition for people: O(rows).
    pub fn inspect(&self) -> PartitionInspection {
        let mut table = self.shared.table.lock();
        table.expire(Instant::now());
        let tasks = table
            .spec
            .tasks
            .iter()
            .enumerate()
            .map(|(index, task)| {
                let [incomplete, ready, leased, acked] = table.counts(index);
                TaskCounts { task: task.name.clone(), incomplete, ready, leased, acked }
            })
            .collect();
        PartitionInspection {
            name: self.shared.name.clone(),
            rows: table.rows_live,
            groups: table.groups.len(),
            capacity_rows: table.spec.capacity_rows,
            columns: table
                .columns
                .iter()
                .map(|(name, dtype)| ColumnSpec { name: name.clone(), dtype: dtype.clone() })
                .collect(),
            tasks,
            dispositions: table.dispositions,
        }
    }
}
