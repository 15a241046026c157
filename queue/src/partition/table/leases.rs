//! Leases: the rows that are held, their expiry, and the acks that may be repeated.
//!
//! # Invariants
//! - A held lease has exactly one time of expiry.
//! - Completed acks are remembered, so that a client can repeat an ack whose response was lost. The oldest
//!   acks are forgotten.

use std::collections::{BTreeSet, HashMap, VecDeque};

use tokio::time::Instant;

use super::RowHandle;
use crate::error::QueueError;
use crate::invariants::{self, Violation};
use crate::row::RECORD_ROWS_MAX;

/// The number of acks that are remembered.
const ACKS_MAX: usize = 4096;

/// A lease that is held.
#[derive(Debug)]
pub(super) struct HeldLease {
    pub(super) task: usize,
    pub(super) rows: Vec<RowHandle>,
    pub(super) expires: Instant,
    /// The number of the table's rewrites when the lease began. Its holders see no later rewrites.
    pub(super) as_of: u64,
    /// Whether the lease is in the lease file, and therefore outlives the process.
    pub(super) is_recorded: bool,
    /// The names of the clients that took the lease. Empty if no client has a name.
    pub(super) holders: Vec<String>,
    /// The number of consumers that get the same rows. The rows are consumed when all of them have acked.
    pub(super) members: u32,
    fetched: BTreeSet<u32>,
    acked: BTreeSet<u32>,
}

impl HeldLease {
    /// The number of members that have acked.
    pub(super) fn acked_members(&self) -> usize {
        self.acked.len()
    }

    /// Marks the lease as fetched by a member. Returns whether the member had not fetched it before.
    pub(super) fn fetch(&mut self, member: u32) -> bool {
        self.fetched.insert(member)
    }

    pub(super) fn is_fetched_by_all(&self) -> bool {
        self.fetched.len() == self.members as usize
    }
}

/// The result of a member's ack.
#[derive(Debug)]
pub(crate) enum BeginAck {
    /// This was the last missing ack: the lease has ended.
    Begun { task: usize, rows: Vec<RowHandle> },
    /// The ack repeats an ack that is not durable yet.
    UnderWay,
    /// The ack repeats a completed ack.
    Done,
    /// Other members still have to ack.
    Counted,
}

/// The leases of a table.
#[derive(Debug)]
pub(super) struct Leases {
    held: HashMap<u64, HeldLease>,
    expiries: BTreeSet<(Instant, u64)>,
    /// The number of the next lease. It starts at a random value each time the queue is opened, so that a
    /// number from an earlier process refers to its original lease or to no lease.
    next: u64,
    /// The number of leases granted since the queue was opened.
    given: u64,
    /// Recorded leases whose end has not been written to the lease file yet.
    ends_to_record: Vec<u64>,
    /// The acks by lease, and whether each is completed.
    acks: HashMap<u64, bool>,
    /// The completed acks, oldest first.
    acks_done: VecDeque<u64>,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            held: HashMap::new(),
            expiries: BTreeSet::new(),
            next: u64::from(rand::random::<u32>() >> 1) << 32,
            given: 0,
            ends_to_record: Vec::new(),
            acks: HashMap::new(),
            acks_done: VecDeque::new(),
        }
    }
}

impl Leases {
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// The number of leases granted since the queue was opened.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    pub(super) fn get(&self, id: u64) -> Option<&HeldLease> {
        self.held.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut HeldLease> {
        self.held.get_mut(&id)
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.held.contains_key(&id)
    }

