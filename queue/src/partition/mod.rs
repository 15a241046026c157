//! A partition: puts, takes and acks over the control plane's table and the payload's store.

mod admission;
mod balance;
mod claim;
mod columns;
mod control;
mod cut;
mod hold;
mod lease;
mod moving;
mod put;
mod read;
mod removal;
mod replay;
mod room;
mod sampler;
mod samples;
mod table;
mod take;
mod waiting;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::{Durability, PartitionSpec};
use crate::inspect::{PartitionInspection, TaskCounts};
use crate::invariants;
use crate::journal::{Entry, Facts, RECORD_ROWS_MAX, Record, Recorder, Runs};
use crate::plane::{OwnStore, Plane};
use crate::store::{Encoded, Store};
use crate::{ChunkId, ChunkLocation, QueueError};

pub(crate) use columns::{PlacedColumns, UnitRows, check_counts};
pub(crate) use cut::CutReader;
pub use lease::Lease;
pub(crate) use lease::{Hold, Labels};
pub use put::Put;
pub(crate) use put::{PlacedRows, check_depth, columns_of, lengths_of};
pub(crate) use read::{PlacedPart, PlacedStretch};
pub(crate) use replay::{Replay, lease_records};
use room::{FreeRoom, Size};
pub use sampler::{GroupSampler, ReadyGroup};
use table::SLOTS_MAX;
use table::{Admission, Chosen, Claim, Released};
pub use table::{
    ClosedGroup, Disposition, Dispositions, GroupFate, INCOMPLETE, KeyedRow, RowHandle, SamplePart,
    Unfinished,
};
pub(crate) use table::{ClosedNames, Freed, Label, SamplesRecord, Table};
pub use take::{Amount, Sampler, Share, Stale, Take};

/// What the partitions of a queue share.
#[derive(Clone)]
pub(crate) struct Home {
    pub(crate) plane: Plane,
    pub(crate) next_chunk: Arc<AtomicU64>,
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
    /// Rows that somebody holds.
    pub leased_rows: usize,
    /// Rows that would be ready if their storage unit were not away.
    #[serde(default)]
    pub away_rows: usize,
    /// Rows that the task is done with and others are not: they are still there.
    pub acked_rows: usize,
}

impl TaskStats {
    /// Whether the task has acked every row that is there.
    pub fn is_all_consumed(&self) -> bool {
        self.incomplete_rows + self.ready_rows + self.leased_rows + self.away_rows == 0
    }
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
    /// Bytes of payload, where the partition bounds them: in whole KiB for each put.
    pub payload_bytes: u64,
    /// The bound, if there is one.
    pub capacity_bytes: Option<u64>,
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
    /// Rows that have each column: what has been produced.
    pub columns: BTreeMap<String, usize>,
    /// The newest policy version that a put had or somebody announced.
    pub policy_version: u64,
    /// Counts the partition's changes.
    pub revision: u64,
    /// Groups whose rows have left since the revision that was asked [after](Partition::stats_after), oldest first; the
    /// last thousand at most, and none where nothing was asked after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fates: Vec<GroupFate>,
    /// Whether more have left than are remembered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fates_missed: bool,
}

pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) table: Mutex<Table>,
    pub(crate) room: FreeRoom,
    /// Something changed. Takes do not wait for this: see [`waiting`].
    pub(crate) changed: Notify,
    /// Whether anybody counts bytes.
    counts_bytes: bool,
    /// What a put that returned survives.
    durability: Durability,
    pub(crate) plane: Plane,
    pub(crate) next_chunk: Arc<AtomicU64>,
    /// Set on the way out: nothing is written down about it any more.
    removed: Arc<AtomicBool>,
    /// Attempts of takes.
    #[cfg(test)]
    looks: AtomicU64,
}

