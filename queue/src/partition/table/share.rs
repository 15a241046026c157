//! Shares: batches that several consumers take together.
//!
//! # Invariants
//! Each rank of a team has a queue of leases, and each team has a rank that is served next. A lease is in at
//! most one of these queues, and leaves it when every member of the rank has fetched it.

use std::collections::{HashMap, HashSet, VecDeque};

use tokio::time::Instant;

use super::choose::Chosen;
use super::leases::Leases;
use super::{RowHandle, Table};
use crate::invariants::Violation;
use crate::partition::balance::balance;
use crate::take::Share;

/// The number of teams above which teams without waiting shares are forgotten.
const TEAMS_MAX: usize = 64;

/// Consumers that share batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Team {
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

/// The shares of a team that wait to be fetched.
#[derive(Debug)]
struct Waiting {
    /// For each rank, the leases that some members have not fetched.
    ranks: Vec<VecDeque<u64>>,
    /// The rank that gets the first share of the next batch. It matters if there are fewer shares than ranks.
    next: usize,
}

/// The shares of all teams of a table.
#[derive(Debug, Default)]
pub(super) struct Shares(HashMap<Team, Waiting>);

impl Shares {
    /// Returns the oldest lease of a rank that this member has not fetched, and marks it as fetched.
    fn fetch(&mut self, task: usize, share: &Share, leases: &mut Leases) -> Option<u64> {
        let waiting = self.0.get_mut(&Team::new(task, share))?.ranks.get_mut(share.rank as usize)?;
        waiting.retain(|lease| leases.contains(*lease));
        let (place, id) = waiting.iter().enumerate().find_map(|(place, id)| {
            let is_fresh = leases.get_mut(*id)?.fetch(share.member);
            is_fresh.then_some((place, *id))
        })?;
        if leases.get(id)?.is_fetched_by_all() {
            waiting.remove(place);
        }
        Some(id)
    }

    /// Returns the shares of a team. Teams without waiting shares are forgotten when there are too many
    /// teams.
    fn of_team(&mut self, team: Team, leases: &Leases) -> &mut Waiting {
        if self.0.len() >= TEAMS_MAX && !self.0.contains_key(&team) {
            let is_waited_for = |lease: &u64| leases.contains(*lease);
            self.0.retain(|_, waiting| waiting.ranks.iter().flatten().any(is_waited_for));
        }
        let fresh = || Waiting { ranks: vec![VecDeque::new(); team.ranks as usize], next: 0 };
        self.0.entry(team).or_insert_with(fresh)
    }

    /// Checks that every team has its ranks, and that no lease waits twice.
    pub(super) fn check(&self) -> Result<(), Violation> {
        let mut seen = HashSet::new();
        for (team, waiting) in &self.0 {
            let ranks = waiting.ranks.len();
            if ranks != team.ranks as usize || waiting.next >= ranks {
                return Err(Violation(format!("{team:?} has ranks={ranks}, next={}", waiting.next)));
            }
            if let Some(twice) = waiting.ranks.iter().flatten().find(|lease| !seen.insert(**lease)) {
                return Err(Violation(format!("lease={twice:016x} waits twice, also for {team:?}")));
            }
        }
        Ok(())
    }
}

impl Table {
    /// Returns the oldest share of a rank that this member has not fetched, and marks it as fetched.
    pub(crate) fn next_share(&mut self, task: usize, share: &Share) -> Option<(u64, Vec<RowHandle>)> {
        let id = self.shares.fetch(task, share, &mut self.leases)?;
        Some((id, self.leases.get(id)?.rows.clone()))
    }

