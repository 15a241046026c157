//! Calls of a partition that do not change its set of rows: counts and changes, keys and tags, policy
//! versions, resets of tasks and the end of puts.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{Partition, Table};
use crate::error::QueueError;
use crate::put::check_depth;
use crate::record::Record;
use crate::row::RowHandle;
use crate::stats::{KeyedRow, PartitionStats};

impl Table {
    fn stats(&self) -> PartitionStats {
        PartitionStats {
            rows: self.rows_live,
            rows_reserved: self.rows_reserved(),
            capacity_rows: self.spec.capacity_rows,
            payload_bytes: u64::from(self.kib_live) * 1024,
            capacity_bytes: self.spec.capacity_bytes,
            groups: self.groups.len(),
            leases: self.lease_count(),
            ended: self.closed,
            dispositions: self.dispositions,
            tasks: self.task_stats(),
            columns: self.column_rows(),
            policy_version: self.policy_version,
            revision: self.revision,
            fates: Vec::new(),
            fates_missed: false,
        }
    }
}

impl Partition {
    /// Returns counts of the partition. They are cheap to read.
    pub fn stats(&self) -> PartitionStats {
        self.shared.after_expiry(|table, _| table.stats())
    }

    /// The time since the first row of the oldest group was put, or since the queue was opened if that was
    /// later. `None` if there are no rows.
    pub(crate) fn oldest_age(&self) -> Option<Duration> {
        let table = self.shared.table.lock();
        table.groups.values().find(|group| !group.rows.is_empty()).map(|group| group.since.elapsed())
    }

    /// The number of rows that are ready for a task.
    pub fn ready_rows(&self, task: &str) -> Result<usize, QueueError> {
        self.shared.after_expiry(|table, _| Ok(table.ready_row_count(table.task(task)?)))
    }

    /// The number of complete groups that are ready for a task.
    pub fn ready_groups(&self, task: &str) -> Result<usize, QueueError> {
        self.shared.after_expiry(|table, _| Ok(table.ready_group_count(table.task(task)?)))
    }

