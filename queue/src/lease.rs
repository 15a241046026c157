//! Leases: the rows that a consumer holds.

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::error::QueueError;
use crate::row::RowHandle;

/// The name of a lease in URLs, messages, inspections and logs: its number as 16 hexadecimal digits. In URLs
/// the number of the member follows, after a hyphen.
pub(crate) fn lease_name(id: u64) -> String {
    format!("{id:016x}")
}

/// The names of the columns that carry labels of rows. No column of rows may have one of these names, whatever the
/// transport is: rows of an embedded queue may move to a server.
pub(crate) mod label {
    /// The column with a row's handle: the generation in the upper 32 bits, and the slot in the lower 32 bits.
    pub(crate) const HANDLE: &str = "_handle";
    /// The column with a row's group.
    pub(crate) const GROUP: &str = "_group";
    /// The column with the oldest policy version of a row's group.
    pub(crate) const POLICY_VERSION: &str = "_policy_version";
    /// The column with a row's key, which is null if the row has no key. If no row of a take has a key, the take
    /// does not have this column.
    pub(crate) const KEY: &str = "_key";
    /// The column with a row's tags as JSON text, which is null if the row has no tags. If no row of a take has
    /// tags, the take does not have this column.
    pub(crate) const TAGS: &str = "_tags";

    pub(crate) const ALL: [&str; 5] = [HANDLE, GROUP, POLICY_VERSION, KEY, TAGS];
}

/// Ends or renews a lease, in this process or on a server.
///
/// Each call is cancel-safe: it takes effect completely or not at all.
pub(crate) trait Hold: Send + Sync + std::fmt::Debug {
    fn ack(&self) -> BoxFuture<'_, Result<(), QueueError>>;
    fn nack(&self) -> BoxFuture<'_, Result<(), QueueError>>;
    fn renew(&self) -> BoxFuture<'_, Result<(), QueueError>>;

    /// Leaves the lease to a holder outside this process. The holder may outlive this process.
    fn detach(&self) {}

    /// Starts to give the rows back, without waiting. The lease may already have ended.
    fn abandon(&self);
}

/// The labels of the rows of a lease, in the order of the rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Labels {
    pub(crate) groups: Vec<String>,
    pub(crate) policy_versions: Vec<u64>,
    /// The keys. Empty if no row has a key.
    pub(crate) keys: Vec<Option<String>>,
    /// The tags. Empty if no row has tags.
    pub(crate) tags: Vec<Value>,
}

impl Labels {
    pub(crate) fn append(&mut self, more: Self) {
        self.groups.extend(more.groups);
        self.policy_versions.extend(more.policy_versions);
        self.keys.extend(more.keys);
        self.tags.extend(more.tags);
    }
}

/// Rows that a consumer holds for one task, until the lease is acked or nacked, or expires.
#[derive(Debug)]
#[must_use = "dropping a lease gives its rows back"]
pub struct Lease {
    hold: Box<dyn Hold>,
    id: u64,
    pub(crate) rows: Vec<RowHandle>,
    pub(crate) labels: Labels,
    pub(crate) fresh_from: u64,
    pub(crate) batches: Vec<RecordBatch>,
    held: bool,
}

impl Lease {
    pub(crate) fn new(
        hold: Box<dyn Hold>,
        id: u64,
        rows: Vec<RowHandle>,
        labels: Labels,
        batches: Vec<RecordBatch>,
    ) -> Self {
        Self { hold, id, rows, labels, fresh_from: 0, batches, held: true }
    }

    /// The number of the lease.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The handles of the rows, in the order of the rows in the batches.
    pub fn rows(&self) -> &[RowHandle] {
        &self.rows
    }

    /// The group of each row.
    pub fn groups(&self) -> &[String] {
        &self.labels.groups
    }

    /// The oldest policy version of each row's group.
    pub fn policy_versions(&self) -> &[u64] {
        &self.labels.policy_versions
    }

    /// The key of each row. Empty if no row has a key.
    pub fn keys(&self) -> &[Option<String>] {
        &self.labels.keys
    }

    /// The tags of each row, null for a row without tags. Empty if no row has tags.
    pub fn tags(&self) -> &[Value] {
        &self.labels.tags
    }

    /// The oldest policy version that counted as fresh when the rows were taken.
    pub fn fresh_from(&self) -> u64 {
        self.fresh_from
    }

    /// Whether the group of a row was stale when the row was taken. Only takes with
    /// [`Stale::Deliver`](crate::Stale) get stale groups.
    pub fn is_stale(&self, row: usize) -> bool {
        self.labels.policy_versions.get(row).is_some_and(|version| *version < self.fresh_from)
    }

    /// The payload: one batch for each run of rows that are stored together. The payload is not copied.
    pub fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }

    /// Copies all rows into one batch. The rows must have the same columns.
    pub fn concat(&self) -> Result<RecordBatch, QueueError> {
        let Some(first) = self.batches.first() else { return Err(QueueError::Empty) };
        Ok(concat_batches(&first.schema(), &self.batches)?)
    }

    /// Consumes the rows for this task. When the call returns, the ack is as durable as the queue. After an
    /// error, the rows are not consumed and are delivered again.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn ack(mut self) -> Result<(), QueueError> {
        // The ack now ends the lease: dropping the future must not give acked rows back.
        self.held = false;
        self.hold.ack().await
    }

    /// Consumes the rows like [`Self::ack`]. After an error the lease is still held, so that the call can be repeated.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all. Dropping the lease then gives no rows back.
    pub async fn try_ack(&mut self) -> Result<(), QueueError> {
        let held = std::mem::replace(&mut self.held, false);
        let acked = self.hold.ack().await;
        self.held = held && acked.is_err();
        acked
    }

    /// Gives the rows back like [`Self::nack`]. After an error the lease is still held, so that the call can be
    /// repeated.
    ///
    /// Cancel-safe: a dropped call takes effect at the latest when the lease expires.
    pub async fn try_nack(&mut self) -> Result<(), QueueError> {
        let held = std::mem::replace(&mut self.held, false);
        let returned = self.hold.nack().await;
        self.held = held && returned.is_err();
        returned
    }

    /// Gives the rows back.
    ///
    /// Cancel-safe: a dropped call takes effect at the latest when the lease expires.
    pub async fn nack(mut self) -> Result<(), QueueError> {
        self.held = false;
        self.hold.nack().await
    }

    /// Extends the lease by a full term from now. Cancel-safe.
    pub async fn renew(&self) -> Result<(), QueueError> {
        self.hold.renew().await
    }

    /// Sets the rows, labels and batches of a lease whose rows arrived after the lease.
    pub(crate) fn with_rows(
        mut self,
        rows: Vec<RowHandle>,
        labels: Labels,
        batches: Vec<RecordBatch>,
    ) -> Self {
        (self.rows, self.labels, self.batches) = (rows, labels, batches);
        self
    }

    /// Takes the payload out of the lease, for a caller that passes the payload on.
    pub(crate) fn take_batches(&mut self) -> Vec<RecordBatch> {
        std::mem::take(&mut self.batches)
    }

    /// Drops the lease without giving its rows back.
    pub(crate) fn disarm(mut self) {
        self.held = false;
    }

    /// Notes that the holder is outside this process and may outlive it. Dropping the lease still gives its
    /// rows back.
    pub(crate) fn record(&self) {
        self.hold.detach();
    }

    /// Returns the number of the lease for a holder outside this process. From now on only an ack, a nack or
    /// the expiry ends the lease.
    pub(crate) fn detach(mut self) -> u64 {
        self.held = false;
        self.hold.detach();
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
