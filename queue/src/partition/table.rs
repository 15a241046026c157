//! The control plane of a partition: rows, groups, readiness and leases, as plain data behind one lock.
//!
//! Nothing in here waits, copies payload or does I/O, and every operation touches the rows it is about and no
//! others: what is ready is kept in ordered sets, never searched for.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use arrow::datatypes::DataType;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Put;
use crate::journal::{PayloadRecord, PutRecord};
use crate::{ChunkId, ColumnSpec, PartitionSpec, QueueError};

/// Put tokens remembered, so that a repeated put is recognised.
const TOKENS_MAX: usize = 65_536;
/// Owners' records that are kept until they are forgotten; bytes.
const RECORDS_BYTES_MAX: usize = 256 << 20;

/// Names one row for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowHandle {
    /// Used again when the row is freed.
    pub slot: u32,
    /// Never the same for two rows of a slot.
    pub generation: u32,
}

/// Where some columns of a row lie.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) chunk: ChunkId,
    pub(crate) row: u32,
    pub(crate) columns: Arc<[String]>,
}

/// What a row is for one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Columns are missing.
    Incomplete,
    Ready,
    Leased(u64),
    /// Acked or dropped, not yet durable.
    Leaving,
    Acked,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) group: u64,
    /// Its place in the group.
    place: usize,
    pub(crate) parts: Vec<Part>,
    pub(crate) progress: Vec<Progress>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    /// `None` for free slots, and for rows whose put is not durable yet.
    row: Option<Row>,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) key: String,
    pub(crate) size: usize,
    /// Live rows, in order of their puts.
    pub(crate) rows: Vec<RowHandle>,
    /// Rows ever put.
    pub(crate) put: usize,
    pub(crate) policy_version: u64,
    /// Per task: rows that are ready.
    ready: Vec<usize>,
}

impl Group {
    /// Whether every row is there and ready for the task.
    fn is_ready(&self, task: usize) -> bool {
        self.put == self.size && self.ready[task] == self.rows.len() && !self.rows.is_empty()
    }
}

/// What is ready for a task, oldest group first.
#[derive(Debug, Default)]
struct Ready {
    /// By group and place in the group.
    rows: BTreeSet<(u64, usize, RowHandle)>,
    groups: BTreeSet<u64>,
    /// Rows that lack columns of the task.
    incomplete: usize,
}

/// Rows of a group whose puts are not durable yet.
#[derive(Debug)]
struct UnderWay {
    group_size: usize,
    rows: usize,
}

/// What is set aside for a put that is not durable yet.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) rows: Vec<RowHandle>,
    group: String,
    token: Option<String>,
}

/// What a put is, before anything is written.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Something new.
    Fresh,
    /// A repetition of one that is on its way.
    UnderWay,
    /// A repetition of one that made these rows.
    Known(Vec<RowHandle>),
}

/// The rows that a chunk was written with, gone ones included.
#[derive(Debug, Default)]
struct ChunkRows {
    rows: Vec<RowHandle>,
    live: usize,
}

/// What the table has let go of.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// Rows that there is room for now.
    pub(crate) rows: usize,
    /// Chunks that nobody needs any more.
    pub(crate) chunks: Vec<ChunkId>,
    /// Chunks most of whose rows are gone.
    pub(crate) sparse: Vec<ChunkId>,
}

#[derive(Debug)]
pub(crate) struct LeaseState {
    pub(crate) task: usize,
    pub(crate) rows: Vec<RowHandle>,
    pub(crate) expires: Instant,
}

/// What became of rows that are gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispositions {
    /// Freed because every task acked them.
    pub acked: u64,
    /// Dropped to make room.
    pub dropped: u64,
    /// Cleared by their owner.
    pub cleared: u64,
    /// Their payload could not be read back.
    pub lost: u64,
}

