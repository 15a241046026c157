//! The takes that wait for rows of a task, so that a change wakes only the takes that it can serve.
//!
//! A take that was woken looks at the table once. It wakes another take only if it ends before it has
//! looked: otherwise takes that find nothing would wake each other for ever.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

use super::Shared;
use crate::take::{Amount, Stale, Take};

/// What a waiting take needs before it is worth another look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// So many ready groups.
    Groups(usize),
    /// So many ready rows.
    Rows(usize),
    /// More than counts can say: versions, shares, given rows.
    Look,
}

impl Need {
    pub(super) fn of(take: &Take) -> Self {
        let by_version =
            take.stale != Stale::Deliver && (take.min_policy_version > 0 || take.max_staleness.is_some());
        if by_version || take.share.is_some() || take.only.is_some() {
            return Self::Look;
        }
        match take.amount {
            Amount::Rows(_) => Self::Rows(take.at_least),
            Amount::Groups(_) | Amount::Tokens(_) => Self::Groups(take.at_least),
        }
    }
}

/// Takes that wait, those with the smallest need first and among equals the longest waiting.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    groups: BTreeMap<(usize, u64), Arc<Notify>>,
    rows: BTreeMap<(usize, u64), Arc<Notify>>,
    look: BTreeMap<u64, Arc<Notify>>,
    next: u64,
}

fn wake_as_many(waiting: &mut BTreeMap<(usize, u64), Arc<Notify>>, mut available: usize) {
    while let Some(first) = waiting.first_entry() {
        let (need, _) = *first.key();
        if need > available {
            return;
        }
        available -= need;
        first.remove().notify_one();
    }
}

impl Waiters {
    fn add(&mut self, need: Need, waker: Arc<Notify>) -> u64 {
        let number = self.next;
        self.next += 1;
        match need {
            Need::Groups(count) => self.groups.insert((count, number), waker),
            Need::Rows(count) => self.rows.insert((count, number), waker),
            Need::Look => self.look.insert(number, waker),
        };
        number
    }

    /// Whether it was still waiting.
    fn remove(&mut self, need: Need, number: u64) -> bool {
        let removed = match need {
            Need::Groups(count) => self.groups.remove(&(count, number)),
            Need::Rows(count) => self.rows.remove(&(count, number)),
            Need::Look => self.look.remove(&number),
        };
        removed.is_some()
    }

    /// Wakes the takes that this many ready groups and rows can serve.
    pub(super) fn wake(&mut self, groups: usize, rows: usize) {
        wake_as_many(&mut self.groups, groups);
        wake_as_many(&mut self.rows, rows);
        self.wake_lookers();
    }

    /// Wakes the takes that look at more than counts.
    pub(super) fn wake_lookers(&mut self) {
        std::mem::take(&mut self.look).into_values().for_each(|waker| waker.notify_one());
    }

    pub(super) fn wake_all(&mut self) {
        self.wake(usize::MAX, usize::MAX);
    }
}

/// A waiting take. If it is dropped after it was woken and before it has looked, it wakes another take: the
/// rows that it was woken for are still there.
pub(super) struct Waiter<'a> {
    shared: &'a Shared,
    task: usize,
    need: Need,
    number: u64,
    waker: Arc<Notify>,
    has_looked: bool,
}

impl<'a> Waiter<'a> {
    /// Made under the table's lock, so that no change is missed.
    pub(super) fn new(shared: &'a Shared, waiters: &mut Waiters, task: usize, need: Need) -> Self {
        let waker = Arc::new(Notify::new());
        let number = waiters.add(need, Arc::clone(&waker));
        Self { shared, task, need, number, waker, has_looked: false }
    }

    /// Until it is worth looking again. Cancel-safe.
    pub(super) async fn woken(&self) {
        self.waker.notified().await;
    }

    /// The table was read since, and what was there for this take is its own.
    pub(super) fn answer(mut self) {
        self.has_looked = true;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut table = self.shared.table.lock();
        let was_called = !table.waiters(self.task).remove(self.need, self.number);
        if was_called && !self.has_looked {
            table.wake_again(self.task);
        }
    }
}

#[cfg(test)]
mod tests;
