//! A partition: puts, takes and acks over the control plane's table and the payload's store.

mod lease;
mod put;
mod read;
mod replay;
mod table;
mod take;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::config::{ColumnSpec, Durability, PartitionSpec};
use crate::inspect::{PartitionInspection, TaskCounts};
use crate::invariants;
use crate::journal::{Entry, Journal, Record, Recorder};
use crate::store::{MemoryStore, Store};
use crate::{ChunkId, ChunkLocation, QueueError};

pub use lease::Lease;
pub use put::Put;
pub(crate) use put::columns_of;
pub(crate) use replay::{Replay, live_records};
pub use table::{Dispositions, RowHandle};
pub(crate) use table::{Freed, Table};
pub use take::{Amount, Take};

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

/// Numbers of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
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
    fn reclaim(&self, rows: usize, chunks: &[ChunkId]) {
        self.room.add_permits(rows);
        chunks.iter().for_each(|chunk| self.plane.store().free(*chunk));
    }

    /// Makes `record` durable as far as the queue does, then calls `done`, on whatever thread gets there.
    fn commit(
        &self,
        payload: Option<Vec<u8>>,
        record: Recorder,
        done: impl FnOnce(Result<Option<ChunkLocation>, QueueError>) + Send + 'static,
    ) {
        match &self.plane {
            Plane::Memory(_) => done(Ok(None)),
            Plane::ReadOnly(_) => done(Err(QueueError::ReadOnly)),
            Plane::Disk { journal, .. } => {
                let entry = Entry { payload, record, done: Box::new(done) };
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
    pub(crate) fn new(spec: PartitionSpec, plane: Plane, next_chunk: Arc<AtomicU64>) -> Self {
        Self::from_table(Table::new(spec), plane, next_chunk)
    }

    pub(crate) fn from_table(table: Table, plane: Plane, next_chunk: Arc<AtomicU64>) -> Self {
        let free = table.spec.capacity_rows.saturating_sub(table.rows_live);
        let shared = Shared {
            name: table.spec.name.clone(),
            room: Semaphore::new(free.min(Semaphore::MAX_PERMITS)),
            table: Mutex::new(table),
            ready: Notify::new(),
            plane,
            next_chunk,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Writes the declaration down.
    pub(crate) async fn declare(&self, record: Record) -> Result<(), QueueError> {
        let (reply, outcome) = tokio::sync::oneshot::channel();
        self.shared.commit(None, Box::new(move |_| record), move |durable| {
            // Nobody waits any more when the caller was cancelled.
            let _ = reply.send(durable.map(drop));
        });
        outcome.await.unwrap_or(Err(QueueError::Closed { partition: self.shared.name.clone() }))
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
            leases: table.live_leases().count(),
            ended: table.closed,
            dispositions: table.dispositions,
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

    /// The opaque records that came with the puts of groups that are still there, in order of their groups.
    pub fn records(&self) -> Vec<String> {
        let table = self.shared.table.lock();
        table.groups.values().filter_map(|group| group.record.clone()).collect()
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

    async fn free(&self, rows: Vec<RowHandle>, why: Freed) -> Result<(), QueueError> {
        let shared = Arc::clone(&self.shared);
        let record = Record::Clear {
            partition: shared.name.clone(),
            rows: rows.clone(),
            dropped: why == Freed::Dropped,
        };
        let (reply, outcome) = tokio::sync::oneshot::channel();
        self.shared.commit(None, Box::new(move |_| record), move |durable| {
            let freed = durable.map(|_| {
                let (freed, chunks) = {
                    let mut table = shared.table.lock();
                    let before = table.rows_live;
                    let chunks = table.remove(&rows, why);
                    (before - table.rows_live, chunks)
                };
                shared.reclaim(freed, &chunks);
            });
            // Nobody waits any more when the caller was cancelled.
            let _ = reply.send(freed);
        });
        outcome.await.unwrap_or(Err(QueueError::Closed { partition: self.shared.name.clone() }))
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
