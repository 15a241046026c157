//! The control plane of a partition: rows, groups, readiness and leases, as plain data behind one lock.
//!
//! Nothing in here waits, copies payload or does I/O, and every operation touches the rows it is about and no
//! others: what is ready is kept in ordered sets, never searched for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use arrow::datatypes::DataType;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::journal::{PayloadRecord, PutRecord};
use crate::{ChunkId, ColumnSpec, PartitionSpec, QueueError};

/// Put tokens remembered, so that a repeated put is recognised.
const TOKENS_MAX: usize = 65_536;

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
    /// Acked, not yet durable.
    Acking,
    Acked,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) group: u64,
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
    pub(crate) record: Option<String>,
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
    rows: BTreeSet<(u64, RowHandle)>,
    groups: BTreeSet<u64>,
}

#[derive(Debug)]
pub(crate) struct LeaseState {
    pub(crate) task: usize,
    pub(crate) rows: Vec<RowHandle>,
    pub(crate) expires: Instant,
}

/// What became of rows that are gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Dispositions {
    /// Freed because every task acked them.
    pub acked: u64,
    /// Dropped to make room.
    pub dropped: u64,
    /// Cleared by their owner.
    pub cleared: u64,
}

/// Why rows are freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freed {
    Acked,
    Dropped,
    Cleared,
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
    /// Live rows of each chunk.
    chunks: HashMap<ChunkId, usize>,
    tokens: HashMap<String, Vec<RowHandle>>,
    token_order: std::collections::VecDeque<String>,
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
            token_order: std::collections::VecDeque::new(),
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

    pub(crate) fn check_group(&self, key: &str, size: usize, rows: usize) -> Result<(), QueueError> {
        let open = self.open_groups.get(key).and_then(|id| self.groups.get(id));
        let (size, already) = open.map_or((size, 0), |group| (group.size, group.put));
        if already + rows > size {
            return Err(QueueError::GroupOverflow { group: key.to_owned(), size, rows: already + rows });
        }
        Ok(())
    }

    pub(crate) fn known_token(&self, token: &str) -> Option<Vec<RowHandle>> {
        self.tokens.get(token).cloned()
    }

    /// Sets slots aside for rows that are about to be written.
    pub(crate) fn reserve(&mut self, rows: usize) -> Vec<RowHandle> {
        self.rows_reserved += rows;
        (0..rows)
            .map(|_| match self.free.pop() {
                Some(slot) => RowHandle { slot, generation: self.slots[slot as usize].generation },
                None => {
                    self.slots.push(Slot { generation: self.generation_floor, row: None });
                    RowHandle { slot: (self.slots.len() - 1) as u32, generation: self.generation_floor }
                }
            })
            .collect()
    }

    pub(crate) fn release(&mut self, rows: &[RowHandle]) {
        self.rows_reserved -= rows.len();
        for row in rows {
            self.slots[row.slot as usize].generation += 1;
            self.free.push(row.slot);
        }
    }

    /// Makes reserved rows visible.
    pub(crate) fn publish(&mut self, put: PutRecord) {
        let PutRecord {
            group: key, group_size, group_gone, policy_version, rows, payload, token, words, ..
        } = put;
        self.rows_reserved -= rows.len();
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
                record: None,
                ready: vec![0; tasks],
            };
            self.groups.insert(id, group);
            id
        });
        if let Some(group) = self.groups.get_mut(&id) {
            group.rows.extend_from_slice(&rows);
            group.put += rows.len();
            group.policy_version = group.policy_version.min(policy_version);
            group.record = words.or(group.record.take());
            if group.put == group.size {
                self.open_groups.remove(&key);
            }
        }
        for handle in &rows {
            let row = Row { group: id, parts: Vec::new(), progress: vec![Progress::Incomplete; tasks] };
            self.slots[handle.slot as usize].row = Some(row);
        }
        self.add_columns(&rows, &payload);
        // A group that has become whole may be ready by its earlier rows alone.
        (0..tasks).for_each(|task| self.index_group(id, task));
        if let Some(token) = token {
            self.remember(token, rows);
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
            *self.chunks.entry(payload.chunk).or_default() += 1;
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
        let group_id = row.group;
        if (from == Progress::Ready) == (to == Progress::Ready) {
            return;
        }
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        if to == Progress::Ready {
            group.ready[task] += 1;
            self.ready[task].rows.insert((group_id, handle));
        } else {
            group.ready[task] -= 1;
            self.ready[task].rows.remove(&(group_id, handle));
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
        let rows = self.ready[task].rows.iter().filter(|(id, _)| fresh(*id));
        rows.take(count).map(|(_, handle)| *handle).collect()
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
        lease.rows.iter().for_each(|row| self.set(*row, lease.task, Progress::Acking));
        Ok(lease)
    }

    pub(crate) fn undo_ack(&mut self, lease: &LeaseState) {
        self.give_back(lease);
    }

    /// Consumes rows; returns the chunks that nobody needs any more.
    pub(crate) fn finish_ack(&mut self, task: usize, rows: &[RowHandle]) -> Vec<ChunkId> {
        rows.iter().for_each(|row| self.set(*row, task, Progress::Acked));
        let consumed: Vec<RowHandle> = rows
            .iter()
            .filter(|row| self.row(**row).is_ok_and(|row| row.progress.iter().all(|p| *p == Progress::Acked)))
            .copied()
            .collect();
        self.remove(&consumed, Freed::Acked)
    }

    /// Frees rows, whatever they are; returns the chunks that nobody needs any more.
    pub(crate) fn remove(&mut self, rows: &[RowHandle], why: Freed) -> Vec<ChunkId> {
        let mut unused = Vec::new();
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
            match why {
                Freed::Acked => self.dispositions.acked += 1,
                Freed::Dropped => self.dispositions.dropped += 1,
                Freed::Cleared => self.dispositions.cleared += 1,
            }
            for part in &row.parts {
                let live = self.chunks.entry(part.chunk).or_default();
                *live -= 1;
                if *live == 0 {
                    self.chunks.remove(&part.chunk);
                    unused.push(part.chunk);
                }
            }
            self.leave_group(row.group, *handle);
        }
        unused
    }

    fn leave_group(&mut self, id: u64, handle: RowHandle) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.rows.retain(|row| *row != handle);
        if group.rows.is_empty() && (group.put == group.size || !self.open_groups.contains_key(&group.key)) {
            self.groups.remove(&id);
        }
        (0..self.spec.tasks.len()).for_each(|task| self.index_group(id, task));
    }

    /// The oldest group that is ready for every task: what `drop_oldest` may drop.
    pub(crate) fn oldest_unheld_group(&self) -> Option<Vec<RowHandle>> {
        let mut ready = self.ready.first()?.groups.iter();
        let id = ready.find(|id| self.ready.iter().all(|task| task.groups.contains(id)))?;
        self.groups.get(id).map(|group| group.rows.clone())
    }

    /// Rows by state for a task: incomplete, ready, leased, acked.
    pub(crate) fn counts(&self, task: usize) -> [usize; 4] {
        let mut counts = [0; 4];
        for row in self.slots.iter().filter_map(|slot| slot.row.as_ref()) {
            let place = match row.progress[task] {
                Progress::Incomplete => 0,
                Progress::Ready => 1,
                Progress::Leased(_) | Progress::Acking => 2,
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
        self.rows_reserved > 0 || self.leases.values().any(|lease| lease.task == task)
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