/// Why rows are freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Freed {
    Acked,
    Dropped,
    Cleared,
    Lost,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) spec: PartitionSpec,
    pub(crate) columns: BTreeMap<String, DataType>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// New slots start here.
    generation_floor: u32,
    pub(crate) groups: BTreeMap<u64, Group>,
    open_groups: HashMap<String, u64>,
    next_group: u64,
    ready: Vec<Ready>,
    leases: HashMap<u64, LeaseState>,
    expiries: BTreeSet<(Instant, u64)>,
    next_lease: u64,
    chunks: HashMap<ChunkId, ChunkRows>,
    tokens: HashMap<String, Vec<RowHandle>>,
    token_order: VecDeque<String>,
    groups_under_way: HashMap<String, UnderWay>,
    tokens_under_way: HashSet<String>,
    /// Columns of rows whose writing is not durable yet.
    columns_under_way: HashSet<(RowHandle, String)>,
    records: VecDeque<String>,
    records_bytes: usize,
    pub(crate) dispositions: Dispositions,
    pub(crate) rows_live: usize,
    pub(crate) rows_reserved: usize,
    pub(crate) closed: bool,
}

impl Table {
    pub(crate) fn new(spec: PartitionSpec) -> Self {
        let columns = spec.columns.iter().map(|column| (column.name.clone(), column.dtype.clone())).collect();
        let ready = spec.tasks.iter().map(|_| Ready::default()).collect();
        Self {
            columns,
            ready,
            spec,
            slots: Vec::new(),
            free: Vec::new(),
            generation_floor: 0,
            groups: BTreeMap::new(),
            open_groups: HashMap::new(),
            next_group: 0,
            leases: HashMap::new(),
            expiries: BTreeSet::new(),
            next_lease: 0,
            chunks: HashMap::new(),
            tokens: HashMap::new(),
            token_order: VecDeque::new(),
            groups_under_way: HashMap::new(),
            tokens_under_way: HashSet::new(),
            columns_under_way: HashSet::new(),
            records: VecDeque::new(),
            records_bytes: 0,
            dispositions: Dispositions::default(),
            rows_live: 0,
            rows_reserved: 0,
            closed: false,
        }
    }

