//! The invariants of a table: of each part, and between parts.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use super::{Group, Progress, RowHandle, Table};
use crate::invariants::{self, Violation};
use crate::stats::TaskStats;
use crate::store::ChunkId;

/// The counts that a table keeps of its rows, at one moment.
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) rows: usize,
    /// The number of rows that have each column.
    pub(crate) columns: BTreeMap<String, usize>,
    /// The tasks, in order of their declaration.
    pub(crate) tasks: Vec<TaskStats>,
}

impl Table {
    pub(crate) fn totals(&self) -> Totals {
        Totals { rows: self.rows_live, columns: self.column_rows(), tasks: self.task_stats() }
    }

    /// Returns all violated invariants, in O(rows).
    pub(crate) fn violations(&self) -> Vec<Violation> {
        let mut checks = vec![
            self.slots.check(self.rows_live, self.puts.rows()),
            self.check_keys_of_rows(),
            self.check_columns_of_rows(),
            self.check_samples_of_groups(),
            self.check_rows_of_groups(),
            self.check_chunks(),
        ];
        checks.extend((0..self.spec.tasks.len()).map(|task| self.check_task(task)));
        checks.extend(self.groups.values().map(|group| self.check_group_sound(group)));
        checks.into_iter().filter_map(Result::err).chain(self.violations_beside_rows()).collect()
    }

    /// Returns the violated invariants of everything except rows and groups.
    pub(crate) fn violations_beside_rows(&self) -> Vec<Violation> {
        let rows = self.rows_live + self.puts.rows();
        let checks = [
            invariants::within_capacity(rows, self.spec.capacity_rows),
            self.puts.check(),
            self.leases.check(),
            self.shares.check(),
            self.tokens.check(),
            self.records.check(),
        ];
        checks.into_iter().filter_map(Result::err).collect()
    }

    /// Returns the violated invariants of the [next groups](Self::next_groups) of a range and of their rows.
    /// Counts of all rows are not compared.
    pub(crate) fn violations_of_groups(&self, range: &mut Range<u64>) -> Vec<Violation> {
        let groups = self.next_groups(range).into_iter();
        groups.filter_map(|(id, group)| self.check_group_found(id, group).err()).collect()
    }

    fn check_group_found(&self, id: u64, group: &Group) -> Result<(), Violation> {
        self.check_group_sound(group)?;
        for (task, index) in self.ready.iter().enumerate() {
            let name = &self.spec.tasks[task].name;
            let is_ready =
                |row: &&RowHandle| self.row(**row).is_ok_and(|row| row.progress[task] == Progress::Ready);
            let ready = group.rows.iter().filter(is_ready).count();
            let what = format!("ready rows of group={} for task={name}", group.key);
            invariants::counts_agree(&what, ready, group.ready[task])?;
            if group.is_ready(task) != index.groups.contains(id) {
                let group = &group.key;
                return Err(Violation(format!("group={group} is wrong among the ready ones of task={name}")));
            }
        }
        group.rows.iter().try_for_each(|row| self.check_row(*row, id))
    }

    /// Checks that a row is found by its key, and that its chunks, its leases and its group are known.
    fn check_row(&self, handle: RowHandle, group: u64) -> Result<(), Violation> {
        let Ok(row) = self.row(handle) else { return Ok(()) };
        let slot = handle.slot;
        if row.group != group {
            return Err(Violation(format!("slot={slot} is among the rows of another group than its own")));
        }
        let key = row.label.as_ref().and_then(|label| label.key.as_ref());
        if let Some(key) = key.filter(|key| self.keys.get(key) != Some(handle)) {
            return Err(Violation(format!("key={key} does not lead to its row slot={slot}")));
        }
        if let Some(part) = row.parts.iter().find(|part| !self.needs(part.chunk)) {
            return Err(Violation(format!("slot={slot} is in chunk={}, which is unknown", part.chunk.0)));
        }
        for (task, progress) in row.progress.iter().enumerate() {
            if let Progress::Leased(id) = progress
                && self.leases.get(*id).is_none_or(|lease| lease.task != task)
            {
                let task = &self.spec.tasks[task].name;
                return Err(Violation(format!(
                    "slot={slot} has lease={id:016x} of task={task}, which is not held"
                )));
            }
        }
        Ok(())
    }

