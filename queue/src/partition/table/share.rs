//! Batches that several consumers take together.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::choose::Chosen;
use super::{RowHandle, Table};
use crate::Share;
use crate::partition::balance::balance;

/// Consumers that share batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Team {
    task: usize,
    ranks: u32,
    equal_counts: bool,
    members: u32,
}

impl Team {
    fn new(task: usize, share: &Share) -> Self {
        Self { task, ranks: share.ranks, equal_counts: share.equal_counts, members: share.members }
    }
}

/// For each rank of a team: leases that not every member has fetched.
pub(super) type Waiting = Vec<VecDeque<u64>>;

impl Table {
    /// The oldest share of a rank that this member has not fetched.
    pub(crate) fn next_share(&mut self, task: usize, share: &Share) -> Option<(u64, Vec<RowHandle>)> {
        let waiting = self.shares.get_mut(&Team::new(task, share))?.get_mut(share.rank as usize)?;
        waiting.retain(|lease| self.leases.contains_key(lease));
        let (place, id) = waiting.iter().enumerate().find_map(|(place, id)| {
            let is_fresh = self.leases.get_mut(id)?.fetched.insert(share.member);
            is_fresh.then_some((place, *id))
        })?;
        let lease = self.leases.get(&id)?;
        let rows = lease.rows.clone();
        if lease.fetched.len() == share.members as usize {
            waiting.remove(place);
        }
        Some((id, rows))
    }

    /// Leases a batch as one share for each rank. With equal counts the groups that are over stay.
    pub(crate) fn split(&mut self, task: usize, mut chosen: Chosen, share: &Share, expires: Instant) {
        let ranks = share.ranks as usize;
        if share.equal_counts {
            chosen.groups.truncate(chosen.groups.len() / ranks * ranks);
        }
        // Without known lengths rows stand for tokens.
        let tokens = chosen.groups.iter().map(|(id, _)| self.groups.get(id).map_or(0, |group| group.tokens));
        let mut weights: Vec<u64> = tokens.collect();
        if weights.iter().all(|weight| *weight == 0) {
            weights = chosen.groups.iter().map(|(_, rows)| rows.len() as u64).collect();
        }
        let parts = balance(&weights, ranks, share.equal_counts);
        let team = Team::new(task, share);
        for (rank, places) in parts.into_iter().enumerate().filter(|(_, places)| !places.is_empty()) {
            let rows = places.iter().flat_map(|place| chosen.groups[*place].1.iter().copied()).collect();
            let id = self.lease(task, rows, expires);
            if let Some(lease) = self.leases.get_mut(&id) {
                lease.members = share.members;
            }
            self.shares.entry(team).or_insert_with(|| vec![VecDeque::new(); ranks])[rank].push_back(id);
        }
    }
}
