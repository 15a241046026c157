//! Takes that wait for rows of a task. A change wakes only the takes that it can serve.
//!
//! A woken take reads the table once. It wakes another take only if it is dropped before it has read the
//! table. If every woken take woke another one, takes that find nothing would wake each other forever.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

use super::Shared;
use crate::take::{Amount, Stale, Take};

/// The change that makes another attempt of a waiting take worthwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// This many groups are ready.
    Groups(usize),
    /// This many rows are ready.
    Rows(usize),
    /// Rows became ready, shares are available, or the policy version rose. The take depends on more than
    /// counts: on versions, shares or a caller's sampler.
    Look,
    /// Any change of rows. The take names its rows: if they are consumed or freed, the take fails.
    Change,
}

impl Need {
    pub(super) fn of(take: &Take) -> Self {
        if take.only.is_some() {
            return Self::Change;
        }
        let by_version =
            take.stale != Stale::Deliver && (take.min_policy_version > 0 || take.max_staleness.is_some());
        if by_version || take.share.is_some() {
            return Self::Look;
        }
        match take.amount {
            Amount::Rows(_) => Self::Rows(take.at_least),
            Amount::Groups(_) | Amount::Tokens(_) => Self::Groups(take.at_least),
        }
    }
}

/// The waiting takes, ordered by need from smallest to largest, then by the start of their present wait.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    groups: BTreeMap<(usize, u64), Arc<Notify>>,
    rows: BTreeMap<(usize, u64), Arc<Notify>>,
    look: BTreeMap<u64, Arc<Notify>>,
    change: BTreeMap<u64, Arc<Notify>>,
    next: u64,
}

fn wake_each(waiting: impl Iterator<Item = Arc<Notify>>) {
    waiting.for_each(|waker| waker.notify_one());
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
            Need::Change => self.change.insert(number, waker),
        };
        number
    }

    /// Removes a waiting take. Returns whether it was still waiting.
    fn remove(&mut self, need: Need, number: u64) -> bool {
        let removed = match need {
            Need::Groups(count) => self.groups.remove(&(count, number)),
            Need::Rows(count) => self.rows.remove(&(count, number)),
            Need::Look => self.look.remove(&number),
            Need::Change => self.change.remove(&number),
        };
        removed.is_some()
    }

    /// Wakes the takes that this many ready groups and rows can serve.
    pub(super) fn wake(&mut self, groups: usize, rows: usize) {
        wake_as_many(&mut self.groups, groups);
        wake_as_many(&mut self.rows, rows);
        self.wake_lookers();
    }

    /// Wakes the takes that depend on more than counts.
    pub(super) fn wake_lookers(&mut self) {
        wake_each(std::mem::take(&mut self.look).into_values());
        self.wake_after_change();
    }

    /// Wakes the takes that name their rows.
    pub(super) fn wake_after_change(&mut self) {
        wake_each(std::mem::take(&mut self.change).into_values());
    }

    pub(super) fn wake_all(&mut self) {
        wake_each(std::mem::take(&mut self.groups).into_values());
        wake_each(std::mem::take(&mut self.rows).into_values());
        self.wake_lookers();
    }
}

/// A waiting take. If it is dropped after it was woken and before it has read the table, it wakes another
/// take, because the rows for which it was woken are still ready.
pub(super) struct Waiter<'a> {
    shared: &'a Shared,
    task: usize,
    need: Need,
    number: u64,
    waker: Arc<Notify>,
    has_looked: bool,
}

impl<'a> Waiter<'a> {
    /// Adds a waiting take. Must be called under the table's lock, so that no change is missed.
    pub(super) fn new(shared: &'a Shared, waiters: &mut Waiters, task: usize, need: Need) -> Self {
        let waker = Arc::new(Notify::new());
        let number = waiters.add(need, Arc::clone(&waker));
        Self { shared, task, need, number, waker, has_looked: false }
    }

    /// Waits until another attempt is worthwhile. Cancel-safe.
    pub(super) async fn woken(&self) {
        self.waker.notified().await;
    }

    /// Marks that the take has read the table since it was woken.
    pub(super) fn mark_looked(mut self) {
        self.has_looked = true;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut table = self.shared.table.lock();
        let was_woken = !table.waiters(self.task).remove(self.need, self.number);
        if was_woken && !self.has_looked {
            table.wake_again(self.task);
        }
    }
}

#[cfg(test)]
mod tests;
