//! Groups that count samples: a sample may have several rows, and a group is complete when its samples are
//! complete.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Partition;
use crate::error::QueueError;
use crate::record::{Record, Unfinished};
use crate::stats::ClosedGroup;

impl Partition {
    /// Ends a sample. The group is complete when all of its samples are complete. A repeated call has no
    /// effect. An unknown sample is an error.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn end_sample(&self, sample: &str) -> Result<(), QueueError> {
        if self.shared.table.lock().is_sample_whole(sample)? {
            return Ok(());
        }
        let record = Record::EndSample { partition: self.shared.name.clone(), sample: sample.to_owned() };
        let uid = sample.to_owned();
        self.apply(record, move |table| table.end_sample(&uid)).await
    }

    /// Closes incomplete groups that count samples and began longer ago than `older_than`. Returns them.
    /// Groups with puts in progress stay open. Ages are measured in this process: a restart resets them.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn close_groups(
        &self,
        older_than: Duration,
        unfinished: Unfinished,
    ) -> Result<Vec<ClosedGroup>, QueueError> {
        let Some(until) = Instant::now().checked_sub(older_than) else { return Ok(Vec::new()) };
        let closing = self.shared.table.lock().begin_close(until);
        if closing.is_empty() {
            return Ok(closing);
        }
        let groups: Vec<String> = closing.iter().map(|closing| closing.group.clone()).collect();
        let record =
            Record::Close { partition: self.shared.name.clone(), groups: groups.clone(), unfinished };
        let shared = Arc::clone(&self.shared);
        let apply = move |durable: Result<(), QueueError>| {
            let mut table = shared.table.lock();
            if durable.is_err() {
                table.undo_close(&groups);
            }
            durable?;
            let released = table.finish_close(&groups, unfinished);
            shared.tell(&mut table);
            drop(table);
            shared.reclaim(&released);
            Ok(())
        };
        self.record(record, apply).await?;
        for ClosedGroup { group, samples, samples_whole, rows } in &closing {
            tracing::warn!(
                partition = %self.shared.name, %group, samples, samples_whole, rows, ?unfinished,
                "a group was not whole in time"
            );
        }
        Ok(closing)
    }
}