    /// All held leases, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &HeldLease)> {
        self.held.iter().map(|(id, lease)| (*id, lease))
    }

    /// Returns the number for a new lease.
    pub(super) fn next_id(&mut self) -> u64 {
        let id = self.next;
        self.next += 1;
        self.given += 1;
        id
    }

    pub(super) fn hold(&mut self, id: u64, task: usize, rows: Vec<RowHandle>, expires: Instant, as_of: u64) {
        self.expiries.insert((expires, id));
        let lease = HeldLease {
            task,
            rows,
            expires,
            as_of,
            is_recorded: false,
            holders: Vec::new(),
            members: 1,
            fetched: BTreeSet::new(),
            acked: BTreeSet::new(),
        };
        self.held.insert(id, lease);
    }

    /// Marks a lease as recorded. Returns `None` if the lease cannot be recorded; a restart then ends the
    /// lease. Such a lease has several members, whose acks are only in memory, or more rows than fit into a
    /// record.
    pub(super) fn record(&mut self, id: u64) -> Option<&HeldLease> {
        let may_be = |lease: &&mut HeldLease| lease.members == 1 && lease.rows.len() <= RECORD_ROWS_MAX;
        let lease = self.held.get_mut(&id).filter(may_be)?;
        lease.is_recorded = true;
        Some(lease)
    }

    pub(super) fn renew(&mut self, id: u64, expires: Instant) -> Result<(), QueueError> {
        let lease = self.held.get_mut(&id).ok_or(QueueError::LeaseGone { lease: id })?;
        self.expiries.remove(&(lease.expires, id));
        lease.expires = expires;
        self.expiries.insert((expires, id));
        Ok(())
    }

    /// Ends a lease without an ack.
    pub(super) fn end(&mut self, id: u64) -> Result<HeldLease, QueueError> {
        let lease = self.remove(id)?;
        if lease.is_recorded {
            self.ends_to_record.push(id);
        }
        Ok(lease)
    }

    fn remove(&mut self, id: u64) -> Result<HeldLease, QueueError> {
        let lease = self.held.remove(&id).ok_or(QueueError::LeaseGone { lease: id })?;
        self.expiries.remove(&(lease.expires, id));
        Ok(lease)
    }

    /// The time and the number of the next lease to expire.
    pub(super) fn next_expiry(&self) -> Option<(Instant, u64)> {
        self.expiries.first().copied()
    }

    /// Returns the ended leases whose end is not in the lease file yet.
    pub(super) fn take_ends_to_record(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ends_to_record)
    }

    /// Acks a lease for a member. The last ack ends the lease. That ack is in progress until it is
    /// [remembered](Self::remember_ack) or [undone](Self::undo_ack).
    pub(super) fn ack(&mut self, id: u64, member: u32) -> Result<BeginAck, QueueError> {
        match self.acks.get(&id) {
            Some(false) => return Ok(BeginAck::UnderWay),
            Some(true) => return Ok(BeginAck::Done),
            None => {}
        }
        if let Some(lease) = self.held.get_mut(&id) {
            lease.acked.insert(member);
            if lease.acked.len() < lease.members as usize {
                return Ok(BeginAck::Counted);
            }
        }
        let lease = self.remove(id)?;
        self.acks.insert(id, false);
        Ok(BeginAck::Begun { task: lease.task, rows: lease.rows })
    }

    pub(super) fn undo_ack(&mut self, id: u64) {
        self.acks.remove(&id);
    }

    pub(super) fn remember_ack(&mut self, id: u64) {
        if self.acks.insert(id, true) == Some(true) {
            return;
        }
        if self.acks_done.len() >= ACKS_MAX
            && let Some(oldest) = self.acks_done.pop_front()
        {
            self.acks.remove(&oldest);
        }
        self.acks_done.push_back(id);
    }

    /// The completed acks that may be repeated, oldest first.
    pub(super) fn remembered_acks(&self) -> impl Iterator<Item = u64> {
        self.acks_done.iter().copied()
    }

    /// Checks that the indexes agree, in O(leases).
    pub(super) fn check(&self) -> Result<(), Violation> {
        invariants::counts_agree("expiries of leases", self.expiries.len(), self.held.len())?;
        for (id, lease) in self.iter() {
            if !self.expiries.contains(&(lease.expires, id)) {
                return Err(Violation(format!("lease={id:016x} never expires")));
            }
            if lease.acked.len() >= lease.members as usize {
                return Err(Violation(format!(
                    "lease={id:016x} is held though all members={} acked",
                    lease.members
                )));
            }
        }
        let done = self.acks.values().filter(|is_done| **is_done).count();
        invariants::counts_agree("acks that are done", done, self.acks_done.len())
    }
}

#[cfg(test)]
mod tests;
