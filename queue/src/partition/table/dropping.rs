//! Groups that may be dropped: complete groups whose rows are ready or acked for every task, so that no lease
//! holds any of them.
//!
//! No search is needed to find them: the first drop counts them, and every later change updates the count.

use super::{Group, GroupIndex, Progress, RowHandle, Table};
use crate::take::Sampler;

fn is_settled(progress: Progress) -> bool {
    matches!(progress, Progress::Ready | Progress::Acked)
}

impl Group {
    fn is_droppable(&self, tasks: usize) -> bool {
        self.is_whole() && !self.rows.is_empty() && self.settled == self.rows.len() * tasks
    }
}

impl Table {
    /// Counts the change of a row's state for a task.
    pub(super) fn count_settled(&mut self, group: u64, from: Progress, to: Progress) {
        if self.droppable.is_none() || is_settled(from) == is_settled(to) {
            return;
        }
        let Some(state) = self.groups.get_mut(&group) else { return };
        if is_settled(to) {
            state.settled += 1;
        } else {
            state.settled -= 1;
        }
        self.index_droppable(group);
    }

    /// Updates the count when rows that all tasks have acked leave the group.
    pub(super) fn uncount_settled(&mut self, group: u64, rows: usize) {
        if self.droppable.is_none() {
            return;
        }
        let tasks = self.spec.tasks.len();
        if let Some(state) = self.groups.get_mut(&group) {
            state.settled -= rows * tasks;
        }
        self.index_droppable(group);
    }

    /// Adds a group to the index of groups that may be dropped, or removes it.
    pub(super) fn index_droppable(&mut self, id: u64) {
        let Some(droppable) = &mut self.droppable else { return };
        let Some(group) = self.groups.get(&id) else { return };
        if group.is_droppable(self.spec.tasks.len()) {
            droppable.insert(id, group.keys());
        } else {
            droppable.remove(id, group.keys());
        }
    }

    /// Builds the index of groups that may be dropped, once, in O(rows).
    fn prepare_drops(&mut self) {
        if self.droppable.is_some() {
            return;
        }
        let tasks = self.spec.tasks.len();
        let mut droppable = GroupIndex::default();
        for (id, group) in &mut self.groups {
            let rows = group.rows.iter().filter_map(|row| self.slots.row(*row));
            group.settled =
                rows.map(|row| row.progress.iter().filter(|progress| is_settled(**progress)).count()).sum();
            if group.is_droppable(tasks) {
                droppable.insert(*id, group.keys());
            }
        }
        self.droppable = Some(droppable);
    }

    /// Makes the oldest group that may be dropped unavailable to takes, and returns its rows.
    pub(crate) fn begin_drop(&mut self) -> Option<Vec<RowHandle>> {
        self.prepare_drops();
        let id = self.droppable.as_ref()?.oldest().next()?;
        let rows = self.groups.get(&id)?.rows.clone();
        self.leave_reach(&rows);
        Some(rows)
    }

    /// Makes all groups below `min_version` that may be dropped unavailable to takes, and returns their rows.
    pub(crate) fn begin_drop_stale(&mut self, min_version: u64) -> Vec<RowHandle> {
        if min_version == 0 {
            return Vec::new();
        }
        self.prepare_drops();
        let Some(droppable) = &mut self.droppable else { return Vec::new() };
        let groups = &self.groups;
        droppable.prepare(Sampler::Fifo, min_version, |id| groups.get(&id).map(Group::keys));
        let stale = droppable.below(min_version).filter_map(|id| groups.get(&id));
        let rows: Vec<RowHandle> = stale.flat_map(|group| group.rows.iter().copied()).collect();
        self.leave_reach(&rows);
        rows
    }

    fn leave_reach(&mut self, rows: &[RowHandle]) {
        self.replace_for_all_tasks(rows, Progress::Ready, Progress::Leaving);
    }

    pub(crate) fn undo_drop(&mut self, rows: &[RowHandle]) {
        self.replace_for_all_tasks(rows, Progress::Leaving, Progress::Ready);
    }

    fn replace_for_all_tasks(&mut self, rows: &[RowHandle], from: Progress, to: Progress) {
        for task in 0..self.spec.tasks.len() {
            for row in rows {
                if self.row(*row).is_ok_and(|row| row.progress[task] == from) {
                    self.set(*row, task, to);
                }
            }
        }
    }
}
