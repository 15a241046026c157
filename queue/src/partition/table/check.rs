//! What must hold between the parts of a table.

use std::collections::HashMap;

use super::{Progress, Table};
use crate::ChunkId;
use crate::invariants::{self, Violation};

impl Table {
    /// Everything that does not agree with the rest: O(rows).
    pub(crate) fn violations(&self) -> Vec<Violation> {
        let rows = self.rows_live + self.rows_reserved;
        let mut checks = vec![
            invariants::within_capacity(rows, self.spec.capacity_rows),
            self.check_slots(),
            self.check_chunks(),
        ];
        checks.extend((0..self.spec.tasks.len()).map(|task| self.check_task(task)));
        checks.extend(self.groups.values().map(|group| {
            let gone = group.rows.iter().filter(|row| self.row(**row).is_err()).count();
            invariants::group_sound(&group.key, group.rows.len() - gone, group.put, group.size).and(
                invariants::counts_agree(
                    &format!("rows of group={}", group.key),
                    group.rows.len() - gone,
                    group.rows.len(),
                ),
            )
        }));
        checks.into_iter().filter_map(Result::err).collect()
    }

    fn check_slots(&self) -> Result<(), Violation> {
        let there = self.slots.iter().filter(|slot| slot.row.is_some()).count();
        let in_groups = self.groups.values().map(|group| group.rows.len()).sum();
        invariants::counts_agree("rows", there, self.rows_live)?;
        invariants::counts_agree("rows of groups", in_groups, self.rows_live)
    }

    /// A task's rows by state add up, and what takers are offered is what is ready.
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
        let in_leases: usize =
            self.leases.values().filter(|lease| lease.task == task).map(|lease| lease.rows.len()).sum();
        let held = self.slots.iter().filter_map(|slot| slot.row.as_ref());
        let held = held.filter(|row| matches!(row.progress[task], Progress::Leased(_))).count();
        // Rows of a lease may have been cleared by their owner.
        if held > in_leases {
            return Err(Violation(format!("task={name} holds rows={held}, its leases rows={in_leases}")));
        }
        Ok(())
    }

    /// A chunk is kept for as many rows as lie in it.
    fn check_chunks(&self) -> Result<(), Violation> {
        let mut counted: HashMap<ChunkId, usize> = HashMap::new();
        for part in self.slots.iter().filter_map(|slot| slot.row.as_ref()).flat_map(|row| &row.parts) {
            *counted.entry(part.chunk).or_default() += 1;
        }
        invariants::counts_agree("chunks", counted.len(), self.chunk_ids().len())?;
        counted.into_iter().try_for_each(|(chunk, rows)| {
            let kept = self.live_in(chunk);
            invariants::counts_agree(&format!("rows of chunk={}", chunk.0), rows, kept)
        })
    }
}
