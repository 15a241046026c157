//! Rows on their way out: leases, acks, drops, and what is free when rows are gone.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use tokio::time::Instant;

use super::{ChunkRows, Freed, Group, LeaseState, Progress, Released, RowHandle, Table};
use crate::{ChunkId, QueueError, Sampler};

/// Acks that are remembered, so that one whose answer was lost can be repeated.
const ACKS_MAX: usize = 4096;

/// What an ack meets.
#[derive(Debug)]
pub(crate) enum BeginAck {
    Begun {
        task: usize,
        rows: Vec<RowHandle>,
    },
    /// A repetition of one that is on its way.
    UnderWay,
    /// A repetition of one that was done.
    Done,
    /// Other members have to ack too.
    Counted,
}

/// Counts rows that were put alike together: their columns are looked up once.
#[derive(Default)]
struct ColumnsOut(Option<(Arc<[String]>, usize)>);

impl ColumnsOut {
    /// Gives out what is counted when other columns come.
    fn add(&mut self, columns: &Arc<[String]>) -> Option<(Arc<[String]>, usize)> {
        match &mut self.0 {
            Some((same, rows)) if Arc::ptr_eq(same, columns) => {
                *rows += 1;
                None
            }
            other => other.replace((Arc::clone(columns), 1)),
        }
    }
}

impl Table {
    pub(crate) fn lease(&mut self, task: usize, rows: Vec<RowHandle>, expires: Instant) -> u64 {
        let id = self.next_lease;
        self.next_lease += 1;
        self.draws += 1;
        self.hold(id, task, rows, expires);
        id
    }

    fn hold(&mut self, id: u64, task: usize, rows: Vec<RowHandle>, expires: Instant) {
        rows.iter().for_each(|row| self.set(*row, task, Progress::Leased(id)));
        self.expiries.insert((expires, id));
        let lease = LeaseState {
            task,
            rows,
            expires,
            is_recorded: false,
            members: 1,
            fetched: BTreeSet::new(),
            acked: BTreeSet::new(),
        };
        self.leases.insert(id, lease);
    }

    /// The holder is elsewhere, and may outlive this process: its lease is written down. `None` where a restart ends it:
    /// its members' acks are only known here.
    pub(crate) fn record_lease(&mut self, id: u64) -> Option<(usize, Vec<RowHandle>)> {
        let lease = self.leases.get_mut(&id).filter(|lease| lease.members == 1)?;
        lease.is_recorded = true;
        Some((lease.task, lease.rows.clone()))
    }

    /// Leases that are written down, in order.
    pub(crate) fn recorded_leases(&self) -> Vec<(u64, usize, Vec<RowHandle>)> {
        let recorded = self.leases.iter().filter(|(_, lease)| lease.is_recorded);
        let mut leases: Vec<_> = recorded.map(|(id, lease)| (*id, lease.task, lease.rows.clone())).collect();
        leases.sort_unstable_by_key(|(id, ..)| *id);
        leases
    }

    /// A lease that was written down, as the journal is read. Rows that an earlier lease held are this one's: that one has
    /// ended, or they would not have been given again.
    pub(crate) fn restore_lease(&mut self, id: u64, task: usize, rows: Vec<RowHandle>, expires: Instant) {
        if self.leases.contains_key(&id) {
            return;
        }
        for row in &rows {
            if let Ok(Progress::Leased(earlier)) = self.row(*row).map(|row| row.progress[task]) {
                // It may have ended with another row.
                let _ = self.nack(earlier);
            }
        }
        let is_free = |row: &RowHandle| self.row(*row).is_ok_and(|row| row.progress[task] == Progress::Ready);
        if rows.iter().all(is_free) {
            self.hold(id, task, rows, expires);
            if let Some(lease) = self.leases.get_mut(&id) {
                lease.is_recorded = true;
            }
        }
    }

