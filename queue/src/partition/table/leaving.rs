//! Rows that leave the table by acks, drops or clears, and the resources that become free.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::slice::from_ref;
use std::sync::Arc;

use super::{Freed, Progress, Released, RowHandle, Table, has_column};
use crate::stats::{Disposition, GroupFate};
use crate::store::ChunkId;

/// Counts consecutive rows with the same columns, so that their columns are looked up once.
#[derive(Default)]
struct ColumnsOut(Option<(Arc<[String]>, usize)>);

impl ColumnsOut {
    /// Counts a row. Returns the previous columns and their count if the columns differ.
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
    /// Consumes the rows of a lease, and remembers the ack.
    pub(crate) fn finish_ack_of(&mut self, id: u64, task: usize, rows: &[RowHandle]) -> Released {
        self.leases.remember_ack(id);
        self.rewrites.end_lease(rows);
        let mut released = self.finish_ack(task, rows);
        if let Some(more) = self.drop_read_parts() {
            released.append(more);
        }
        released
    }

    /// Consumes rows for a task. Frees the rows that all tasks have acked.
    pub(crate) fn finish_ack(&mut self, task: usize, rows: &[RowHandle]) -> Released {
        rows.iter().for_each(|row| self.set(*row, task, Progress::Acked));
        let consumed: Vec<RowHandle> = rows
            .iter()
            .filter(|row| self.row(**row).is_ok_and(|row| row.progress.iter().all(|p| *p == Progress::Acked)))
            .copied()
            .collect();
        self.remove(&consumed, Freed::Acked)
    }

    /// Frees rows in any state.
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
            let Some(row) = self.slots.take(*handle) else { continue };
            self.rows_live -= 1;
            self.kib_live -= row.kib();
            self.rewrites.forget(*handle);
            released.size.rows += 1;
            released.size.kib += row.kib();
            match why {
                Freed::Acked => self.dispositions.acked += 1,
                Freed::Dropped => self.dispositions.dropped += 1,
                Freed::Cleared | Freed::ClearedAll => self.dispositions.cleared += 1,
                Freed::Lost => self.dispositions.lost += 1,
                Freed::Stale => self.dispositions.stale += 1,
            }
            // `set` has counted the row as acked for every task, so the row is subtracted from these counts.
            self.ready.iter_mut().for_each(|ready| ready.acked -= 1);
            for (at, part) in row.parts.iter().enumerate() {
                let is_new = |name: &&String| !has_column(&row.parts[..at], name);
                if at == 0 || part.columns.iter().all(|name| is_new(&name)) {
                    if let Some((of, rows)) = columns.add(&part.columns) {
                        self.columns.leave(&of, rows);
                    }
                } else {
                    // Only the new columns are subtracted: the other columns of the part replaced columns of
                    // an earlier part, and a column counts once per row.
                    let new = part.columns.iter().filter(is_new);
                    new.for_each(|name| self.columns.leave(from_ref(name), 1));
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
            self.columns.leave(&of, rows);
        }
        if why == Freed::ClearedAll {
            self.forget_empty_groups();
        }
        self.leave_chunks(left, &mut released);
        self.shrink_maps();
        released
    }

    /// Shrinks the maps that were once much larger.
    fn shrink_maps(&mut self) {
        shrink_map(&mut self.open_groups);
        self.keys.shrink();
        self.chunks.shrink();
        self.slots.shrink(self.rows_live + self.puts.rows());
    }

    /// Removes rows with this many tokens from their group.
    fn leave_group(&mut self, id: u64, gone: &HashSet<RowHandle>, tokens: u64, why: Freed) {
        self.uncount_settled(id, gone.len());
        let Some(group) = self.groups.get_mut(&id) else { return };
        // The revision of the change in progress.
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
            // Consumers of single rows are ahead of the producer: more rows of the group will follow.
            Freed::Acked => {}
            // `forget_empty_groups` removes the group.
            Freed::ClearedAll => {}
            // If the group were not given up, later rows would be delivered as if they were the whole group.
            Freed::Lost => self.give_up_group(id),
            _ if !by_samples => self.give_up_group(id),
            _ => {}
        }
    }
}

/// Shrinks a map that was once much larger.
pub(super) fn shrink_map<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>) {
    const KEPT: usize = 4096;
    if map.capacity() > KEPT && map.len() * 8 < map.capacity() {
        map.shrink_to(map.len() * 2);
    }
}