    fn check_keys_of_rows(&self) -> Result<(), Violation> {
        let labelled = self.slots.rows().filter_map(|(handle, row)| {
            let key = row.label.as_ref()?.key.as_ref()?;
            Some((key, handle))
        });
        self.keys.check(labelled)
    }

    fn check_columns_of_rows(&self) -> Result<(), Violation> {
        let mut counted: BTreeMap<&String, usize> = BTreeMap::new();
        for (_, row) in self.slots.rows() {
            let columns: BTreeSet<&String> = row.parts.iter().flat_map(|part| part.columns.iter()).collect();
            for column in columns {
                *counted.entry(column).or_default() += 1;
            }
        }
        self.columns.check(&counted)
    }

    fn check_samples_of_groups(&self) -> Result<(), Violation> {
        let groups = self.groups.iter();
        self.samples.check(groups.filter_map(|(id, group)| Some((*id, group.samples.as_deref()?))))
    }

    fn check_rows_of_groups(&self) -> Result<(), Violation> {
        let in_groups = self.groups.values().map(|group| group.rows.len()).sum();
        invariants::counts_agree("rows of groups", in_groups, self.rows_live)
    }

    fn check_group_sound(&self, group: &Group) -> Result<(), Violation> {
        let there = group.rows.iter().filter(|row| self.row(**row).is_ok()).count();
        // The size of a group by samples counts samples, each of which may have many rows.
        let rows_max = if group.samples.is_some() { usize::MAX } else { group.size };
        invariants::group_sound(&group.key, there, group.put, rows_max)?;
        invariants::counts_agree(&format!("rows of group={}", group.key), there, group.rows.len())
    }

    /// Checks that a task's rows by state add up, and that the counts of ready rows and groups are right.
    fn check_task(&self, task: usize) -> Result<(), Violation> {
        let name = &self.spec.tasks[task].name;
        let [incomplete, ready, leased, acked, away] = self.counts(task);
        let all = incomplete + ready + leased + acked + away;
        invariants::counts_agree(&format!("rows of task={name}"), all, self.rows_live)?;
        let kept = &self.ready[task];
        invariants::counts_agree(&format!("incomplete rows of task={name}"), incomplete, kept.incomplete)?;
        invariants::counts_agree(&format!("ready rows of task={name}"), ready, kept.rows)?;
        let groups = self.groups.values().filter(|group| group.is_ready(task)).count();
        invariants::counts_agree(&format!("ready groups of task={name}"), groups, kept.groups.len())?;
        self.check_leased(task)
    }

    /// Checks that each leased row is among the rows of its lease. A lease may also contain rows that their
    /// owner has cleared.
    fn check_leased(&self, task: usize) -> Result<(), Violation> {
        let held = self.leases.iter().filter(|(_, lease)| lease.task == task);
        let leased: HashSet<_> =
            held.flat_map(|(id, lease)| lease.rows.iter().map(move |row| (id, *row))).collect();
        for (handle, row) in self.slots.rows() {
            if let Progress::Leased(id) = row.progress[task]
                && !leased.contains(&(id, handle))
            {
                let (task, slot) = (&self.spec.tasks[task].name, handle.slot);
                return Err(Violation(format!(
                    "slot={slot} is not among the rows of lease={id:016x} of task={task}"
                )));
            }
        }
        Ok(())
    }

    /// Checks that each chunk counts exactly the rows that are in it.
    fn check_chunks(&self) -> Result<(), Violation> {
        let mut counted: HashMap<ChunkId, usize> = HashMap::new();
        for part in self.slots.rows().flat_map(|(_, row)| &row.parts) {
            *counted.entry(part.chunk).or_default() += 1;
        }
        invariants::counts_agree("chunks", counted.len(), self.chunk_ids().len())?;
        counted.into_iter().try_for_each(|(chunk, rows)| {
            let kept = self.live_in(chunk);
            invariants::counts_agree(&format!("rows of chunk={}", chunk.0), rows, kept)
        })
    }
}