    /// Ends that the journal does not know of yet.
    pub(crate) fn take_unrecorded_ends(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unrecorded_ends)
    }

    /// Leases that were acked and whose acks may be repeated, oldest first.
    pub(crate) fn remembered_acks(&self) -> Vec<u64> {
        self.ack_order.iter().copied().collect()
    }

    pub(crate) fn remember_ack(&mut self, id: u64) {
        if self.ack_order.len() >= ACKS_MAX
            && let Some(oldest) = self.ack_order.pop_front()
        {
            self.acks.remove(&oldest);
        }
        self.ack_order.push_back(id);
        self.acks.insert(id, true);
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
        self.give_back(id, &lease);
        Ok(())
    }

    fn give_back(&mut self, id: u64, lease: &LeaseState) {
        if lease.is_recorded {
            self.unrecorded_ends.push(id);
        }
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
                self.give_back(id, &lease);
            }
        }
        None
    }

    /// Ends a lease whose rows are consumed as soon as that is durable.
    pub(crate) fn begin_ack(&mut self, id: u64, member: u32) -> Result<BeginAck, QueueError> {
        match self.acks.get(&id) {
            Some(false) => return Ok(BeginAck::UnderWay),
            Some(true) => return Ok(BeginAck::Done),
            None => {}
        }
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.acked.insert(member);
            if lease.acked.len() < lease.members as usize {
                return Ok(BeginAck::Counted);
            }
        }
        let LeaseState { task, rows, .. } = self.end_lease(id)?;
        rows.iter().for_each(|row| self.set(*row, task, Progress::Leaving));
        self.acks.insert(id, false);
        Ok(BeginAck::Begun { task, rows })
    }

    pub(crate) fn undo_ack(&mut self, id: u64, task: usize, rows: &[RowHandle]) {
        self.acks.remove(&id);
        rows.iter().for_each(|row| self.set(*row, task, Progress::Ready));
    }

    /// Consumes the rows of a lease, and remembers that it did.
    pub(crate) fn finish_ack_of(&mut self, id: u64, task: usize, rows: &[RowHandle]) -> Released {
        self.remember_ack(id);
        self.finish_ack(task, rows)
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
        let mut columns = ColumnsOut::default();
        let mut groups: BTreeMap<u64, (HashSet<RowHandle>, u64)> = BTreeMap::new();
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
            self.kib_live -= row.kib;
            released.size.rows += 1;
            released.size.kib += row.kib;
            match why {
                Freed::Acked => self.dispositions.acked += 1,
                Freed::Dropped => self.dispositions.dropped += 1,
                Freed::Cleared | Freed::ClearedAll => self.dispositions.cleared += 1,
                Freed::Lost => self.dispositions.lost += 1,
                Freed::Stale => self.dispositions.stale += 1,
            }
            // The row is counted out of what it was for its last task.
            self.ready.iter_mut().for_each(|ready| ready.acked -= 1);
            for part in &row.parts {
                if let Some((of, rows)) = columns.add(&part.columns) {
                    self.count_columns_out(&of, rows);
                }
                self.leave_chunk(part.chunk, &mut released);
            }
            if let Some(key) = row.label.and_then(|label| label.key) {
                self.keys.remove(&key);
            }
            let (gone, tokens) = groups.entry(row.group).or_default();
            gone.insert(*handle);
            *tokens += u64::from(row.length);
        }
        for (group, (gone, tokens)) in groups {
            self.leave_group(group, &gone, tokens);
        }
        if let Some((of, rows)) = columns.0 {
            self.count_columns_out(&of, rows);
        }
        if why == Freed::ClearedAll {
            self.forget_empty_groups();
        }
        released
    }

    fn leave_chunk(&mut self, id: ChunkId, released: &mut Released) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        chunk.live -= 1;
        if chunk.live == 0 {
            self.chunks.remove(&id);
            self.away.remove(&id);
            released.chunks.push(id);
            released.sparse.retain(|sparse| *sparse != id);
        } else if chunk.live * 2 < chunk.rows.len() && released.sparse.last() != Some(&id) {
            released.sparse.push(id);
        }
    }

    /// The payload of a chunk is out of reach, or within it again. Its rows are not given out until it is.
    pub(crate) fn set_away(&mut self, chunk: ChunkId, is_away: bool) {
        let is_change = match is_away {
            true => self.chunks.contains_key(&chunk) && self.away.insert(chunk),
            false => self.away.remove(&chunk),
        };
        if !is_change {
            return;
        }
        for (handle, _) in self.chunk_rows(chunk) {
            let Ok(row) = self.row_mut(handle) else { continue };
            row.away = if is_away { row.away + 1 } else { row.away.saturating_sub(1) };
            let is_here = row.away == 0;
            for task in 0..self.spec.tasks.len() {
                let progress = self.row(handle).map(|row| row.progress[task]);
                match progress {
                    Ok(Progress::Ready) if !is_here => self.set(handle, task, Progress::Away),
                    Ok(Progress::Away) if is_here => self.set(handle, task, Progress::Ready),
                    _ => {}
                }
            }
        }
    }

    /// All rows of the groups that need any of these chunks.
    pub(crate) fn rows_of_groups_in(&self, chunks: &[ChunkId]) -> Vec<RowHandle> {
        let rows = chunks.iter().flat_map(|chunk| self.chunk_rows(*chunk));
        let groups: BTreeSet<u64> =
            rows.filter_map(|(handle, _)| self.row(handle).ok()).map(|row| row.group).collect();
        groups.iter().filter_map(|id| self.groups.get(id)).flat_map(|group| group.rows.clone()).collect()
    }

    /// The rows that still need a chunk, with their places in it.
    pub(crate) fn chunk_rows(&self, chunk: ChunkId) -> Vec<(RowHandle, u32)> {
        let place = |handle: &RowHandle| {
            let part = self.row(*handle).ok()?.parts.iter().find(|part| part.chunk == chunk)?;
            Some((*handle, part.row))
        };
        self.chunks.get(&chunk).map_or_else(Vec::new, |rows| rows.rows.iter().filter_map(place).collect())
    }

    /// How many rows still need a chunk, of how many that it was written with.
    pub(crate) fn live_share(&self, chunk: ChunkId) -> (usize, usize) {
        self.chunks.get(&chunk).map_or((0, 0), |rows| (rows.live, rows.rows.len()))
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
        let was_away = self.away.remove(&from);
        if moved.live > 0 {
            self.chunks.insert(to, moved);
            if was_away {
                self.away.insert(to);
            }
        }
    }

    /// Rows with so many tokens have left their group.
    fn leave_group(&mut self, id: u64, gone: &HashSet<RowHandle>, tokens: u64) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if gone.len() == group.rows.len() {
            group.rows.clear();
        } else {
            group.rows.retain(|row| !gone.contains(row));
        }
        group.tokens -= tokens;
        let is_complete = match &group.samples {
            Some(samples) => samples.is_closed(),
            None => group.put == group.size || !self.open_groups.contains_key(&group.key),
        };
        let is_over = group.rows.is_empty() && is_complete;
        (0..self.spec.tasks.len()).for_each(|task| self.index_group(id, task));
        if is_over {
            self.forget_group(id);
        }
    }

    /// Takes the oldest group that is ready for every task out of every taker's reach: what `drop_oldest` may drop.
    pub(crate) fn begin_drop(&mut self) -> Option<Vec<RowHandle>> {
        let id = self.ready.first()?.groups.oldest().find(|id| self.is_ready_for_all(*id))?;
        let rows = self.groups.get(&id)?.rows.clone();
        self.set_for_all_tasks(&rows, Progress::Leaving);
        Some(rows)
    }

    fn is_ready_for_all(&self, id: u64) -> bool {
        self.ready.iter().all(|task| task.groups.contains(id))
    }

    /// Takes groups of a version below `min_version` that are ready for every task, and so held by nobody, out of every
    /// taker's reach.
    pub(crate) fn begin_drop_stale(&mut self, task: usize, min_version: u64) -> Vec<RowHandle> {
        let Some(ready) = self.ready.get_mut(task) else { return Vec::new() };
        let groups = &self.groups;
        ready.groups.prepare(Sampler::Fifo, min_version, |id| groups.get(&id).map(Group::keys));
        let stale = self.ready[task].groups.below(min_version).filter(|id| self.is_ready_for_all(*id));
        let rows: Vec<RowHandle> = stale
            .filter_map(|id| self.groups.get(&id))
            .flat_map(|group| group.rows.iter().copied())
            .collect();
        self.set_for_all_tasks(&rows, Progress::Leaving);
        rows
    }

    pub(crate) fn undo_drop(&mut self, rows: &[RowHandle]) {
        self.set_for_all_tasks(rows, Progress::Ready);
    }

    fn set_for_all_tasks(&mut self, rows: &[RowHandle], to: Progress) {
        for task in 0..self.spec.tasks.len() {
            rows.iter().for_each(|row| self.set(*row, task, to));
        }
    }
}
