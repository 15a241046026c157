//! Implements [`Queue`] for a queue in this process.

use std::time::Duration;

use arrow_array::RecordBatch;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::time::Instant;

use super::TransferQueue;
use crate::api::{Queue, Transport};
use crate::config::PartitionSpec;
use crate::error::QueueError;
use crate::inspect::QueueInspection;
use crate::lease::Lease;
use crate::put::Put;
use crate::record::Unfinished;
use crate::row::RowHandle;
use crate::stats::{ClosedGroup, KeyedRow, PartitionStats};
use crate::take::Take;

impl Queue for TransferQueue {
    fn transport(&self) -> Option<Transport> {
        Some(Transport::InProcess)
    }

    fn declare(&self, spec: PartitionSpec) -> BoxFuture<'_, Result<(), QueueError>> {
        async move { Self::declare(self, spec).await.map(drop) }.boxed()
    }

    fn put<'a>(
        &'a self,
        partition: &'a str,
        put: Put,
        wait: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<RowHandle>, QueueError>> {
        let deadline = wait.map(|wait| Instant::now() + wait);
        self.put_into(partition, put, deadline).boxed()
    }

    fn write_columns<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        batch: RecordBatch,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        async move { self.partition(partition)?.write_columns(rows, batch).await }.boxed()
    }

    fn overwrite_columns<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        batch: RecordBatch,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        async move { self.partition(partition)?.overwrite_columns(rows, batch).await }.boxed()
    }

    fn take<'a>(
        &'a self,
        partition: &'a str,
        take: &'a Take,
    ) -> BoxFuture<'a, Result<Option<Lease>, QueueError>> {
        async move { self.partition(partition)?.take(take).await }.boxed()
    }

    fn get<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Result<Vec<RecordBatch>, QueueError>> {
        async move { self.partition(partition)?.get(rows, columns).await }.boxed()
    }

    fn find<'a>(
        &'a self,
        partition: &'a str,
        keys: Option<&'a [String]>,
    ) -> BoxFuture<'a, Result<Vec<KeyedRow>, QueueError>> {
        let found = self.partition(partition).and_then(|partition| match keys {
            Some(keys) => partition.find(keys),
            None => Ok(partition.keyed_rows()),
        });
        futures::future::ready(found).boxed()
    }

    fn set_tags<'a>(
        &'a self,
        partition: &'a str,
        tags: Vec<(RowHandle, Value)>,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        async move { self.partition(partition)?.set_tags(tags).await }.boxed()
    }

    fn reset<'a>(&'a self, partition: &'a str, task: &'a str) -> BoxFuture<'a, Result<usize, QueueError>> {
        async move { self.partition(partition)?.reset(task).await }.boxed()
    }

    fn announce<'a>(
        &'a self,
        partition: &'a str,
        policy_version: u64,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        async move { self.partition(partition)?.announce(policy_version).await }.boxed()
    }

    fn clear<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        async move { self.partition(partition)?.clear(rows).await }.boxed()
    }

    fn clear_all<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<usize, QueueError>> {
        async move { self.partition(partition)?.clear_all().await }.boxed()
    }

    fn end_sample<'a>(
        &'a self,
        partition: &'a str,
        sample: &'a str,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        async move { self.partition(partition)?.end_sample(sample).await }.boxed()
    }

    fn close_groups<'a>(
        &'a self,
        partition: &'a str,
        older_than: Duration,
        unfinished: Unfinished,
    ) -> BoxFuture<'a, Result<Vec<ClosedGroup>, QueueError>> {
        async move { self.partition(partition)?.close_groups(older_than, unfinished).await }.boxed()
    }

    fn end_of_puts<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<(), QueueError>> {
        async move { self.partition(partition)?.end().await }.boxed()
    }

    fn status<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<PartitionStats, QueueError>> {
        let status = self.partition(partition).map(|partition| partition.stats());
        futures::future::ready(status).boxed()
    }

    fn status_after<'a>(
        &'a self,
        partition: &'a str,
        revision: u64,
        wait: Duration,
    ) -> BoxFuture<'a, Result<PartitionStats, QueueError>> {
        async move { Ok(self.partition(partition)?.stats_after(revision, Instant::now() + wait).await) }
            .boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<String>, QueueError>> {
        let names = self.partitions().iter().map(|partition| partition.name().to_owned()).collect();
        futures::future::ready(Ok(names)).boxed()
    }

    fn inspect(&self) -> BoxFuture<'_, Result<QueueInspection, QueueError>> {
        futures::future::ready(Ok(Self::inspect(self))).boxed()
    }
}
