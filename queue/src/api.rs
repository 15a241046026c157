//! The calls that producers and consumers need, wherever the queue is.

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

/// A queue in this process ([`TransferQueue`](crate::TransferQueue)) or of a server
/// ([`RemoteQueue`](crate::RemoteQueue)): code that is written against it does not know the difference.
///
/// Every call is cancel-safe in the sense of the method of [`Partition`](crate::Partition) that it
/// represents.
pub trait Queue: Send + Sync + std::fmt::Debug {
    /// Declares a partition; returns the existing one if it was declared in the same way.
    fn declare(&self, spec: PartitionSpec) -> BoxFuture<'_, Result<(), QueueError>>;

    /// Puts rows. If the partition does not exist, it is created as the queue's configuration says. Waits at
    /// most `wait` for room, without a limit if absent.
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

    /// Takes ready rows under a lease. `None` if no row is ready now (without a deadline), or none ever will
    /// be.
    fn take<'a>(
        &'a self,
        partition: &'a str,
        take: &'a Take,
    ) -> BoxFuture<'a, Result<Option<Lease>, QueueError>>;

    /// The columns of rows, leased or not, all columns if absent: one batch for each sequence of rows that
    /// are stored together. Nothing is leased or consumed.
    fn get<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Result<Vec<RecordBatch>, QueueError>>;

    /// The rows with these keys; an error if no row has a key. Without keys, all rows with keys, in order:
    /// O(keys).
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

    /// Makes all existing rows that a task has acked ready for it again; returns their number.
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

    /// Frees all rows of the partition, leased or not.
    fn clear_all<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<usize, QueueError>>;

    /// Ends a sample: its group is whole when all of its samples are. Repeating the call changes nothing.
    fn end_sample<'a>(&'a self, partition: &'a str, sample: &'a str)
    -> BoxFuture<'a, Result<(), QueueError>>;

    /// Closes groups of samples that began longer ago than `older_than` and are not whole; returns them.
    fn close_groups<'a>(
        &'a self,
        partition: &'a str,
        older_than: Duration,
        unfinished: Unfinished,
    ) -> BoxFuture<'a, Result<Vec<ClosedGroup>, QueueError>>;

    /// Ends the puts: takers see the end instead of waiting for more, as durably as the queue is.
    fn end_of_puts<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<(), QueueError>>;

    /// Counts that cost nothing to read.
    fn status<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<PartitionStats, QueueError>>;

    /// The counts as soon as something has changed after `revision`, at the latest after `wait`.
    fn status_after<'a>(
        &'a self,
        partition: &'a str,
        revision: u64,
        wait: Duration,
    ) -> BoxFuture<'a, Result<PartitionStats, QueueError>>;

    /// Names of the partitions, in order.
    fn names(&self) -> BoxFuture<'_, Result<Vec<String>, QueueError>>;

    /// A description of the queue for people. Takes O(rows).
    fn inspect(&self) -> BoxFuture<'_, Result<QueueInspection, QueueError>>;
}
