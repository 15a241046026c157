//! Rows on their way out: leases, acks, drops, and what is free when rows are gone.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use tokio::time::Instant;

use super::fates::{Disposition, GroupFate};
use super::{Freed, LeaseState, Progress, Released, RowHandle, Table};
use crate::inspect::LeaseInspection;
use crate::journal::RECORD_ROWS_MAX;
use crate::{ChunkId, QueueError};

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
            holders: Vec::new(),
            members: 1,
            fetched: BTreeSet::new(),
            acked: BTreeSet::new(),
        };
        self.leases.insert(id, lease);
    }

    /// Who has it; consumers that get the same rows are named each.
    pub(crate) fn name_holder(&mut self, id: u64, holder: &str) {
        if let Some(lease) = self.leases.get_mut(&id)
            && !lease.holders.iter().any(|known| known == holder)
        {
            lease.holders.push(holder.to_owned());
        }
    }

    /// Leases that are held, in order.
    pub(crate) fn held_leases(&self, now: Instant) -> Vec<LeaseInspection> {
        let inspect = |(id, lease): (&u64, &LeaseState)| LeaseInspection {
            lease: *id,
            task: self.spec.tasks[lease.task].name.clone(),
            holders: lease.holders.clone(),
            rows: lease.rows.len(),
            members: lease.members,
            acked_members: lease.acked.len(),
            expires_in_ms: lease.expires.saturating_duration_since(now).as_millis() as u64,
        };
        let mut leases: Vec<_> = self.leases.iter().map(inspect).collect();
        leases.sort_unstable_by_key(|lease| lease.lease);
        leases
    }

    /// The holder is elsewhere, and may outlive this process: its lease is written down. `None` where a restart ends it:
    /// its members' acks are only known here, or it has more rows than one record.
    pub(crate) fn record_lease(&mut self, id: u64) -> Option<(usize, Vec<RowHandle>)> {
        let may_be = |lease: &&mut LeaseState| lease.members == 1 && lease.rows.len() <= RECORD_ROWS_MAX;
        let lease = self.leases.get_mut(&id).filter(may_be)?;
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
        // Also where all of its rows are gone: who waits for the end waits for leases.
        self.ready[lease.task].is_news = true;
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
        rows.iter().for_each(|row| self.keep_row(*row));
        let mut released = Released::default();
        let mut columns = ColumnsOut::default();
        let mut left: BTreeSet<ChunkId> = BTreeSet::new();
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
            self.free_slot(handle.slot);
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
                if self.chunks.leave(part.chunk, part.bytes) {
                    released.chunks.push(part.chunk);
                } else {
                    left.insert(part.chunk);
                }
            }
            if let Some(key) = row.label.and_then(|label| label.key) {
                self.keys.remove(&key);
            }
            let (gone, tokens) = groups.entry(row.group).or_default();
            gone.insert(*handle);
            *tokens += u64::from(row.length);
        }
        for (group, (gone, tokens)) in groups {
            self.leave_group(group, &gone, tokens, why);
        }
        if let Some((of, rows)) = columns.0 {
            self.count_columns_out(&of, rows);
        }
        if why == Freed::ClearedAll {
            self.forget_empty_groups();
        }
        self.leave_chunks(left, &mut released);
        self.shrink_maps();
        released
    }

    /// Gives back what maps keep that were once much larger.
    fn shrink_maps(&mut self) {
        shrink_map(&mut self.open_groups);
        shrink_map(&mut self.keys);
        self.chunks.shrink();
        self.shrink_slots();
    }

    /// Rows with so many tokens have left their group.
    fn leave_group(&mut self, id: u64, gone: &HashSet<RowHandle>, tokens: u64, why: Freed) {
        self.uncount_settled(id, gone.len());
        let Some(group) = self.groups.get_mut(&id) else { return };
        // The change that is under way.
        let revision = self.revision + 1;
        let (rows, fate) = (gone.len(), Disposition::from(why));
        self.fates.note(GroupFate { revision, group: group.key.clone(), rows, fate });
        if gone.len() == group.rows.len() {
            group.rows.clear();
        } else {
            group.rows.retain(|row| !gone.contains(row));
        }
        group.tokens -= tokens;
        (0..self.spec.tasks.len()).for_each(|task| self.index_group(id, task));
        self.index_droppable(id);
        let Some(group) = self.groups.get(&id).filter(|group| group.rows.is_empty()) else { return };
        let (is_whole, by_samples) = (group.is_whole(), group.samples.is_some());
        match why {
            _ if is_whole => self.forget_group(id),
            // Consumers of single rows are faster than the producer: the rest is still to come.
            Freed::Acked => {}
            // Forgotten with all others.
            Freed::ClearedAll => {}
            // More of it would be given as if it were the whole group.
            Freed::Lost => self.give_up_group(id),
            _ if !by_samples => self.give_up_group(id),
            _ => {}
        }
    }
}

/// Gives back what a map keeps that was once much larger.
pub(super) fn shrink_map<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>) {
    const KEPT: usize = 4096;
    if map.capacity() > KEPT && map.len() * 8 < map.capacity() {
        map.shrink_to(map.len() * 2);
    }
}
