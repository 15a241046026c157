//! The calls of producers and consumers, on any kind of queue.

use std::time::Duration;

use arrow_array::RecordBatch;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::config::PartitionSpec;
use crate::error::QueueError;
use crate::inspect::QueueInspection;
use crate::lease::Lease;
use crate::put::Put;
use crate::record::Unfinished;
use crate::row::RowHandle;
use crate::stats::{ClosedGroup, KeyedRow, PartitionStats};
use crate::take::Take;

/// How calls reach a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// The queue is in this process.
    InProcess,
    /// Over HTTP.
    Http,
    /// Through a socket and shared memory, on the server's host.
    SharedMemory,
}

/// A queue in this process ([`TransferQueue`](crate::TransferQueue)) or on a server
/// ([`QueueClient`](crate::QueueClient)). Code that uses this trait works with both.
///
/// Each call has the cancel safety of the corresponding [`Partition`](crate::Partition) method.
pub trait Queue: Send + Sync + std::fmt::Debug {
    /// How calls reach the queue. `None` for a client of a server until its first call, which chooses the
    /// transport.
    fn transport(&self) -> Option<Transport>;

    /// Declares a partition. If the partition already exists, the call succeeds if the existing declaration
    /// is equal, and fails if it differs.
    fn declare(&self, spec: PartitionSpec) -> BoxFuture<'_, Result<(), QueueError>>;

    /// Puts rows. If the partition does not exist, the queue's configuration decides whether and how the put
    /// creates it. The call waits at most `wait` for room, or without a limit if `wait` is absent.
    fn put<'a>(
        &'a self,
        partition: &'a str,
        put: Put,
        wait: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<RowHandle>, QueueError>>;

    /// Adds columns to existing rows: row `i` of `batch` belongs to handle `i`.
    fn write_columns<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        batch: RecordBatch,
    ) -> BoxFuture<'a, Result<(), QueueError>>;

    /// Writes columns of existing rows, and replaces the values of rows that have them already. Earlier
    /// leases keep the old values; see [`Partition::overwrite_columns`](crate::Partition::overwrite_columns).
    fn overwrite_columns<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        batch: RecordBatch,
    ) -> BoxFuture<'a, Result<(), QueueError>>;

    /// Takes ready rows under a lease. Without a deadline, returns `None` if no row is ready now. In any
    /// case, returns `None` if no row can become ready any more.
    fn take<'a>(
        &'a self,
        partition: &'a str,
        take: &'a Take,
    ) -> BoxFuture<'a, Result<Option<Lease>, QueueError>>;

    /// Reads columns of rows, leased or not. If `columns` is absent, reads all columns. Returns one batch for
    /// each run of rows that are stored together. Nothing is leased or consumed.
    fn get<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Result<Vec<RecordBatch>, QueueError>>;

    /// Returns the rows with these keys, or an error if a key belongs to no row. Without keys, returns all
    /// rows that have keys, ordered by key, in O(keys).
    fn find<'a>(
        &'a self,
        partition: &'a str,
        keys: Option<&'a [String]>,
    ) -> BoxFuture<'a, Result<Vec<KeyedRow>, QueueError>>;

    /// Replaces the tags of rows.
    fn set_tags<'a>(
        &'a self,
        partition: &'a str,
        tags: Vec<(RowHandle, Value)>,
    ) -> BoxFuture<'a, Result<(), QueueError>>;

    /// Makes the existing rows that a task has acked ready for it again. Returns their number.
    fn reset<'a>(&'a self, partition: &'a str, task: &'a str) -> BoxFuture<'a, Result<usize, QueueError>>;

    /// Announces a newer policy version.
    fn announce<'a>(
        &'a self,
        partition: &'a str,
        policy_version: u64,
    ) -> BoxFuture<'a, Result<(), QueueError>>;

    /// Frees rows, leased or not.
    fn clear<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
    ) -> BoxFuture<'a, Result<(), QueueError>>;

    /// Frees all rows of the partition, leased or not. Returns their number.
    fn clear_all<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<usize, QueueError>>;

    /// Ends a sample. The group is complete when all of its samples are complete. A repeated call has no
    /// effect.
    fn end_sample<'a>(&'a self, partition: &'a str, sample: &'a str)
    -> BoxFuture<'a, Result<(), QueueError>>;

    /// Closes incomplete groups of samples that began longer ago than `older_than`, and returns them.
    fn close_groups<'a>(
        &'a self,
        partition: &'a str,
        older_than: Duration,
        unfinished: Unfinished,
    ) -> BoxFuture<'a, Result<Vec<ClosedGroup>, QueueError>>;

    /// Ends the puts: takers see the end instead of waiting for more rows. The end is as durable as the
    /// queue.
    fn end_of_puts<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<(), QueueError>>;

    /// Returns counts of the partition. They are cheap to read.
    fn status<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<PartitionStats, QueueError>>;

    /// Returns the counts when the partition changes after `revision`, at the latest after `wait`.
    fn status_after<'a>(
        &'a self,
        partition: &'a str,
        revision: u64,
        wait: Duration,
    ) -> BoxFuture<'a, Result<PartitionStats, QueueError>>;

    /// Returns the names of the partitions, in order.
    fn names(&self) -> BoxFuture<'_, Result<Vec<String>, QueueError>>;

    /// Describes the queue for people.
    fn inspect(&self) -> BoxFuture<'_, Result<QueueInspection, QueueError>>;
}