/// Records about rows, each of as many as one may have; whether each is the last.
fn in_records(rows: &[RowHandle], record: impl Fn(Vec<RowHandle>, bool) -> Record) -> Vec<Record> {
    if rows.is_empty() {
        return vec![record(Vec::new(), true)];
    }
    let last = rows.len().div_ceil(RECORD_ROWS_MAX) - 1;
    let rows = rows.chunks(RECORD_ROWS_MAX).enumerate();
    rows.map(|(number, rows)| record(rows.to_vec(), number == last)).collect()
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
        self.room.release(released.size);
        self.plane.free(&released.chunks);
        self.shrink(&released.sparse);
    }

    /// Makes `record` durable as far as the queue does, then calls `done`, on whatever thread gets there.
    fn commit(
        &self,
        payload: Option<Encoded>,
        record: Recorder,
        done: impl FnOnce(Result<Option<ChunkLocation>, QueueError>) + Send + 'static,
    ) {
        match &self.plane.own {
            OwnStore::Memory(_) => self.commit_in_memory(done),
            OwnStore::ReadOnly(_) => done(Err(QueueError::ReadOnly)),
            OwnStore::Disk { journal, .. } => {
                let standing = self.standing();
                let facts: Facts = Box::new(move |location| standing().map(|()| record(location)));
                let entry = Entry { payload, facts, durability: self.durability, done: Box::new(done) };
                if let Err(entry) = journal.send(entry) {
                    (entry.done)(Err(QueueError::Closed { partition: self.name.clone() }));
                }
            }
        }
    }

    /// Writes down what clients hold, or do not hold any more. Not under the table's lock.
    fn note(&self, record: Record) {
        if let OwnStore::Disk { leases, .. } = &self.plane.own
            && let Err(error) = leases.append(record)
        {
            tracing::warn!(partition = %self.name, %error, "a lease would not outlive this process");
        }
    }

    /// Writes down which leases gave their rows back. Not under the table's lock.
    fn record_ends(&self) {
        let leases = self.table.lock().take_unrecorded_ends();
        if !leases.is_empty() {
            self.note(Record::LeasesEnd { partition: self.name.clone(), leases });
        }
    }

    /// Tells those whom a change of the table may serve.
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
        let Home { plane, next_chunk } = home;
        let used = Size { rows: table.rows_live, kib: table.kib_live };
        let shared = Shared {
            name: table.spec.name.clone(),
            room: FreeRoom::new(&table.spec, used),
            counts_bytes: table.spec.capacity_bytes.is_some(),
            durability: table.spec.durability.unwrap_or(plane.own.durability()),
            table: Mutex::new(table),
            changed: Notify::new(),
            plane,
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

    /// Writes a record down that has no payload; calls `apply` when it is durable, whoever still waits.
    pub(crate) async fn record<T: Send + 'static>(
        &self,
        record: Record,
        apply: impl FnOnce(Result<(), QueueError>) -> Result<T, QueueError> + Send + 'static,
    ) -> Result<T, QueueError> {
        self.record_all(vec![record], apply).await
    }

    /// The same with several records, which are there together or not at all.
    async fn record_all<T: Send + 'static>(
        &self,
        records: Vec<Record>,
        apply: impl FnOnce(Result<(), QueueError>) -> Result<T, QueueError> + Send + 'static,
    ) -> Result<T, QueueError> {
        let (reply, outcome) = tokio::sync::oneshot::channel();
        self.shared.commit(None, Box::new(move |_| records), move |durable| {
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
        self.clear_once(rows, None).await
    }

    /// The same; repeating it with the same token changes nothing.
    pub(crate) async fn clear_once(
        &self,
        rows: &[RowHandle],
        token: Option<String>,
    ) -> Result<(), QueueError> {
        self.visible(rows).await;
        let check = |table: &mut Table| rows.iter().try_for_each(|row| table.row(*row).map(drop));
        if self.begin_once(token.as_ref(), check).await?.is_none() {
            return Ok(());
        }
        self.free_once(rows.to_vec(), Freed::Cleared, token).await
    }

    /// Payload is out of reach, or within it again.
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
            tracing::warn!(partition = %self.shared.name, %error, "cannot write down that rows are lost");
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
            // Who waits for the end of what was held.
            shared.tell(&mut table);
            drop(table);
            shared.reclaim(&released);
            Ok(())
        };
        self.record_all(records, apply).await
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
                let [incomplete, ready, leased, acked, away] = table.counts(index);
                TaskCounts { task: task.name.clone(), incomplete, ready, leased, acked, away }
            })
            .collect();
        PartitionInspection {
            name: self.shared.name.clone(),
            rows: table.rows_live,
            groups: table.groups.len(),
            capacity_rows: table.spec.capacity_rows,
            columns: table.columns().values().cloned().collect(),
            tasks,
            dispositions: table.dispositions,
            leases: table.held_leases(Instant::now()),
        }
    }
}
