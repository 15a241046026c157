//! A partition: puts, takes and acks, on top of the table (control plane) and the stores (data plane).

mod admission;
mod balance;
mod check;
mod claim;
mod columns;
mod control;
mod cut;
mod expiry;
mod hold;
mod moving;
mod once;
mod put;
mod read;
mod removal;
mod replay;
mod room;
mod samples;
mod table;
mod waiting;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::config::{Durability, PartitionSpec};
use crate::error::QueueError;
use crate::inspect::{PartitionInspection, TaskCounts};
use crate::invariants;
use crate::journal::{Body, Entry, Facts, Log, Notes, Payload};
use crate::plane::Plane;
use crate::record::{Freed, Record};
use crate::row::{RECORD_ROWS_MAX, RowHandle, Runs};
use crate::stats::TaskStats;
use crate::store::{ChunkId, Note};

pub(crate) use columns::PlacedColumns;
pub(crate) use cut::CutReader;
pub use once::RowState;
pub(crate) use put::PlacedRows;
pub(crate) use read::PlacedPart;
pub(crate) use replay::{Mend, NamedTasks, Replay, Unusable};
use room::FreeRoom;
use table::{Added, Admission, Chosen, Claim, Released, Size};
pub(crate) use table::{Table, Totals};

/// Makes the records of an entry, once the store has returned the notes of its payload.
type Recorder = Box<dyn FnOnce(&[Note]) -> Vec<Record> + Send>;

/// The state that the partitions of a queue share.
#[derive(Clone)]
pub(crate) struct Home {
    pub(crate) plane: Plane,
    pub(crate) log: Log,
    pub(crate) next_chunk: Arc<AtomicU64>,
}

pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) table: Mutex<Table>,
    pub(crate) room: FreeRoom,
    /// Notified when the partition changes. Takes do not wait for this: see [`waiting`].
    pub(crate) changed: Notify,
    /// Whether the payload is counted in bytes.
    counts_bytes: bool,
    /// The failure that an acknowledged put survives.
    durability: Durability,
    pub(crate) plane: Plane,
    log: Log,
    pub(crate) next_chunk: Arc<AtomicU64>,
    /// Set when the partition is being removed: no more records of it are written.
    removed: Arc<AtomicBool>,
    /// The number of attempts of takes.
    #[cfg(test)]
    looks: AtomicU64,
}

/// Makes the records for some rows, each with as many rows as a record may have. The second argument of
/// `record` tells whether the record is the last record.
fn in_records(rows: &[RowHandle], record: impl Fn(Vec<RowHandle>, bool) -> Record) -> Vec<Record> {
    if rows.is_empty() {
        return vec![record(Vec::new(), true)];
    }
    let last = rows.len().div_ceil(RECORD_ROWS_MAX) - 1;
    let rows = rows.chunks(RECORD_ROWS_MAX).enumerate();
    rows.map(|(number, rows)| record(rows.to_vec(), number == last)).collect()
}

/// A partition. Clones refer to the same partition.
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

    /// Frees released resources: first the room, then the payload. Must not be called under the table's lock.
    fn reclaim(&self, released: &Released) {
        self.room.release(released.size);
        self.plane.free(&released.chunks);
        self.shrink(&released.sparse);
    }

    /// Makes `record` as durable as the partition's puts, and then calls `done`, on any thread. `adds` tells
    /// whether the change is refused while the disk is full.
    fn commit(
        &self,
        adds: bool,
        payload: Payload,
        record: Recorder,
        done: impl FnOnce(Result<Notes, QueueError>) + Send + 'static,
    ) {
        match &self.log {
            Log::Nowhere => self.commit_in_memory(done),
            Log::ReadOnly => done(Err(QueueError::ReadOnly)),
            Log::Files { journal, .. } => {
                let standing = self.standing();
                let facts: Facts = Box::new(move |notes, body: &mut Body| {
                    standing()?;
                    record(notes).iter().try_for_each(|record| body.push(record))
                });
                let entry = Entry { adds, payload, facts, durability: self.durability, done: Box::new(done) };
                if let Err(entry) = journal.send(entry) {
                    (entry.done)(Err(QueueError::Closed { partition: self.name.clone() }));
                }
            }
        }
    }

    /// Writes the ends of leases to the lease file, and frees the payload that only these leases read. Must
    /// not be called under the table's lock.
    fn record_ends(&self) {
        let (leases, released) = {
            let mut table = self.table.lock();
            (table.take_unrecorded_ends(), table.drop_read_parts())
        };
        if let Some(released) = released {
            self.reclaim(&released);
        }
        if !leases.is_empty() {
            let record = Record::LeasesEnd { partition: self.name.clone(), leases };
            self.log.note_lease(&self.name, &record);
        }
    }

    /// Raises the revision, and wakes the calls that may proceed after the change.
    fn tell(&self, table: &mut Table) {
        table.revision += 1;
        table.wake_after_change();
        self.changed.notify_waiters();
    }

    fn check_table(&self, table: &Table) {
        debug_assert_eq!(
            invariants::within_capacity(table.rows_live + table.rows_reserved(), table.spec.capacity_rows),
            Ok(())
        );
    }
}

