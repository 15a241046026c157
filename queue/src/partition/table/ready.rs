//! The state of each row for each task, and the ready rows. Sets of ready rows are updated with each change,
//! so no search is needed.

use std::collections::BTreeSet;

use super::super::waiting::Waiters;
use super::index::GroupIndex;
use super::{Row, RowHandle, Table, has_column};
use crate::config::TaskSpec;
use crate::stats::TaskStats;

/// The state of a row for one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The row lacks columns that the task needs.
    Incomplete,
    Ready,
    /// The row would be ready if the storage units of its payload answered.
    Away,
    Leased(u64),
    /// The row's ack or drop is not durable yet.
    Leaving,
    /// The row's lease ended without an ack, and the table gives each row once.
    Returned,
    Acked,
}

/// The ready rows of a task.
#[derive(Debug, Default)]
pub(super) struct Ready {
    pub(super) rows: usize,
    /// The groups whose rows are all ready.
    pub(super) groups: GroupIndex,
    /// The index for takes of single rows. It is built for the first such take.
    pub(super) single: Option<SingleRows>,
    /// The number of rows that lack columns of the task.
    pub(super) incomplete: usize,
    /// The number of rows that are leased or returned, or whose ack or drop is not durable yet.
    pub(super) held: usize,
    /// The number of rows that would be ready if the storage units of their payload answered.
    pub(super) away: usize,
    /// The number of rows that the task has acked and that at least one other task has not.
    pub(super) acked: usize,
    pub(super) waiters: Waiters,
    /// Whether the next call of `wake` must wake takes: rows became ready, or waiting takes must look again.
    pub(super) must_wake: bool,
}

impl Ready {
    pub(super) fn count_of(&mut self, progress: Progress) -> &mut usize {
        match progress {
            Progress::Incomplete => &mut self.incomplete,
            Progress::Ready => &mut self.rows,
            Progress::Away => &mut self.away,
            Progress::Leased(_) | Progress::Leaving | Progress::Returned => &mut self.held,
            Progress::Acked => &mut self.acked,
        }
    }

    pub(super) fn count(&mut self, from: Progress, to: Progress) {
        *self.count_of(from) -= 1;
        *self.count_of(to) += 1;
    }
}

/// The index for takes of single rows.
#[derive(Debug, Default)]
pub(super) struct SingleRows {
    /// The ready rows, by group and index in the group.
    pub(super) rows: BTreeSet<(u64, usize, RowHandle)>,
    /// The groups that have at least one ready row.
    pub(super) groups: GroupIndex,
}

impl Table {
    /// Makes the row ready for each task whose columns it has.
    pub(super) fn complete(&mut self, handle: RowHandle) {
        for task in 0..self.spec.tasks.len() {
            let Ok(row) = self.row(handle) else { return };
            let has = |name: &String| has_column(&row.parts, name);
            if row.progress[task] == Progress::Incomplete && self.spec.tasks[task].columns.iter().all(has) {
                self.set(handle, task, Progress::Ready);
            }
        }
    }

    /// Changes the state of a row for a task, and updates every index. Only this function changes states.
    pub(super) fn set(&mut self, handle: RowHandle, task: usize, to: Progress) {
        let is_acked = |row: &Row| row.progress[task] == Progress::Acked;
        if to == Progress::Acked || self.row(handle).is_ok_and(is_acked) {
            self.keep_row(handle);
        }
        let Ok(row) = self.row_mut(handle) else { return };
        let to = if to == Progress::Ready && row.away > 0 { Progress::Away } else { to };
        let from = std::mem::replace(&mut row.progress[task], to);
        let (group_id, place) = (row.group, row.place);
        self.ready[task].count(from, to);
        self.count_settled(group_id, from, to);
        if (from == Progress::Ready) == (to == Progress::Ready) {
            return;
        }
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let ready = &mut self.ready[task];
        if to == Progress::Ready {
            group.ready[task] += 1;
            ready.must_wake = true;
        } else {
            group.ready[task] -= 1;
        }
        if let Some(single) = &mut ready.single {
            if to == Progress::Ready {
                single.rows.insert((group_id, place, handle));
            } else {
                single.rows.remove(&(group_id, place, handle));
            }
        }
        self.index_group(group_id, task);
    }

