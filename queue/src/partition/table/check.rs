//! The invariants of a table: of each part, and between parts.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Group, Progress, Table};
use crate::invariants::{self, Violation};
use crate::store::ChunkId;

impl Table {
    /// Returns all violated invariants, in O(rows).
    pub(crate) fn violations(&self) -> Vec<Violation> {
        let rows = self.rows_live + self.puts.rows();
        let mut checks = vec![
            invariants::within_capacity(rows, self.spec.capacity_rows),
            self.slots.check(self.rows_live, self.puts.rows()),
            self.puts.check(),
            self.leases.check(),
            self.shares.check(),
            self.tokens.check(),
            self.records.check(),
            self.check_keys_of_rows(),
            self.check_columns_of_rows(),
            self.check_samples_of_groups(),
            self.check_rows_of_groups(),
            self.check_chunks(),
        ];
        checks.extend((0..self.spec.tasks.len()).map(|task| self.check_task(task)));
        checks.extend(self.groups.values().map(|group| self.check_group_sound(group)));
        checks.into_iter().filter_map(Result::err).collect()
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
            for column in row.parts.iter().flat_map(|part| part.columns.iter()) {
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
        invariants::group_sound(&group.key, there, group.put, group.size)?;
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
                    "slot={slot} is not among the rows of lease={id} of task={task}"
                )));
            }
        }
        Ok(())
    }

    /// Checks that each chunk counts exactly the rows that lie in it.
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