    /// Leases a batch as one share for each rank. Returns whether anything was leased. With equal counts,
    /// surplus groups stay in the queue. If there are fewer groups than ranks, the ranks are served in turn.
    pub(crate) fn split(&mut self, task: usize, chosen: Chosen, share: &Share, expires: Instant) -> bool {
        let ranks = share.ranks as usize;
        let mut groups = chosen.groups;
        if share.equal_counts {
            groups.truncate(groups.len() / ranks * ranks);
        }
        if groups.is_empty() {
            return false;
        }
        // If no row has tokens, groups are weighted by their number of rows.
        let mut weights: Vec<u64> = groups.iter().map(|(_, rows)| self.tokens_of(rows)).collect();
        if weights.iter().all(|weight| *weight == 0) {
            weights = groups.iter().map(|(_, rows)| rows.len() as u64).collect();
        }
        let mut parts = balance(&weights, ranks.min(groups.len()), share.equal_counts);
        parts.retain(|places| !places.is_empty());
        let leases: Vec<u64> = parts
            .iter()
            .map(|places| {
                let rows = places.iter().flat_map(|place| groups[*place].1.iter().copied()).collect();
                self.lease_to_members(task, rows, expires, share.members)
            })
            .collect();
        let waiting = self.shares.of_team(Team::new(task, share), &self.leases);
        let first = waiting.next;
        waiting.next = (first + leases.len()) % ranks;
        for (turn, lease) in leases.into_iter().enumerate() {
            waiting.ranks[(first + turn) % ranks].push_back(lease);
        }
        // The shares of the other ranks are available now.
        self.ready[task].must_wake = true;
        true
    }

    fn tokens_of(&self, rows: &[RowHandle]) -> u64 {
        rows.iter().filter_map(|row| self.row(*row).ok()).map(|row| u64::from(row.length)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(rank: u32, member: u32) -> Share {
        Share { member, members: 2, ..Share::of(rank, 2) }
    }

    fn hold(leases: &mut Leases) -> u64 {
        let id = leases.next_id();
        leases.hold(id, 0, Vec::new(), Instant::now(), 0);
        leases.get_mut(id).into_iter().for_each(|lease| lease.members = 2);
        id
    }

    #[test]
    fn every_member_of_a_rank_fetches_each_of_its_shares_once() {
        let (mut shares, mut leases) = (Shares::default(), Leases::default());
        let ids = [hold(&mut leases), hold(&mut leases)];
        let waiting = shares.of_team(Team::new(0, &share(0, 0)), &leases);
        waiting.ranks[1].extend(ids);
        let mut fetch = |rank, member| shares.fetch(0, &share(rank, member), &mut leases);
        assert_eq!(fetch(0, 0), None, "the other rank has none");
        assert_eq!([fetch(1, 0), fetch(1, 0), fetch(1, 0)], [Some(ids[0]), Some(ids[1]), None]);
        assert_eq!([fetch(1, 1), fetch(1, 1), fetch(1, 1)], [Some(ids[0]), Some(ids[1]), None]);
        assert_eq!(shares.check(), Ok(()));
        assert!(shares.0.values().all(|waiting| waiting.ranks.iter().all(VecDeque::is_empty)));
    }

    #[test]
    fn a_share_whose_lease_has_ended_is_passed_over() {
        let (mut shares, mut leases) = (Shares::default(), Leases::default());
        let ids = [hold(&mut leases), hold(&mut leases)];
        shares.of_team(Team::new(0, &share(0, 0)), &leases).ranks[0].extend(ids);
        assert!(leases.end(ids[0]).is_ok());
        assert_eq!(shares.fetch(0, &share(0, 0), &mut leases), Some(ids[1]));
        shares.of_team(Team::new(0, &share(0, 0)), &leases).ranks[1].push_back(ids[1]);
        assert!(shares.check().is_err(), "it waits for two ranks");
    }

    #[test]
    fn teams_that_wait_for_nothing_are_forgotten_when_there_are_too_many() {
        let (mut shares, mut leases) = (Shares::default(), Leases::default());
        let id = hold(&mut leases);
        for task in 0..3 * TEAMS_MAX {
            shares.of_team(Team::new(task, &share(0, 0)), &leases);
            assert!(shares.0.len() <= TEAMS_MAX);
            if task == 0 {
                shares.of_team(Team::new(task, &share(0, 0)), &leases).ranks[0].push_back(id);
            }
        }
        assert_eq!(shares.fetch(0, &share(0, 0), &mut leases), Some(id));
    }
}