    /// Adds a group to the indexes of takes if takes can get rows of it, and otherwise removes it. Before a
    /// change of a group's sort keys, call [`unindex_group`](Self::unindex_group).
    pub(super) fn index_group(&mut self, id: u64, task: usize) {
        let Some(group) = self.groups.get(&id) else { return };
        let ready = &mut self.ready[task];
        if group.is_ready(task) {
            ready.must_wake = true;
            ready.groups.insert(id, group.keys());
        } else {
            ready.groups.remove(id, group.keys());
        }
        if let Some(single) = &mut ready.single {
            if group.ready[task] > 0 {
                single.groups.insert(id, group.keys());
            } else {
                single.groups.remove(id, group.keys());
            }
        }
    }

    pub(super) fn unindex_group(&mut self, id: u64) {
        let Some(group) = self.groups.get(&id) else { return };
        for ready in &mut self.ready {
            ready.groups.remove(id, group.keys());
            if let Some(single) = &mut ready.single {
                single.groups.remove(id, group.keys());
            }
        }
        if let Some(droppable) = &mut self.droppable {
            droppable.remove(id, group.keys());
        }
    }

    pub(crate) fn ready_group_count(&self, task: usize) -> usize {
        self.ready[task].groups.len()
    }

    /// Counts rows by their state for a task: incomplete, ready, held, acked, away. O(rows).
    pub(crate) fn counts(&self, task: usize) -> [usize; 5] {
        let mut counts = [0; 5];
        for (_, row) in self.slots.rows() {
            let place = match row.progress[task] {
                Progress::Incomplete => 0,
                Progress::Ready => 1,
                Progress::Leased(_) | Progress::Leaving | Progress::Returned => 2,
                Progress::Acked => 3,
                Progress::Away => 4,
            };
            counts[place] += 1;
        }
        counts
    }

    pub(crate) fn ready_row_count(&self, task: usize) -> usize {
        self.ready[task].rows
    }

    pub(crate) fn task_stats(&self) -> Vec<TaskStats> {
        let stats = |(task, ready): (&TaskSpec, &Ready)| TaskStats {
            task: task.name.clone(),
            incomplete_rows: ready.incomplete,
            ready_rows: ready.rows,
            ready_groups: ready.groups.len(),
            leased_rows: ready.held,
            away_rows: ready.away,
            acked_rows: ready.acked,
        };
        self.spec.tasks.iter().zip(&self.ready).map(stats).collect()
    }

    /// Whether rows can still become ready for the task without a new put. Acks and drops in progress are
    /// assumed to succeed.
    pub(crate) fn may_become_ready(&self, task: usize) -> bool {
        self.puts.rows() > 0
            || self.ready[task].incomplete > 0
            || self.ready[task].away > 0
            // Rows that are given once do not come back from their leases.
            || !self.gives_once && self.leases.iter().any(|(_, lease)| lease.task == task)
    }

    pub(in crate::partition) fn waiters(&mut self, task: usize) -> &mut Waiters {
        &mut self.ready[task].waiters
    }

    /// Wakes the takes that newly ready rows can serve.
    pub(crate) fn wake(&mut self) {
        for ready in &mut self.ready {
            if !std::mem::take(&mut ready.must_wake) {
                continue;
            }
            match self.closed {
                true => ready.waiters.wake_all(),
                false => ready.waiters.wake(ready.groups.len(), ready.rows),
            }
        }
    }

    /// Wakes the takes that a change can serve, and the takes that name their rows, because these rows may be
    /// gone. After the end of the puts, it wakes all takes, because any change may be the last change.
    pub(crate) fn wake_after_change(&mut self) {
        for ready in &mut self.ready {
            ready.must_wake |= self.closed;
            ready.waiters.wake_after_change();
        }
        self.wake();
    }

    /// Wakes another take, because a take that was woken for rows of the task ended before it read the table.
    pub(in crate::partition) fn wake_again(&mut self, task: usize) {
        self.ready[task].must_wake = true;
        self.wake();
    }

    /// Raises the newest policy version. Takes that depend on versions check the table again.
    pub(crate) fn raise_version(&mut self, policy_version: u64) {
        if policy_version > self.policy_version {
            self.policy_version = policy_version;
            self.ready.iter_mut().for_each(|ready| ready.waiters.wake_lookers());
        }
    }
}