impl Partition {
    pub(crate) fn from_table(table: Table, home: Home) -> Self {
        let Home { plane, log, next_chunk } = home;
        let used = Size { rows: table.rows_live, kib: table.kib_live };
        let shared = Shared {
            name: table.spec.name.clone(),
            room: FreeRoom::new(&table.spec, used),
            counts_bytes: table.spec.capacity_bytes.is_some(),
            durability: table.spec.durability.unwrap_or(log.durability()),
            table: Mutex::new(table),
            changed: Notify::new(),
            plane,
            log,
            next_chunk,
            removed: Arc::default(),
            #[cfg(test)]
            looks: AtomicU64::new(0),
        };
        if shared.table.lock().closed {
            shared.room.close();
        }
        Self { shared: Arc::new(shared) }
    }

    /// Writes a record without payload. Calls `apply` when the record is durable or its write has failed,
    /// even if the caller was cancelled.
    pub(crate) async fn record<T: Send + 'static>(
        &self,
        record: Record,
        apply: impl FnOnce(Result<(), QueueError>) -> Result<T, QueueError> + Send + 'static,
    ) -> Result<T, QueueError> {
        self.record_all(vec![record], apply).await
    }

    /// Writes several records. They become durable together or not at all.
    async fn record_all<T: Send + 'static>(
        &self,
        records: Vec<Record>,
        apply: impl FnOnce(Result<(), QueueError>) -> Result<T, QueueError> + Send + 'static,
    ) -> Result<T, QueueError> {
        let (reply, outcome) = tokio::sync::oneshot::channel();
        let adds = records.iter().any(Record::adds);
        self.shared.commit(adds, Payload::new(), Box::new(move |_| records), move |durable| {
            // The receiver no longer exists if the caller was cancelled.
            let _ = reply.send(apply(durable.map(drop)));
        });
        outcome.await.unwrap_or(Err(QueueError::Closed { partition: self.shared.name.clone() }))
    }

    /// Returns the partition if its declaration equals `spec`.
    pub(crate) fn declared_as(self, spec: &PartitionSpec) -> Result<Self, QueueError> {
        let there = self.spec();
        if there == *spec {
            return Ok(self);
        }
        let what = format!("{there:?} is not {spec:?}");
        Err(QueueError::DeclaredOtherwise { name: spec.name.clone(), what })
    }

    /// The name of the partition.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The declaration of the partition.
    pub fn spec(&self) -> PartitionSpec {
        self.shared.table.lock().spec.clone()
    }

    /// Returns the owner's records of puts, in the order of the puts. The records outlive the rows, and are
    /// kept until the owner forgets them.
    pub fn records(&self) -> Vec<String> {
        let records = self.shared.table.lock().records().clone();
        records.iter().map(|(record, ())| record.to_owned()).collect()
    }

    /// Forgets the oldest `count` records of the owner.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn forget_records(&self, count: usize) -> Result<(), QueueError> {
        let record = Record::Forget { partition: self.shared.name.clone(), count };
        let shared = Arc::clone(&self.shared);
        self.record(record, move |durable| durable.map(|()| shared.table.lock().forget_records(count))).await
    }

    /// Frees rows, leased or not. If a row was already freed, returns an error and frees nothing.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn clear(&self, rows: &[RowHandle]) -> Result<(), QueueError> {
        self.clear_once(rows, None).await
    }

    /// Frees rows once: a call with the token of an earlier call changes nothing.
    pub(crate) async fn clear_once(
        &self,
        rows: &[RowHandle],
        token: Option<String>,
    ) -> Result<(), QueueError> {
        self.visible(rows).await;
        let check = |table: &mut Table| rows.iter().try_for_each(|row| table.row(*row).map(drop)).map(Some);
        if self.begin_once(token.as_ref(), check).await?.is_none() {
            return Ok(());
        }
        self.free_once(rows.to_vec(), Freed::Cleared, token).await
    }

    /// Sets whether the payload of these chunks can be read.
    pub(crate) fn set_away(&self, chunks: &[ChunkId], is_away: bool) {
        let mut table = self.shared.table.lock();
        chunks.iter().for_each(|chunk| table.set_away(*chunk, is_away));
        self.shared.tell(&mut table);
    }

    /// Frees all rows of the groups that need any of these chunks.
    pub(crate) async fn free_groups_in(&self, chunks: &[ChunkId], why: Freed) -> Result<(), QueueError> {
        let rows = self.shared.table.lock().rows_of_groups_in(chunks);
        if rows.is_empty() {
            return Ok(());
        }
        tracing::error!(partition = %self.shared.name, rows = rows.len(), "rows are lost with their storage unit");
        self.free(rows, why).await
    }

    /// Frees rows whose payload cannot be read back.
    async fn lose(&self, rows: &[RowHandle], why: &QueueError) {
        tracing::error!(partition = %self.shared.name, rows = rows.len(), %why, "rows are lost");
        if let Err(error) = self.free(rows.to_vec(), Freed::Lost).await {
            tracing::warn!(partition = %self.shared.name, %error, "cannot record that rows are lost");
        }
    }

    async fn free(&self, rows: Vec<RowHandle>, why: Freed) -> Result<(), QueueError> {
        self.free_once(rows, why, None).await
    }

    async fn free_once(
        &self,
        rows: Vec<RowHandle>,
        why: Freed,
        token: Option<String>,
    ) -> Result<(), QueueError> {
        let shared = Arc::clone(&self.shared);
        let records = in_records(&rows, |rows, is_last| Record::Clear {
            partition: shared.name.clone(),
            rows,
            why,
            token: token.clone().filter(|_| is_last),
        });
        let apply = move |durable: Result<(), QueueError>| {
            let mut table = shared.table.lock();
            table.end_token(token, durable.is_ok().then(Runs::default));
            if durable.is_err() && matches!(why, Freed::Dropped | Freed::Stale) {
                table.undo_drop(&rows);
                shared.tell(&mut table);
            }
            durable?;
            let released = table.remove(&rows, why);
            // Some calls wait for the end of leases on these rows.
            shared.tell(&mut table);
            drop(table);
            shared.reclaim(&released);
            Ok(())
        };
        self.record_all(records, apply).await
    }

    /// Describes the partition for people. Its cost does not depend on the number of rows.
    pub fn inspect(&self) -> PartitionInspection {
        self.shared.after_expiry(|table, now| {
            let counts = |task: TaskStats| TaskCounts {
                task: task.task,
                incomplete: task.incomplete_rows,
                ready: task.ready_rows,
                leased: task.leased_rows,
                acked: task.acked_rows,
                away: task.away_rows,
            };
            PartitionInspection {
                name: self.shared.name.clone(),
                rows: table.rows_live,
                groups: table.groups.len(),
                capacity_rows: table.spec.capacity_rows,
                columns: table.columns().values().cloned().collect(),
                tasks: table.task_stats().into_iter().map(counts).collect(),
                dispositions: table.dispositions,
                leases: table.held_leases(now),
            }
        })
    }
}
