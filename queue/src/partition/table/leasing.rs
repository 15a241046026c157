//! The effect of leases on rows. If a lease ends without an ack, the rows of the lease become ready again. A
//! partition that gives rows only once (`Partition::give_once`) is an exception: the state of these rows becomes
//! `Progress::Returned`, and no other consumer gets them.

use tokio::time::Instant;

use super::leases::{BeginAck, HeldLease};
use super::{Progress, RowHandle, Table};
use crate::config::PartitionSpec;
use crate::error::QueueError;
use crate::inspect::LeaseInspection;
use crate::lease::lease_name;
use crate::record::Record;

fn lease_record(spec: &PartitionSpec, id: u64, lease: &HeldLease) -> Record {
    Record::Lease {
        partition: spec.name.clone(),
        task: spec.tasks[lease.task].name.clone(),
        lease: id,
        rows: lease.rows.clone(),
        holders: lease.holders.clone(),
    }
}

impl Table {
    /// Leases ready rows. Returns the number of the lease.
    pub(crate) fn lease(&mut self, task: usize, rows: Vec<RowHandle>, expires: Instant) -> u64 {
        let id = self.leases.next_id();
        self.hold(id, task, rows, expires);
        id
    }

    fn hold(&mut self, id: u64, task: usize, rows: Vec<RowHandle>, expires: Instant) {
        rows.iter().for_each(|row| self.set(*row, task, Progress::Leased(id)));
        self.leases.hold(id, task, rows, expires, self.rewrites.count());
    }

    /// Leases rows to `members` consumers. The rows are consumed when all of these consumers have acked.
    pub(super) fn lease_to_members(
        &mut self,
        task: usize,
        rows: Vec<RowHandle>,
        expires: Instant,
        members: u32,
    ) -> u64 {
        let id = self.lease(task, rows, expires);
        if let Some(lease) = self.leases.get_mut(id) {
            lease.members = members;
        }
        id
    }

    pub(crate) fn lease_count(&self) -> usize {
        self.leases.len()
    }

    /// Adds the name of a client that holds the lease. Each consumer of a shared lease adds its name.
    pub(crate) fn name_holder(&mut self, id: u64, holder: &str) {
        if let Some(lease) = self.leases.get_mut(id)
            && !lease.holders.iter().any(|known| known == holder)
        {
            lease.holders.push(holder.to_owned());
        }
    }

    /// All held leases, in order of their numbers.
    pub(crate) fn held_leases(&self, now: Instant) -> Vec<LeaseInspection> {
        let inspect = |(id, lease): (u64, &HeldLease)| LeaseInspection {
            lease: id,
            name: lease_name(id),
            task: self.spec.tasks[lease.task].name.clone(),
            holders: lease.holders.clone(),
            rows: lease.rows.len(),
            members: lease.members,
            acked_members: lease.acked_members(),
            expires_in_ms: lease.expires.saturating_duration_since(now).as_millis() as u64,
        };
        let mut leases: Vec<_> = self.leases.iter().map(inspect).collect();
        leases.sort_unstable_by_key(|lease| lease.lease);
        leases
    }

    /// Marks a lease as recorded. The holder of such a lease is another process, which may outlive this
    /// process. Returns the record. If the lease cannot be recorded, returns `None`, and a restart ends the
    /// lease.
    pub(crate) fn record_lease(&mut self, id: u64) -> Option<Record> {
        let lease = self.leases.record(id)?;
        Some(lease_record(&self.spec, id, lease))
    }

    /// The records of the held leases that are marked as recorded, in order of the numbers of the leases.
    pub(crate) fn recorded_leases(&self) -> Vec<Record> {
        let mut leases: Vec<_> = self.leases.iter().filter(|(_, lease)| lease.is_recorded).collect();
        leases.sort_unstable_by_key(|(id, _)| *id);
        leases.into_iter().map(|(id, lease)| lease_record(&self.spec, id, lease)).collect()
    }

