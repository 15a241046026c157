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

/// Teams that are kept in mind though none of their shares waits.
const TEAMS_MAX: usize = 64;

/// The shares of a team.
#[derive(Debug)]
pub(super) struct Waiting {
    /// For each rank: leases that not every member has fetched.
    ranks: Vec<VecDeque<u64>>,
    /// Who is served first where not everybody is.
    next: usize,
}

impl Table {
    /// The oldest share of a rank that this member has not fetched.
    pub(crate) fn next_share(&mut self, task: usize, share: &Share) -> Option<(u64, Vec<RowHandle>)> {
        let waiting = self.shares.get_mut(&Team::new(task, share))?.ranks.get_mut(share.rank as usize)?;
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

    /// Leases a batch as one share for each rank; says whether anything was leased. With equal counts the groups that are
    /// over stay. Where there are fewer groups than ranks these have their turns.
    pub(crate) fn split(&mut self, task: usize, chosen: Chosen, share: &Share, expires: Instant) -> bool {
        let ranks = share.ranks as usize;
        let mut groups = chosen.groups;
        if share.equal_counts {
            groups.truncate(groups.len() / ranks * ranks);
        }
        if groups.is_empty() {
            return false;
        }
        // Without known lengths rows stand for tokens.
        let mut weights: Vec<u64> = groups.iter().map(|(_, rows)| self.tokens_of(rows)).collect();
        if weights.iter().all(|weight| *weight == 0) {
            weights = groups.iter().map(|(_, rows)| rows.len() as u64).collect();
        }
        let mut parts = balance(&weights, ranks.min(groups.len()), share.equal_counts);
        parts.retain(|places| !places.is_empty());
        let team = Team::new(task, share);
        if self.shares.len() >= TEAMS_MAX && !self.shares.contains_key(&team) {
            let leases = &self.leases;
            let is_waited_for = |lease: &u64| leases.contains_key(lease);
            self.shares.retain(|_, waiting| waiting.ranks.iter().flatten().any(is_waited_for));
        }
        let fresh = || Waiting { ranks: vec![VecDeque::new(); ranks], next: 0 };
        let first = self.shares.entry(team).or_insert_with(fresh).next;
        for (turn, places) in parts.iter().enumerate() {
            let rows = places.iter().flat_map(|place| groups[*place].1.iter().copied()).collect();
            let id = self.lease(task, rows, expires);
            if let Some(lease) = self.leases.get_mut(&id) {
                lease.members = share.members;
            }
            if let Some(waiting) = self.shares.get_mut(&team) {
                waiting.ranks[(first + turn) % ranks].push_back(id);
                waiting.next = (first + parts.len()) % ranks;
            }
        }
        // The other ranks' shares are there.
        self.ready[task].is_news = true;
        true
    }

    fn tokens_of(&self, rows: &[RowHandle]) -> u64 {
        rows.iter().filter_map(|row| self.row(*row).ok()).map(|row| u64::from(row.length)).sum()
    }
}
