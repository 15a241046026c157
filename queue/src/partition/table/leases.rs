//! Leases: which rows are held until when, and which acks may be repeated.
//!
//! # Invariants
//! - A lease that is held expires at one moment, and at that moment only.
//! - An ack that was done is remembered, so that one whose answer was lost can be repeated; the oldest are
//!   forgotten.

use std::collections::{BTreeSet, HashMap, VecDeque};

use tokio::time::Instant;

use super::RowHandle;
use crate::error::QueueError;
use crate::invariants::{self, Violation};
use crate::row::RECORD_ROWS_MAX;

/// Acks that are remembered.
const ACKS_MAX: usize = 4096;

/// A lease that is held.
#[derive(Debug)]
pub(super) struct HeldLease {
    pub(super) task: usize,
    pub(super) rows: Vec<RowHandle>,
    pub(super) expires: Instant,
    /// Whether the journal knows of it: it outlives the process.
    pub(super) is_recorded: bool,
    /// The names of the clients that took it; none where it was given out before this process, or to a client
    /// without a name.
    pub(super) holders: Vec<String>,
    /// Consumers that get the same rows; they are consumed when all have acked.
    pub(super) members: u32,
    fetched: BTreeSet<u32>,
    acked: BTreeSet<u32>,
}

impl HeldLease {
    /// Members that have acked it.
    pub(super) fn acked_members(&self) -> usize {
        self.acked.len()
    }

    /// A member fetches it; says whether it had not before.
    pub(super) fn fetch(&mut self, member: u32) -> bool {
        self.fetched.insert(member)
    }

    pub(super) fn is_fetched_by_all(&self) -> bool {
        self.fetched.len() == self.members as usize
    }
}

/// What the ack of a member meets.
#[derive(Debug)]
pub(crate) enum BeginAck {
    /// It was the last that was missing: the lease has ended.
    Begun { task: usize, rows: Vec<RowHandle> },
    /// A repetition of one that is not durable yet.
    UnderWay,
    /// A repetition of one that was done.
    Done,
    /// Other members have to ack too.
    Counted,
}

/// The leases of a table.
#[derive(Debug)]
pub(super) struct Leases {
    held: HashMap<u64, HeldLease>,
    expiries: BTreeSet<(Instant, u64)>,
    /// The number of the next lease. It starts at a random place each time the queue is opened, so that
    /// a number of an earlier life means the same lease or none.
    next: u64,
    /// Leases given out since the queue was opened.
    given: u64,
    /// Recorded leases whose ends are still to be written down.
    ends_to_record: Vec<u64>,
    /// Acks by lease: whether they are done.
    acks: HashMap<u64, bool>,
    /// Acks that are done, oldest first.
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

    /// Leases given out since the queue was opened.
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

    /// All that are held, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &HeldLease)> {
        self.held.iter().map(|(id, lease)| (*id, lease))
    }

    /// The number of a lease that is about to be given out.
    pub(super) fn next_id(&mut self) -> u64 {
        let id = self.next;
        self.next += 1;
        self.given += 1;
        id
    }

    pub(super) fn hold(&mut self, id: u64, task: usize, rows: Vec<RowHandle>, expires: Instant) {
        self.expiries.insert((expires, id));
        let lease = HeldLease {
            task,
            rows,
            expires,
            is_recorded: false,
            holders: Vec::new(),
            members: 1,
            fetched: BTreeSet::new(),
            acked: BTreeSet::new(),
        };
        self.held.insert(id, lease);
    }

    /// Marks a lease as written down. `None` where a restart ends it: its members' acks are known only here,
    /// or it has more rows than one record.
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

    /// When the next lease expires, and which.
    pub(super) fn next_expiry(&self) -> Option<(Instant, u64)> {
        self.expiries.first().copied()
    }

    /// Ends that the journal does not know of yet.
    pub(super) fn take_ends_to_record(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ends_to_record)
    }

    /// A member acks a lease. The last one ends it, and its ack is under way until it is
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

    /// Acks that are done and may be repeated, oldest first.
    pub(super) fn remembered_acks(&self) -> impl Iterator<Item = u64> {
        self.acks_done.iter().copied()
    }

    /// The indexes agree: O(leases).
    pub(super) fn check(&self) -> Result<(), Violation> {
        invariants::counts_agree("expiries of leases", self.expiries.len(), self.held.len())?;
        for (id, lease) in self.iter() {
            if !self.expiries.contains(&(lease.expires, id)) {
                return Err(Violation(format!("lease={id} never expires")));
            }
            if lease.acked.len() >= lease.members as usize {
                return Err(Violation(format!(
                    "lease={id} is held though all members={} acked",
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