    pub(crate) fn task(&self, name: &str) -> Result<usize, QueueError> {
        let found = self.spec.tasks.iter().position(|task| task.name == name);
        found.ok_or_else(|| QueueError::UnknownTask {
            partition: self.spec.name.clone(),
            task: name.to_owned(),
            tasks: self.spec.tasks.iter().map(|task| task.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    /// Types are what they were at first; nothing is cast.
    pub(crate) fn check_columns(&self, columns: &[ColumnSpec]) -> Result<(), QueueError> {
        for ColumnSpec { name, dtype } in columns {
            if let Some(expected) = self.columns.get(name).filter(|expected| *expected != dtype) {
                return Err(QueueError::WrongType {
                    column: name.clone(),
                    expected: expected.to_string(),
                    found: dtype.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Keeps the types of columns that are new.
    pub(crate) fn learn_columns(&mut self, columns: &[ColumnSpec]) {
        for ColumnSpec { name, dtype } in columns {
            self.columns.entry(name.clone()).or_insert_with(|| dtype.clone());
        }
    }

    /// After replay: a chunk for every set of columns whose types are not known yet.
    pub(crate) fn chunks_of_unknown_columns(&self) -> Vec<ChunkId> {
        let mut seen: BTreeSet<&str> = self.columns.keys().map(String::as_str).collect();
        let mut chunks = Vec::new();
        for part in self.slots.iter().filter_map(|slot| slot.row.as_ref()).flat_map(|row| &row.parts) {
            // One look at the first name is enough for rows that were put alike, which nearly all are.
            if part.columns.iter().any(|column| !seen.contains(column.as_str())) {
                seen.extend(part.columns.iter().map(String::as_str));
                chunks.push(part.chunk);
            }
        }
        chunks
    }

    fn check_group(&self, key: &str, size: usize, rows: usize) -> Result<(), QueueError> {
        let there = self.open_groups.get(key).and_then(|id| self.groups.get(id));
        let (size, put) = there.map_or((size, 0), |group| (group.size, group.put));
        let (size, coming) =
            self.groups_under_way.get(key).map_or((size, 0), |way| (way.group_size, way.rows));
        let rows = put + coming + rows;
        if rows > size {
            return Err(QueueError::GroupOverflow { group: key.to_owned(), size, rows });
        }
        Ok(())
    }

    /// Whether a put may be written; says so without changing anything.
    pub(crate) fn admit(&self, put: &Put, columns: &[ColumnSpec]) -> Result<Admission, QueueError> {
        let rows = put.batch.num_rows();
        if let Some(token) = &put.token {
            if let Some(known) = self.tokens.get(token) {
                return Ok(Admission::Known(known.clone()));
            }
            if self.tokens_under_way.contains(token) {
                return Ok(Admission::UnderWay);
            }
        }
        if self.closed {
            return Err(QueueError::Closed { partition: self.spec.name.clone() });
        }
        if rows > self.spec.capacity_rows {
            return Err(QueueError::TooLarge { rows, capacity: self.spec.capacity_rows });
        }
        let record_bytes = put.record.as_ref().map_or(0, String::len);
        if record_bytes > 0 && self.records_bytes + record_bytes > RECORDS_BYTES_MAX {
            return Err(QueueError::RecordsFull {
                partition: self.spec.name.clone(),
                bytes: self.records_bytes,
                bytes_max: RECORDS_BYTES_MAX,
            });
        }
        self.check_columns(columns)?;
        self.check_group(&put.group, put.group_size, rows)?;
        Ok(Admission::Fresh)
    }

    /// Sets slots, the group's places and the token aside for a put that is about to be written.
    pub(crate) fn reserve(&mut self, put: &Put) -> Claim {
        let rows = put.batch.num_rows();
        self.rows_reserved += rows;
        let under_way = self
            .groups_under_way
            .entry(put.group.clone())
            .or_insert(UnderWay { group_size: put.group_size, rows: 0 });
        under_way.rows += rows;
        self.tokens_under_way.extend(put.token.clone());
        let handles = (0..rows).map(|_| self.take_slot()).collect();
        Claim { rows: handles, group: put.group.clone(), token: put.token.clone() }
    }

    fn take_slot(&mut self) -> RowHandle {
        if let Some(slot) = self.free.pop() {
            return RowHandle { slot, generation: self.slots[slot as usize].generation };
        }
        self.slots.push(Slot { generation: self.generation_floor, row: None });
        RowHandle { slot: (self.slots.len() - 1) as u32, generation: self.generation_floor }
    }

    /// Gives back what was set aside for a put that came to nothing.
    pub(crate) fn release(&mut self, claim: &Claim) {
        self.settle(&claim.group, claim.rows.len(), claim.token.as_deref());
        for row in &claim.rows {
            self.slots[row.slot as usize].generation += 1;
            self.free.push(row.slot);
        }
    }

    fn settle(&mut self, group: &str, rows: usize, token: Option<&str>) {
        self.rows_reserved -= rows;
        if let Some(under_way) = self.groups_under_way.get_mut(group) {
            under_way.rows -= rows;
            if under_way.rows == 0 {
                self.groups_under_way.remove(group);
            }
        }
        if let Some(token) = token {
            self.tokens_under_way.remove(token);
        }
    }

    /// Makes reserved rows visible.
    pub(crate) fn publish(&mut self, put: PutRecord) {
        let PutRecord {
            group: key, group_size, group_gone, policy_version, rows, payload, token, words, ..
        } = put;
        self.settle(&key, rows.len(), token.as_deref());
        self.rows_live += rows.len();
        let tasks = self.spec.tasks.len();
        let id = *self.open_groups.entry(key.clone()).or_insert_with(|| {
            let id = self.next_group;
            self.next_group += 1;
            let group = Group {
                key: key.clone(),
                size: group_size,
                rows: Vec::with_capacity(rows.len()),
                put: group_gone,
                policy_version,
                ready: vec![0; tasks],
            };
            self.groups.insert(id, group);
            id
        });
        let mut first_place = 0;
        if let Some(group) = self.groups.get_mut(&id) {
            first_place = group.put;
            group.rows.extend_from_slice(&rows);
            group.put += rows.len();
            group.policy_version = group.policy_version.min(policy_version);
            if group.put == group.size {
                self.open_groups.remove(&key);
            }
        }
        for (at, handle) in rows.iter().enumerate() {
            let progress = vec![Progress::Incomplete; tasks];
            let row = Row { group: id, place: first_place + at, parts: Vec::new(), progress };
            self.slots[handle.slot as usize].row = Some(row);
        }
        self.ready.iter_mut().for_each(|task| task.incomplete += rows.len());
        self.add_columns(&rows, &payload);
        // A group that has become whole may be ready by its earlier rows alone.
        (0..tasks).for_each(|task| self.index_group(id, task));
        if let Some(token) = token {
            self.remember(token, rows);
        }
        if let Some(words) = words {
            self.keep_record(words);
        }
    }

    pub(crate) fn keep_record(&mut self, words: String) {
        self.records_bytes += words.len();
        self.records.push_back(words);
    }

    pub(crate) fn records(&self) -> impl ExactSizeIterator<Item = &String> {
        self.records.iter()
    }

    pub(crate) fn forget_records(&mut self, count: usize) {
        for words in self.records.drain(..count.min(self.records.len())) {
            self.records_bytes -= words.len();
        }
    }

    /// Sets columns of rows aside that are about to be written; nothing is changed on an error.
    pub(crate) fn begin_columns(
        &mut self,
        rows: &[RowHandle],
        columns: &[ColumnSpec],
    ) -> Result<(), QueueError> {
        self.check_columns(columns)?;
        let mut claimed = HashSet::with_capacity(rows.len() * columns.len());
        for handle in rows {
            let row = self.row(*handle)?;
            for ColumnSpec { name, .. } in columns {
                let present = row.parts.iter().any(|part| part.columns.contains(name));
                let key = (*handle, name.clone());
                if present || self.columns_under_way.contains(&key) || !claimed.insert(key) {
                    return Err(QueueError::ColumnExists { column: name.clone() });
                }
            }
        }
        self.columns_under_way.extend(claimed);
        self.learn_columns(columns);
        Ok(())
    }

    /// The end of a writing of columns, whatever came of it.
    pub(crate) fn end_columns(&mut self, rows: &[RowHandle], columns: &[String]) {
        for handle in rows {
            for column in columns {
                self.columns_under_way.remove(&(*handle, column.clone()));
            }
        }
    }

    pub(crate) fn remember(&mut self, token: String, rows: Vec<RowHandle>) {
        if self.token_order.len() >= TOKENS_MAX
            && let Some(oldest) = self.token_order.pop_front()
        {
            self.tokens.remove(&oldest);
        }
        self.token_order.push_back(token.clone());
        self.tokens.insert(token, rows);
    }

    pub(crate) fn remembered(&self) -> Vec<(String, Vec<RowHandle>)> {
        let rows_of = |token: &String| self.tokens.get(token).map(|rows| (token.clone(), rows.clone()));
        self.token_order.iter().filter_map(rows_of).collect()
    }

    /// Adds columns to rows that are there; those that are gone by now are left out.
    pub(crate) fn add_columns(&mut self, rows: &[RowHandle], payload: &PayloadRecord) {
        let columns: Arc<[String]> = payload.columns.clone().into();
        for (at, handle) in rows.iter().enumerate() {
            let Ok(row) = self.row_mut(*handle) else { continue };
            row.parts.push(Part {
                chunk: payload.chunk,
                row: payload.chunk_row(at),
                columns: Arc::clone(&columns),
            });
            let chunk = self.chunks.entry(payload.chunk).or_default();
            chunk.rows.push(*handle);
            chunk.live += 1;
            self.complete(*handle);
        }
    }

    /// Whether any row needs the chunk.
    pub(crate) fn needs(&self, chunk: ChunkId) -> bool {
        self.chunks.contains_key(&chunk)
    }

    pub(crate) fn row(&self, handle: RowHandle) -> Result<&Row, QueueError> {
        let slot = self.slots.get(handle.slot as usize).filter(|slot| slot.generation == handle.generation);
        let stale = || QueueError::StaleHandle { slot: handle.slot, generation: handle.generation };
        slot.and_then(|slot| slot.row.as_ref()).ok_or_else(stale)
    }

    fn row_mut(&mut self, handle: RowHandle) -> Result<&mut Row, QueueError> {
        let slot =
            self.slots.get_mut(handle.slot as usize).filter(|slot| slot.generation == handle.generation);
        let stale = || QueueError::StaleHandle { slot: handle.slot, generation: handle.generation };
        slot.and_then(|slot| slot.row.as_mut()).ok_or_else(stale)
    }

    /// Marks the row ready for the tasks whose columns are all there.
    fn complete(&mut self, handle: RowHandle) {
        for task in 0..self.spec.tasks.len() {
            let Ok(row) = self.row(handle) else { return };
            let has = |name: &String| row.parts.iter().any(|part| part.columns.contains(name));
            if row.progress[task] == Progress::Incomplete && self.spec.tasks[task].columns.iter().all(has) {
                self.set(handle, task, Progress::Ready);
            }
        }
    }

    /// The one place that changes what a row is for a task, and every index with it.
    fn set(&mut self, handle: RowHandle, task: usize, to: Progress) {
        let Ok(row) = self.row_mut(handle) else { return };
        let from = std::mem::replace(&mut row.progress[task], to);
        let (group_id, place) = (row.group, row.place);
        if from == Progress::Incomplete && to != Progress::Incomplete {
            self.ready[task].incomplete -= 1;
        }
        if (from == Progress::Ready) == (to == Progress::Ready) {
            return;
        }
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        if to == Progress::Ready {
            group.ready[task] += 1;
            self.ready[task].rows.insert((group_id, place, handle));
        } else {
            group.ready[task] -= 1;
            self.ready[task].rows.remove(&(group_id, place, handle));
        }
        self.index_group(group_id, task);
    }

    fn index_group(&mut self, id: u64, task: usize) {
        if self.groups.get(&id).is_some_and(|group| group.is_ready(task)) {
            self.ready[task].groups.insert(id);
        } else {
            self.ready[task].groups.remove(&id);
        }
    }

    /// The oldest ready groups, at most `count`, of at least `min_version`.
    pub(crate) fn ready_groups(&self, task: usize, count: usize, min_version: u64) -> Vec<RowHandle> {
        let fresh = |id: &&u64| self.groups.get(id).is_some_and(|group| group.policy_version >= min_version);
        let chosen = self.ready[task].groups.iter().filter(fresh).take(count);
        chosen.filter_map(|id| self.groups.get(id)).flat_map(|group| group.rows.iter().copied()).collect()
    }

    /// The oldest ready rows, at most `count`, of groups of at least `min_version`.
    pub(crate) fn ready_rows(&self, task: usize, count: usize, min_version: u64) -> Vec<RowHandle> {
        let fresh = |id: u64| self.groups.get(&id).is_some_and(|group| group.policy_version >= min_version);
        let rows = self.ready[task].rows.iter().filter(|(id, ..)| fresh(*id));
        rows.take(count).map(|(.., handle)| *handle).collect()
    }

    pub(crate) fn ready_group_count(&self, task: usize) -> usize {
        self.ready[task].groups.len()
    }

    pub(crate) fn lease(&mut self, task: usize, rows: Vec<RowHandle>, expires: Instant) -> u64 {
        let id = self.next_lease;
        self.next_lease += 1;
        rows.iter().for_each(|row| self.set(*row, task, Progress::Leased(id)));
        self.expiries.insert((expires, id));
        self.leases.insert(id, LeaseState { task, rows, expires });
        id
    }

    fn end_lease(&mut self, id: u64) -> Result<LeaseState, QueueError> {
        let lease = self.leases.remove(&id).ok_or(QueueError::LeaseGone { lease: id })?;
        self.expiries.remove(&(lease.expires, id));
        Ok(lease)
    }

    pub(crate) fn renew(&mut self, id: u64, expires: Instant) -> Result<(), QueueError> {
        let lease = self.leases.get_mut(&id).ok_or(QueueError::LeaseGone { lease: id })?;
        self.expiries.remove(&(lease.expires, id));
        lease.expires = expires;
        self.expiries.insert((expires, id));
        Ok(())
    }

    /// Gives a lease's rows back.
    pub(crate) fn nack(&mut self, id: u64) -> Result<(), QueueError> {
        let lease = self.end_lease(id)?;
        self.give_back(&lease);
        Ok(())
    }

    fn give_back(&mut self, lease: &LeaseState) {
        lease.rows.iter().for_each(|row| self.set(*row, lease.task, Progress::Ready));
    }

    /// Gives back the rows of leases that are over; says when the next one is.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Instant> {
        while let Some((expires, id)) = self.expiries.first().copied() {
            if expires > now {
                return Some(expires);
            }
            if let Ok(lease) = self.end_lease(id) {
                tracing::warn!(partition = %self.spec.name, lease = id, rows = lease.rows.len(), "a lease expired; its rows are given again");
                self.give_back(&lease);
            }
        }
        None
    }

    /// Ends a lease whose rows are consumed as soon as that is durable.
    pub(crate) fn begin_ack(&mut self, id: u64) -> Result<LeaseState, QueueError> {
        let lease = self.end_lease(id)?;
        lease.rows.iter().for_each(|row| self.set(*row, lease.task, Progress::Leaving));
        Ok(lease)
    }

    pub(crate) fn undo_ack(&mut self, lease: &LeaseState) {
        self.give_back(lease);
    }

    /// Consumes rows.
    pub(crate) fn finish_ack(&mut self, task: usize, rows: &[RowHandle]) -> Released {
        rows.iter().for_each(|row| self.set(*row, task, Progress::Acked));
        let consumed: Vec<RowHandle> = rows
            .iter()
            .filter(|row| self.row(**row).is_ok_and(|row| row.progress.iter().all(|p| *p == Progress::Acked)))
            .copied()
            .collect();
        self.remove(&consumed, Freed::Acked)
    }

    /// Frees rows, whatever they are.
    pub(crate) fn remove(&mut self, rows: &[RowHandle], why: Freed) -> Released {
        let mut released = Released::default();
        for handle in rows {
            for task in 0..self.spec.tasks.len() {
                self.set(*handle, task, Progress::Acked);
            }
            if self.row(*handle).is_err() {
                continue;
            }
            let slot = &mut self.slots[handle.slot as usize];
            let Some(row) = slot.row.take() else { continue };
            slot.generation += 1;
            self.free.push(handle.slot);
            self.rows_live -= 1;
            released.rows += 1;
            match why {
                Freed::Acked => self.dispositions.acked += 1,
                Freed::Dropped => self.dispositions.dropped += 1,
                Freed::Cleared => self.dispositions.cleared += 1,
                Freed::Lost => self.dispositions.lost += 1,
            }
            for part in &row.parts {
                self.leave_chunk(part.chunk, &mut released);
            }
            self.leave_group(row.group, *handle);
        }
        released
    }

    fn leave_chunk(&mut self, id: ChunkId, released: &mut Released) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        chunk.live -= 1;
        if chunk.live == 0 {
            self.chunks.remove(&id);
            released.chunks.push(id);
            released.sparse.retain(|sparse| *sparse != id);
        } else if chunk.live * 2 < chunk.rows.len() && released.sparse.last() != Some(&id) {
            released.sparse.push(id);
        }
    }

    /// The rows that still need a chunk, with their places in it.
    pub(crate) fn chunk_rows(&self, chunk: ChunkId) -> Vec<(RowHandle, u32)> {
        let place = |handle: &RowHandle| {
            let part = self.row(*handle).ok()?.parts.iter().find(|part| part.chunk == chunk)?;
            Some((*handle, part.row))
        };
        self.chunks.get(&chunk).map_or_else(Vec::new, |rows| rows.rows.iter().filter_map(place).collect())
    }

    /// Lets rows that still need the chunk `from` find their columns in `to`, where the copy of the first of `rows` is
    /// row 0. Rows that are gone by now are left out.
    pub(crate) fn move_chunk(&mut self, from: ChunkId, to: ChunkId, rows: &[RowHandle]) {
        self.chunks.remove(&from);
        let mut moved = ChunkRows::default();
        for (at, handle) in rows.iter().enumerate() {
            let Ok(row) = self.row_mut(*handle) else { continue };
            let Some(part) = row.parts.iter_mut().find(|part| part.chunk == from) else { continue };
            part.chunk = to;
            part.row = at as u32;
            moved.rows.push(*handle);
            moved.live += 1;
        }
        if moved.live > 0 {
            self.chunks.insert(to, moved);
        }
    }

    fn leave_group(&mut self, id: u64, handle: RowHandle) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.rows.retain(|row| *row != handle);
        if group.rows.is_empty() && (group.put == group.size || !self.open_groups.contains_key(&group.key)) {
            self.groups.remove(&id);
        }
        (0..self.spec.tasks.len()).for_each(|task| self.index_group(id, task));
    }

    /// Takes the oldest group that is ready for every task out of every taker's reach: what `drop_oldest` may drop.
    pub(crate) fn begin_drop(&mut self) -> Option<Vec<RowHandle>> {
        let mut ready = self.ready.first()?.groups.iter();
        let id = ready.find(|id| self.ready.iter().all(|task| task.groups.contains(id)))?;
        let rows = self.groups.get(id)?.rows.clone();
        self.set_for_all_tasks(&rows, Progress::Leaving);
        Some(rows)
    }

    pub(crate) fn undo_drop(&mut self, rows: &[RowHandle]) {
        self.set_for_all_tasks(rows, Progress::Ready);
    }

    fn set_for_all_tasks(&mut self, rows: &[RowHandle], to: Progress) {
        for task in 0..self.spec.tasks.len() {
            rows.iter().for_each(|row| self.set(*row, task, to));
        }
    }

    /// Rows by state for a task: incomplete, ready, leased, acked.
    pub(crate) fn counts(&self, task: usize) -> [usize; 4] {
        let mut counts = [0; 4];
        for row in self.slots.iter().filter_map(|slot| slot.row.as_ref()) {
            let place = match row.progress[task] {
                Progress::Incomplete => 0,
                Progress::Ready => 1,
                Progress::Leased(_) | Progress::Leaving => 2,
                Progress::Acked => 3,
            };
            counts[place] += 1;
        }
        counts
    }

    pub(crate) fn ready_row_count(&self, task: usize) -> usize {
        self.ready[task].rows.len()
    }

    /// Whether rows may still become ready for the task without another put.
    pub(crate) fn may_become_ready(&self, task: usize) -> bool {
        self.rows_reserved > 0
            || self.ready[task].incomplete > 0
            || self.leases.values().any(|lease| lease.task == task)
    }

    pub(crate) fn live_leases(&self) -> impl Iterator<Item = &LeaseState> {
        self.leases.values()
    }

    /// Makes room for the rows of a journal record, at the slots that it names.
    pub(crate) fn reserve_for_replay(&mut self, rows: &[RowHandle]) {
        self.rows_reserved += rows.len();
        for row in rows {
            let needed = row.slot as usize + 1;
            if self.slots.len() < needed {
                self.slots.resize_with(needed, Slot::default);
            }
            self.slots[row.slot as usize].generation = row.generation;
            self.generation_floor = self.generation_floor.max(row.generation + 1);
        }
    }

    /// Handles of before the restart name no row of after it, but for those that are still there.
    pub(crate) fn finish_replay(&mut self, generation_floor: u32) {
        self.generation_floor = self.generation_floor.max(generation_floor);
        self.free.clear();
        for (slot, state) in self.slots.iter_mut().enumerate() {
            if state.row.is_none() {
                state.generation = self.generation_floor;
                self.free.push(slot as u32);
            }
        }
    }

    /// Above every generation that was given out.
    pub(crate) fn generation_floor(&self) -> u32 {
        self.slots.iter().map(|slot| slot.generation + 1).max().unwrap_or(0).max(self.generation_floor)
    }
}