    /// Returns the counts when the partition's [`revision`](PartitionStats::revision) exceeds `revision`, at
    /// the latest at `deadline`. The counts include the [fates](PartitionStats::fates) since `revision`.
    /// Several fast changes may be reported together. A lease that expires is a change. Cancel-safe.
    pub async fn stats_after(&self, revision: u64, deadline: Instant) -> PartitionStats {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            // The waiter is registered before the table is read, so that no change in between is missed.
            changed.as_mut().enable();
            let look = |table: &mut Table, now| (table.stats(), table.next_expiry_from(now), now);
            let (mut stats, next_expiry, now) = self.shared.after_expiry(look);
            if stats.revision > revision || now >= deadline {
                (stats.fates, stats.fates_missed) = self.shared.table.lock().fates.after(revision);
                // A fate may have been noted after the counts were read. The next call returns it.
                stats.fates.retain(|fate| fate.revision <= stats.revision);
                return stats;
            }
            // The table is read again, whether it has changed or the time is over.
            let _ = tokio::time::timeout_at(next_expiry.min(deadline), changed).await;
        }
    }

    /// Ends the puts in this process: takers see the end instead of waiting for more rows. The end is not
    /// written to the journal. A process that opens the queue again can put more rows, unless
    /// [`end`](Self::end) has been called.
    pub fn end_of_puts(&self) {
        {
            let mut table = self.shared.table.lock();
            table.closed = true;
            self.shared.tell(&mut table);
        }
        self.shared.room.close();
    }

    /// Ends the puts permanently: takers see the end instead of waiting for more rows, even after the queue
    /// is opened again. A repeated call has no effect.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn end(&self) -> Result<(), QueueError> {
        if self.shared.table.lock().ended {
            return Ok(());
        }
        let record = Record::End { partition: self.shared.name.clone() };
        let shared = Arc::clone(&self.shared);
        let apply = move |durable: Result<(), QueueError>| {
            durable?;
            let mut table = shared.table.lock();
            table.end();
            shared.tell(&mut table);
            drop(table);
            shared.room.close();
            Ok(())
        };
        self.record(record, apply).await
    }

    /// Waits until there are no rows and no puts in progress. Cancel-safe.
    pub async fn drained(&self) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            // The waiter is registered before the table is read, so that no change in between is missed.
            changed.as_mut().enable();
            let stats = self.stats();
            if stats.rows + stats.rows_reserved == 0 {
                return;
            }
            changed.await;
        }
    }

    /// Returns the rows with these keys, or an error if a key belongs to no row.
    pub fn find(&self, keys: &[String]) -> Result<Vec<KeyedRow>, QueueError> {
        let table = self.shared.table.lock();
        let unknown =
            |key: &String| QueueError::UnknownKey { partition: self.shared.name.clone(), key: key.clone() };
        keys.iter().map(|key| table.find(key).ok_or_else(|| unknown(key))).collect()
    }

    /// Returns all rows that have keys, ordered by key, in O(keys).
    pub fn keyed_rows(&self) -> Vec<KeyedRow> {
        self.shared.table.lock().keyed_rows()
    }

    /// The capacity in rows.
    pub(crate) fn capacity_rows(&self) -> usize {
        self.shared.table.lock().spec.capacity_rows
    }

    /// Returns the rows that still exist.
    pub(crate) fn still_there(&self, mut rows: Vec<RowHandle>) -> Vec<RowHandle> {
        let table = self.shared.table.lock();
        rows.retain(|row| table.row(*row).is_ok());
        rows
    }

    /// Returns all groups with their rows, in O(rows).
    pub(crate) fn groups(&self) -> std::collections::BTreeMap<String, Vec<RowHandle>> {
        let table = self.shared.table.lock();
        table.groups.values().map(|group| (group.key.clone(), group.rows.clone())).collect()
    }

    /// Replaces the tags of rows. If a row was freed, returns an error and changes nothing.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn set_tags(&self, tags: Vec<(RowHandle, Value)>) -> Result<(), QueueError> {
        tags.iter().try_for_each(|(_, tags)| check_depth("tags", tags))?;
        let rows: Vec<RowHandle> = tags.iter().map(|(row, _)| *row).collect();
        self.visible(&rows).await;
        {
            let table = self.shared.table.lock();
            tags.iter().try_for_each(|(row, _)| table.row(*row).map(drop))?;
        }
        let record = Record::Tags { partition: self.shared.name.clone(), tags: tags.clone() };
        self.apply(record, move |table| table.set_tags(tags)).await
    }

    /// Makes the existing rows that a task has acked ready for it again. Returns their number.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn reset(&self, task: &str) -> Result<usize, QueueError> {
        let number = self.shared.table.lock().task(task)?;
        let record = Record::Reset { partition: self.shared.name.clone(), task: task.to_owned() };
        self.apply(record, move |table| table.reset(number)).await
    }

    /// Announces a newer policy version, which [`max_staleness`](crate::Take::max_staleness) refers to. A
    /// version that is not newer has no effect.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn announce(&self, policy_version: u64) -> Result<(), QueueError> {
        let record = Record::Version { partition: self.shared.name.clone(), policy_version };
        self.apply(record, move |table| table.raise_version(policy_version)).await
    }

    /// Writes `record`, and changes the table once it is durable.
    pub(super) async fn apply<T: Send + 'static>(
        &self,
        record: Record,
        change: impl FnOnce(&mut Table) -> T + Send + 'static,
    ) -> Result<T, QueueError> {
        let shared = Arc::clone(&self.shared);
        let publish = move |durable: Result<(), QueueError>| {
            durable?;
            let mut table = shared.table.lock();
            let outcome = change(&mut table);
            shared.tell(&mut table);
            Ok(outcome)
        };
        self.record(record, publish).await
    }
}
