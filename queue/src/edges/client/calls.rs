//! The calls of a [`QueueClient`], each on the queue that the client has chosen.

use std::time::Duration;

use arrow_array::RecordBatch;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

use super::QueueClient;
use crate::api::Transport;
use crate::{
    ClosedGroup, KeyedRow, Lease, PartitionSpec, PartitionStats, Put, Queue, QueueError, QueueInspection,
    RowHandle, Take, Unfinished,
};

/// Makes one call on the chosen queue, and notes its outcome.
macro_rules! forward {
    ($client:ident.$call:ident($($argument:expr),*)) => {
        async move { $client.note($client.queue().await.$call($($argument),*).await) }.boxed()
    };
}

impl Queue for QueueClient {
    fn transport(&self) -> Option<Transport> {
        *self.chosen.lock()
    }

    fn declare(&self, spec: PartitionSpec) -> BoxFuture<'_, Result<(), QueueError>> {
        forward!(self.declare(spec))
    }

    fn put<'a>(
        &'a self,
        partition: &'a str,
        put: Put,
        wait: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<RowHandle>, QueueError>> {
        forward!(self.put(partition, put, wait))
    }

    fn write_columns<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        batch: RecordBatch,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        forward!(self.write_columns(partition, rows, batch))
    }

    fn overwrite_columns<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        batch: RecordBatch,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        forward!(self.overwrite_columns(partition, rows, batch))
    }

    fn take<'a>(
        &'a self,
        partition: &'a str,
        take: &'a Take,
    ) -> BoxFuture<'a, Result<Option<Lease>, QueueError>> {
        forward!(self.take(partition, take))
    }

    fn get<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Result<Vec<RecordBatch>, QueueError>> {
        forward!(self.get(partition, rows, columns))
    }

    fn find<'a>(
        &'a self,
        partition: &'a str,
        keys: Option<&'a [String]>,
    ) -> BoxFuture<'a, Result<Vec<KeyedRow>, QueueError>> {
        forward!(self.find(partition, keys))
    }

    fn set_tags<'a>(
        &'a self,
        partition: &'a str,
        tags: Vec<(RowHandle, Value)>,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        forward!(self.set_tags(partition, tags))
    }

    fn reset<'a>(&'a self, partition: &'a str, task: &'a str) -> BoxFuture<'a, Result<usize, QueueError>> {
        forward!(self.reset(partition, task))
    }

    fn announce<'a>(
        &'a self,
        partition: &'a str,
        policy_version: u64,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        forward!(self.announce(partition, policy_version))
    }

    fn clear<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        forward!(self.clear(partition, rows))
    }

    fn clear_all<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<usize, QueueError>> {
        forward!(self.clear_all(partition))
    }

    fn end_sample<'a>(
        &'a self,
        partition: &'a str,
        sample: &'a str,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        forward!(self.end_sample(partition, sample))
    }

    fn close_groups<'a>(
        &'a self,
        partition: &'a str,
        older_than: Duration,
        unfinished: Unfinished,
    ) -> BoxFuture<'a, Result<Vec<ClosedGroup>, QueueError>> {
        forward!(self.close_groups(partition, older_than, unfinished))
    }

    fn end_of_puts<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<(), QueueError>> {
        forward!(self.end_of_puts(partition))
    }

    fn status<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<PartitionStats, QueueError>> {
        forward!(self.status(partition))
    }

    fn status_after<'a>(
        &'a self,
        partition: &'a str,
        revision: u64,
        wait: Duration,
    ) -> BoxFuture<'a, Result<PartitionStats, QueueError>> {
        forward!(self.status_after(partition, revision, wait))
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<String>, QueueError>> {
        forward!(self.names())
    }

    fn inspect(&self) -> BoxFuture<'_, Result<QueueInspection, QueueError>> {
        forward!(self.inspect())
    }
}
