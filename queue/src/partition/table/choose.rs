//! Choosing the rows of a take.

use std::collections::HashSet;

use super::{Group, Progress, RowHandle, SingleRows, Table};
use crate::error::QueueError;
use crate::take::{Amount, GroupSampler, ReadyGroup, Take};

/// The rows that were chosen for a take.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// The number of each group, with its chosen rows.
    pub(crate) groups: Vec<(u64, Vec<RowHandle>)>,
}

impl Chosen {
    pub(crate) fn rows(&self) -> Vec<RowHandle> {
        self.groups.iter().flat_map(|(_, rows)| rows.iter().copied()).collect()
    }
}

impl Table {
    /// Chooses among the ready rows for `take`. Returns `None` if too few rows are ready. `is_over` means
    /// that no more rows can become ready, so that any number above 0 is enough.
    pub(crate) fn choose(&mut self, task: usize, take: &Take, is_over: bool) -> Option<Chosen> {
        let at_least = if is_over { 1 } else { take.enough() };
        if let Amount::Rows(count) = take.amount {
            return self.choose_rows(task, take, count, at_least);
        }
        // Return early while too few groups are ready.
        if self.ready[task].groups.len() < at_least {
            return None;
        }
        let min_version = take.enforced_version(self.policy_version);
        self.prepare_order(task, take);
        let keys = |id: u64| self.groups.get(&id).map(Group::keys);
        let order = self.ready[task].groups.order(take.sampler, min_version, self.leases.given(), keys);
        let order = order.filter_map(|id| Some((id, self.groups.get(&id)?)));
        let (mut tokens, mut is_full) = (0, false);
        let mut chosen = Vec::new();
        for (id, group) in order {
            match take.amount {
                Amount::Groups(count) | Amount::Rows(count) if chosen.len() == count => break,
                // The first group is always taken, even if it exceeds the budget: it would not fit into a
                // later take either.
                Amount::Tokens(budget) if !chosen.is_empty() && tokens + group.tokens > budget => {
                    is_full = true;
                    break;
                }
                _ => {}
            }
            tokens += group.tokens;
            chosen.push((id, group.rows.clone()));
        }
        // A budget may allow fewer groups than there are ranks.
        let at_least = if is_full { at_least.min(take.at_least) } else { at_least };
        (chosen.len() >= at_least).then_some(Chosen { groups: chosen })
    }

    /// Chooses exactly these rows, if all of them are ready. Returns an error if one of them can never become
    /// ready.
    pub(crate) fn choose_only(&self, task: usize, rows: &[RowHandle]) -> Result<Option<Chosen>, QueueError> {
        let mut groups: Vec<(u64, Vec<RowHandle>)> = Vec::new();
        let mut seen = HashSet::with_capacity(rows.len());
        let mut are_ready = true;
        for handle in rows {
            let row = self.row(*handle)?;
            let RowHandle { slot, generation } = *handle;
            match row.progress[task] {
                Progress::Ready => {}
                Progress::Acked => {
                    let task = self.spec.tasks[task].name.clone();
                    return Err(QueueError::RowConsumed { task, slot, generation });
                }
                _ => are_ready = false,
            }
            if !seen.insert(*handle) {
                let reason = format!("row slot={slot} generation={generation} is asked for twice");
                return Err(QueueError::BadRequest { reason });
            }
            match groups.last_mut() {
                Some((group, rows)) if *group == row.group => rows.push(*handle),
                _ => groups.push((row.group, vec![*handle])),
            }
        }
        Ok(are_ready.then_some(Chosen { groups }))
    }

    /// Chooses groups with a user's sampler.
    pub(crate) fn choose_by(
        &self,
        task: usize,
        take: &Take,
        sampler: &dyn GroupSampler,
        is_over: bool,
    ) -> Result<Option<Chosen>, QueueError> {
        let min_version = take.enforced_version(self.policy_version);
        let fresh = self.ready[task].groups.oldest().filter_map(|id| Some((id, self.groups.get(&id)?)));
        let fresh: Vec<(u64, &Group)> =
            fresh.filter(|(_, group)| group.policy_version >= min_version).collect();
        let views: Vec<ReadyGroup<'_>> = fresh.iter().map(|(_, group)| group.view()).collect();
        let places = sampler.choose(&views, take);
        let mut seen = HashSet::with_capacity(places.len());
        let mut groups = Vec::with_capacity(places.len());
        for place in places {
            let Some((id, group)) = fresh.get(place).filter(|_| seen.insert(place)) else {
                let reason =
                    format!("the sampler chose place={place} of groups={}, or chose it twice", fresh.len());
                return Err(QueueError::BadRequest { reason });
            };
            groups.push((*id, group.rows.clone()));
        }
        let at_least = if is_over { 1 } else { take.enough() };
        Ok((groups.len() >= at_least).then_some(Chosen { groups }))
    }

    fn choose_rows(&mut self, task: usize, take: &Take, count: usize, at_least: usize) -> Option<Chosen> {
        if self.ready[task].rows < at_least {
            return None;
        }
        self.prepare_order(task, take);
        let single = self.ready[task].single.as_ref()?;
        let keys = |id: u64| self.groups.get(&id).map(Group::keys);
        let mut chosen = Vec::new();
        let mut found = 0;
        for id in single.groups.order(
            take.sampler,
            take.enforced_version(self.policy_version),
            self.leases.given(),
            keys,
        ) {
            let first = RowHandle { slot: 0, generation: 0 };
            let ready = single.rows.range((id, 0, first)..(id + 1, 0, first)).map(|(.., handle)| *handle);
            let rows: Vec<RowHandle> = ready.take(count - found).collect();
            found += rows.len();
            chosen.push((id, rows));
            if found == count {
                break;
            }
        }
        if take.share.is_some() {
            // Ranks share single rows, not groups.
            let single = |(id, rows): (u64, Vec<RowHandle>)| rows.into_iter().map(move |row| (id, vec![row]));
            chosen = chosen.into_iter().flat_map(single).collect();
        }
        (found >= at_least).then_some(Chosen { groups: chosen })
    }

    /// Builds the indexes for the take's order, if they do not exist yet.
    fn prepare_order(&mut self, task: usize, take: &Take) {
        let groups = &self.groups;
        let keys = |id: u64| groups.get(&id).map(Group::keys);
        let ready = &mut self.ready[task];
        let min_version = take.enforced_version(self.policy_version);
        if !matches!(take.amount, Amount::Rows(_)) {
            ready.groups.prepare(take.sampler, min_version, keys);
            return;
        }
        let single = ready.single.get_or_insert_with(|| {
            let mut single = SingleRows::default();
            for (handle, row) in self.slots.rows().filter(|(_, row)| row.progress[task] == Progress::Ready) {
                single.rows.insert((row.group, row.place, handle));
                if let Some(group) = groups.get(&row.group) {
                    single.groups.insert(row.group, group.keys());
                }
            }
            single
        });
        single.groups.prepare(take.sampler, min_version, keys);
    }
}
