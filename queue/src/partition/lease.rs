//! Rows that a consumer holds.

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use futures::future::BoxFuture;

use super::RowHandle;
use crate::QueueError;

/// Where a lease is held: in this process or by a server.
///
/// Each call is cancel-safe: it happens whole or not at all.
pub(crate) trait Hold: Send + Sync + std::fmt::Debug {
    fn ack(&self) -> BoxFuture<'_, Result<(), QueueError>>;
    fn nack(&self) -> BoxFuture<'_, Result<(), QueueError>>;
    fn renew(&self) -> BoxFuture<'_, Result<(), QueueError>>;

    /// Gives the rows back soon, without anybody waiting for it. The lease may have ended before.
    fn abandon(&self);
}

/// Rows of one task, held by one consumer until they are acked, nacked, or the lease expires.
#[derive(Debug)]
#[must_use = "dropping a lease gives its rows back"]
pub struct Lease {
    hold: Box<dyn Hold>,
    id: u64,
    pub(super) rows: Vec<RowHandle>,
    pub(super) groups: Vec<String>,
    pub(super) policy_versions: Vec<u64>,
    pub(super) batches: Vec<RecordBatch>,
    held: bool,
}

impl Lease {
    pub(crate) fn new(
        hold: Box<dyn Hold>,
        id: u64,
        rows: Vec<RowHandle>,
        (groups, policy_versions): (Vec<String>, Vec<u64>),
        batches: Vec<RecordBatch>,
    ) -> Self {
        Self { hold, id, rows, groups, policy_versions, batches, held: true }
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Handles, in the order of the batches' rows.
    pub fn rows(&self) -> &[RowHandle] {
        &self.rows
    }

    /// The group of each row.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    /// The oldest policy version of each row's group.
    pub fn policy_versions(&self) -> &[u64] {
        &self.policy_versions
    }

    /// One batch for each stretch of rows that lie together: payload is not copied.
    pub fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }

    /// All rows as one batch; copies. Rows need to have the same columns.
    pub fn concat(&self) -> Result<RecordBatch, QueueError> {
        let Some(first) = self.batches.first() else { return Err(QueueError::Empty) };
        Ok(concat_batches(&first.schema(), &self.batches)?)
    }

    /// Consumes the rows for this task. When it returns they are consumed as durably as the queue is; an error means
    /// that they are not, and they are given again.
    ///
    /// Cancel-safe: it happens whole or not at all.
    pub async fn ack(mut self) -> Result<(), QueueError> {
        // From here on the outcome is the holder's: dropping the future must not give back what was acked.
        self.held = false;
        self.hold.ack().await
    }

    /// Gives the rows back.
    ///
    /// Cancel-safe: it happens, at the latest when the lease expires.
    pub async fn nack(mut self) -> Result<(), QueueError> {
        self.held = false;
        self.hold.nack().await
    }

    /// Lets the lease last for another full term from now. Cancel-safe.
    pub async fn renew(&self) -> Result<(), QueueError> {
        self.hold.renew().await
    }

    /// Itself with rows that came after it.
    pub(crate) fn with_rows(
        mut self,
        rows: Vec<RowHandle>,
        (groups, policy_versions): (Vec<String>, Vec<u64>),
        batches: Vec<RecordBatch>,
    ) -> Self {
        (self.rows, self.groups, self.policy_versions) = (rows, groups, policy_versions);
        self.batches = batches;
        self
    }

    /// The payload without the lease, for whoever passes it on: the lease does not keep it any more.
    pub(crate) fn take_batches(&mut self) -> Vec<RecordBatch> {
        std::mem::take(&mut self.batches)
    }

    /// The lease's number, for a holder elsewhere: from now on only its ack, its nack or its expiry ends it.
    pub(crate) fn detach(mut self) -> u64 {
        self.held = false;
        self.id
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.held {
            self.hold.abandon();
        }
    }
}
