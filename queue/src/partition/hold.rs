//! Leases that are held in this process.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::oneshot;

use super::table::BeginAck;
use super::{Partition, in_records};
use crate::error::QueueError;
use crate::journal::Payload;
use crate::lease::{Hold, Labels, Lease};
use crate::record::Record;
use crate::row::RowHandle;

/// A lease of the partition.
#[derive(Debug)]
pub(super) struct Held {
    partition: Partition,
    id: u64,
    member: u32,
}

impl Hold for Held {
    fn ack(&self) -> BoxFuture<'_, Result<(), QueueError>> {
        self.partition.ack_lease(self.id, self.member).boxed()
    }

    fn nack(&self) -> BoxFuture<'_, Result<(), QueueError>> {
        futures::future::ready(self.partition.nack_lease(self.id)).boxed()
    }

    fn renew(&self) -> BoxFuture<'_, Result<(), QueueError>> {
        futures::future::ready(self.partition.renew_lease(self.id)).boxed()
    }

    fn detach(&self) {
        self.partition.record_lease(self.id);
    }

    fn abandon(&self) {
        // The lease may have expired. In that case, its rows were already given back.
        let _ = self.partition.nack_lease(self.id);
    }
}

impl Partition {
    /// Creates the lease `id` for the rows that still exist, without payload.
    pub(super) fn lease_of(&self, id: u64, member: u32, rows: Vec<RowHandle>) -> Lease {
        let hold = Held { partition: self.clone(), id, member };
        let (rows, labels) = self.labels(rows);
        Lease::new(Box::new(hold), id, rows, labels, Vec::new())
    }

    /// Reads the payload of leased rows. Rows that were cleared in the meantime are left out. After an error
    /// the rows are given back, except rows with damaged payload, which are lost with their whole groups.
    pub(crate) async fn read_lease(
        &self,
        mut lease: Lease,
        columns: Option<&[String]>,
    ) -> Result<Lease, QueueError> {
        loop {
            let failure = match self.read(&lease.rows, columns, Some(lease.id())).await {
                Ok(batches) => {
                    lease.batches = batches;
                    return Ok(lease);
                }
                Err(failure) => failure,
            };
            match failure.error {
                QueueError::StaleHandle { .. } => {
                    let (rows, labels) = self.labels(std::mem::take(&mut lease.rows));
                    (lease.rows, lease.labels) = (rows, labels);
                }
                error @ QueueError::Corrupt { .. } => {
                    // Damaged rows that stay would block every later row. If only these rows were freed, the
                    // rest of their groups would be incomplete.
                    let groups = self.shared.table.lock().rows_of_groups_of(&lease.rows[failure.rows]);
                    self.lose(&groups, &error).await;
                    return Err(error);
                }
                error => return Err(error),
            }
        }
    }

    /// Returns the rows that still exist, and their labels.
    fn labels(&self, mut rows: Vec<RowHandle>) -> (Vec<RowHandle>, Labels) {
        let table = self.shared.table.lock();
        rows.retain(|row| table.row(*row).is_ok());
        let mut labels = Labels::default();
        labels.groups.reserve(rows.len());
        labels.policy_versions.reserve(rows.len());
        let (mut any_key, mut any_tags) = (false, false);
        for row in rows.iter().filter_map(|handle| table.row(*handle).ok()) {
            let group = table.groups.get(&row.group);
            let (key, version) = group.map_or(("", 0), |group| (group.key.as_str(), group.policy_version));
            labels.groups.push(key.to_owned());
            labels.policy_versions.push(version);
            any_key |= row.label.as_ref().is_some_and(|label| label.key.is_some());
            any_tags |= row.label.as_ref().is_some_and(|label| !label.tags.is_null());
        }
        let label = |handle: &RowHandle| table.row(*handle).ok().and_then(|row| row.label.as_deref());
        if any_key {
            labels.keys = rows.iter().map(|row| label(row).and_then(|label| label.key.clone())).collect();
        }
        if any_tags {
            let tags = |row| label(row).map(|label| label.tags.clone()).unwrap_or_default();
            labels.tags = rows.iter().map(tags).collect();
        }
        (rows, labels)
    }

    /// Acks a lease. A repeated ack has no effect. Cancel-safe.
    pub(crate) async fn ack_lease(&self, id: u64, member: u32) -> Result<(), QueueError> {
        loop {
            let settled = self.shared.changed.notified();
            tokio::pin!(settled);
            // The waiter is registered before the table is read, so that no change in between is missed.
            settled.as_mut().enable();
            match self.shared.after_expiry(|table, _| table.begin_ack(id, member))? {
                BeginAck::Done | BeginAck::Counted => return Ok(()),
                BeginAck::UnderWay => settled.await,
                BeginAck::Begun { task, rows } => return self.commit_ack(id, task, rows).await,
            }
        }
    }

    async fn commit_ack(&self, id: u64, task: usize, rows: Vec<RowHandle>) -> Result<(), QueueError> {
        let shared = Arc::clone(&self.shared);
        let (partition, name) = (shared.name.clone(), shared.table.lock().spec.tasks[task].name.clone());
        let records = in_records(&rows, |rows, is_last| Record::Ack {
            partition: partition.clone(),
            task: name.clone(),
            rows,
            lease: is_last.then_some(id),
        });
        let (reply, outcome) = oneshot::channel();
        let owner = Arc::clone(&shared);
        shared.commit(false, Payload::new(), Box::new(move |_| records), move |durable| {
            let acked = match durable {
                Ok(_) => {
                    let mut table = owner.table.lock();
                    let released = table.finish_ack_of(id, task, &rows);
                    // Some calls wait for the end of this lease.
                    owner.tell(&mut table);
                    drop(table);
                    owner.reclaim(&released);
                    Ok(())
                }
                Err(error) => {
                    let mut table = owner.table.lock();
                    table.undo_ack(id, task, &rows);
                    owner.tell(&mut table);
                    Err(error)
                }
            };
            let _ = reply.send(acked);
        });
        let closed = QueueError::Closed { partition: shared.name.clone() };
        outcome.await.unwrap_or(Err(closed))
    }

    /// Writes a lease to the lease file, so that it outlives this process.
    fn record_lease(&self, id: u64) {
        let record = self.shared.table.lock().record_lease(id);
        if let Some(record) = record {
            self.shared.log.note_lease(&self.shared.name, &record);
        }
    }

    /// Ends a lease and gives its rows back.
    pub(crate) fn nack_lease(&self, id: u64) -> Result<(), QueueError> {
        self.shared.after_expiry(|table, _| table.nack(id).inspect(|_| self.shared.tell(table)))?;
        self.shared.record_ends();
        Ok(())
    }

    /// The time that a lease lasts without renewal.
    pub(crate) fn lease_term(&self) -> std::time::Duration {
        self.shared.table.lock().spec.lease()
    }

    /// Extends a lease by a full term from now.
    pub(crate) fn renew_lease(&self, id: u64) -> Result<(), QueueError> {
        self.shared.after_expiry(|table, now| {
            let term = table.spec.lease();
            table.renew(id, now + term)
        })
    }
}