    /// Restores a lease from the lease file. If an earlier lease still holds some of the rows, ends the earlier
    /// lease: the rows could be leased again only because the earlier lease had ended.
    pub(crate) fn restore_lease(
        &mut self,
        id: u64,
        task: usize,
        rows: Vec<RowHandle>,
        holders: Vec<String>,
        expires: Instant,
    ) {
        if self.leases.contains(id) {
            return;
        }
        for row in &rows {
            if let Ok(Progress::Leased(earlier)) = self.row(*row).map(|row| row.progress[task]) {
                // The earlier lease may already have been ended because of another row.
                let _ = self.nack(earlier);
            }
        }
        let is_free = |row: &RowHandle| self.row(*row).is_ok_and(|row| row.progress[task] == Progress::Ready);
        if rows.iter().all(is_free) {
            self.hold(id, task, rows, expires);
            if let Some(lease) = self.leases.get_mut(id) {
                lease.is_recorded = true;
                lease.holders = holders;
            }
        }
    }

    /// Returns the ended leases whose end is not in the lease file yet.
    pub(crate) fn take_unrecorded_ends(&mut self) -> Vec<u64> {
        self.leases.take_ends_to_record()
    }

    /// The acked leases whose acks may be repeated, oldest first.
    pub(crate) fn remembered_acks(&self) -> Vec<u64> {
        self.leases.remembered_acks().collect()
    }

    pub(crate) fn remember_ack(&mut self, id: u64) {
        self.leases.remember_ack(id);
    }

    pub(crate) fn renew(&mut self, id: u64, expires: Instant) -> Result<(), QueueError> {
        self.leases.renew(id, expires)
    }

    /// Ends a lease and gives its rows back.
    pub(crate) fn nack(&mut self, id: u64) -> Result<(), QueueError> {
        let lease = self.leases.end(id)?;
        self.give_back(&lease);
        Ok(())
    }

    /// The state of a row after its lease has ended without an ack.
    fn after_return(&self) -> Progress {
        if self.gives_once { Progress::Returned } else { Progress::Ready }
    }

    fn give_back(&mut self, lease: &HeldLease) {
        // Takes must be woken even if all rows were freed: a take that waits for the end of the puts also
        // waits for the ends of leases.
        self.ready[lease.task].must_wake = true;
        let back = self.after_return();
        lease.rows.iter().for_each(|row| self.set(*row, lease.task, back));
        self.rewrites.end_lease(&lease.rows);
    }

    /// Ends the leases that have expired, and gives their rows back. Returns the number of these leases.
    pub(crate) fn expire(&mut self, now: Instant) -> usize {
        let mut ended = 0;
        while let Some((expires, id)) = self.leases.next_expiry()
            && expires <= now
            && let Ok(lease) = self.leases.end(id)
        {
            tracing::warn!(partition = %self.spec.name, lease = lease_name(id), rows = lease.rows.len(), "a lease expired without an ack");
            self.give_back(&lease);
            ended += 1;
        }
        ended
    }

    /// A call that waits for a change of the table must look at the table again at this time or earlier, because
    /// a lease may expire at this time.
    pub(crate) fn next_expiry_from(&self, now: Instant) -> Instant {
        // No lease that is granted after `now` expires before `term`.
        let term = now + self.spec.lease();
        self.leases.next_expiry().map_or(term, |(expiry, _)| expiry.min(term))
    }

    /// Begins the ack of a lease. The rows of the lease are consumed when the ack is durable.
    pub(crate) fn begin_ack(&mut self, id: u64, member: u32) -> Result<BeginAck, QueueError> {
        let ack = self.leases.ack(id, member)?;
        if let BeginAck::Begun { task, rows } = &ack {
            rows.iter().for_each(|row| self.set(*row, *task, Progress::Leaving));
        }
        Ok(ack)
    }

    pub(crate) fn undo_ack(&mut self, id: u64, task: usize, rows: &[RowHandle]) {
        self.leases.undo_ack(id);
        let back = self.after_return();
        rows.iter().for_each(|row| self.set(*row, task, back));
        self.rewrites.end_lease(rows);
    }
}
