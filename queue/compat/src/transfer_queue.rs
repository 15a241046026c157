//! The calls of a TransferQueue client. A client takes metadata and then reads data by metadata, or it reads
//! and writes rows by key.
//!
//! Metadata consists of handles, which name rows permanently. The handle of a freed row therefore causes an
//! error and never returns the bytes of another row. [`get_meta`](TransferQueueClient::get_meta) returns a
//! lease: while it is held, no other consumer of the task gets the rows. If its holder dies, the rows are
//! delivered again.
//!
//! ```
//! # use std::sync::Arc;
//! # use arrow_array::{Int64Array, RecordBatch};
//! # use rolldock_queue::{PartitionSpec, QueueConfig, QueueError, TransferQueue};
//! # use rolldock_queue_compat::{MetaRequest, TransferQueueClient};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), QueueError> {
//! let queue = TransferQueue::open(QueueConfig::default())?;
//! queue.declare(PartitionSpec::new("train", ["actor"], 1024)).await?;
//! let client = TransferQueueClient::new(Arc::new(queue));
//! let prompts = RecordBatch::try_from_iter([("prompt", Arc::new(Int64Array::from(vec![1, 2])) as _)])?;
//! client.put("train", prompts).await?;
//! if let Some(meta) = client.get_meta(&MetaRequest::new("train", "actor", 2)).await? {
//!     let data = client.get_data(meta.meta(), None).await?;
//!     assert_eq!(data.num_rows(), 2);
//!     meta.consume().await?;
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_array::{RecordBatch, UInt64Array};
use arrow_select::take::take_record_batch;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::{bad, check_counts, task_of};
use rolldock_queue::{Lease, Put, Queue, QueueError, RowHandle, Sampler, Share, Take, joined};

/// The time that puts wait for room, unless the client sets another time.
const PUT_WAIT: Duration = Duration::from_secs(600);

/// The handles of rows of a partition, in order. They may be sent to other processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchMeta {
    /// The partition.
    pub partition: String,
    /// The rows.
    pub rows: Vec<RowHandle>,
}

/// Rows that a task holds under a lease. They are consumed by [`consume`](Self::consume), or delivered again
/// when this value is dropped.
#[derive(Debug)]
#[must_use = "dropping it gives its rows back"]
pub struct TakenMeta {
    meta: BatchMeta,
    lease: Lease,
}

impl TakenMeta {
    /// The handles of the rows.
    pub fn meta(&self) -> &BatchMeta {
        &self.meta
    }

    /// The lease, with the groups, keys, tags and policy versions of the rows. It has no payload.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Consumes the rows for the task, like [`Lease::ack`]. Cancel-safe: a dropped call takes effect
    /// completely or not at all.
    pub async fn consume(self) -> Result<(), QueueError> {
        self.lease.ack().await
    }

    /// Gives the rows back. Cancel-safe: a dropped call takes effect at the latest when the lease expires.
    pub async fn release(self) -> Result<(), QueueError> {
        self.lease.nack().await
    }
}

/// A request for metadata.
#[derive(Debug, Clone)]
pub struct MetaRequest {
    /// The partition.
    pub partition: String,
    /// The task that takes the rows. The declaration of the task names the columns that a row must have.
    pub task: String,
    /// The number of rows, or the number of groups if [`whole_groups`](Self::whole_groups) is set. The result
    /// has exactly this many, or fewer if no more rows can become ready.
    pub batch_size: usize,
    /// Whether the batch size counts groups, whose rows must all be ready.
    pub whole_groups: bool,
    /// The order in which rows or groups are taken.
    pub sampler: Sampler,
    /// The part of the batch for one of several data-parallel ranks, as the `StreamingDataLoader` of each
    /// rank requests it. The batch size is then the size for all ranks together. All members of a rank
    /// (tensor- or pipeline-parallel) get the same rows.
    pub share: Option<Share>,
    /// The time to wait. If absent, the call does not wait.
    pub wait: Option<Duration>,
}

impl MetaRequest {
    /// Creates a request for the oldest rows, which does not wait.
    pub fn new(partition: impl Into<String>, task: impl Into<String>, batch_size: usize) -> Self {
        Self {
            partition: partition.into(),
            task: task.into(),
            batch_size,
            whole_groups: false,
            sampler: Sampler::Fifo,
            share: None,
            wait: None,
        }
    }
}

/// A client of the queue. Clones refer to the same client.
#[derive(Debug, Clone)]
pub struct TransferQueueClient {
    queue: Arc<dyn Queue>,
    /// Distinguishes this client's groups from those of other clients.
    id: u64,
    next_group: Arc<AtomicU64>,
    put_wait: Duration,
}

impl TransferQueueClient {
    /// Creates a client of `queue`. The partitions are declared on the queue itself.
    pub fn new(queue: Arc<dyn Queue>) -> Self {
        Self { queue, id: rand::random(), next_group: Arc::default(), put_wait: PUT_WAIT }
    }

    /// Sets the time that puts wait for room.
    pub fn waiting(self, put_wait: Duration) -> Self {
        Self { put_wait, ..self }
    }

    fn group(&self) -> String {
        format!("put-{:016x}-{}", self.id, self.next_group.fetch_add(1, Ordering::Relaxed))
    }

    /// Puts rows as a new group. If there is no room, the partition's declaration decides what happens.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn put(&self, partition: &str, data: RecordBatch) -> Result<BatchMeta, QueueError> {
        self.put_group(partition, &self.group(), data).await
    }

    /// Puts rows as the group `group`. If there is no room, the partition's declaration decides what happens.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn put_group(
        &self,
        partition: &str,
        group: &str,
        data: RecordBatch,
    ) -> Result<BatchMeta, QueueError> {
        let rows = self.queue.put(partition, Put::group(group, data), Some(self.put_wait)).await?;
        Ok(BatchMeta { partition: partition.to_owned(), rows })
    }

    /// Adds fields to rows. Row `i` of `data` belongs to row `i` of the metadata. Adding a field that a row
    /// already has is an error.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn put_fields(&self, meta: &BatchMeta, data: RecordBatch) -> Result<(), QueueError> {
        self.queue.write_columns(&meta.partition, &meta.rows, data).await
    }

    /// Leases rows that are ready for a task, without their payload. Returns `None` if too few rows are ready
    /// and the request does not wait, or if no more rows can become ready.
    ///
    /// Cancel-safe: rows that were leased for a dropped call are given back.
    pub async fn get_meta(&self, request: &MetaRequest) -> Result<Option<TakenMeta>, QueueError> {
        let MetaRequest { partition, task, batch_size, .. } = request;
        let take = if request.whole_groups {
            Take::groups(task, *batch_size)
        } else {
            Take::rows(task, *batch_size)
        };
        let take = Take {
            at_least: *batch_size,
            columns: Some(Vec::new()),
            sampler: request.sampler,
            share: request.share,
            deadline: request.wait.map(|wait| Instant::now() + wait),
            ..take
        };
        let lease = self.queue.take(partition, &take).await?;
        Ok(lease.map(|lease| TakenMeta {
            meta: BatchMeta { partition: partition.clone(), rows: lease.rows().to_vec() },
            lease,
        }))
    }

    /// Reads fields of rows, in the order of the metadata. If `fields` is absent, reads all fields. Nothing
    /// is consumed.
    ///
    /// Cancel-safe.
    pub async fn get_data(
        &self,
        meta: &BatchMeta,
        fields: Option<&[String]>,
    ) -> Result<RecordBatch, QueueError> {
        joined(&self.queue.get(&meta.partition, &meta.rows, fields).await?)
    }

    /// Whether a task has consumed every existing row. Cancel-safe.
    pub async fn is_all_consumed(&self, partition: &str, task: &str) -> Result<bool, QueueError> {
        let stats = self.queue.status(partition).await?;
        Ok(task_of(&stats, partition, task)?.is_all_consumed())
    }

    /// Frees rows, leased rows included. Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn clear_samples(&self, meta: &BatchMeta) -> Result<(), QueueError> {
        self.queue.clear(&meta.partition, &meta.rows).await
    }

    /// Frees all rows of a partition. Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn clear_partition(&self, partition: &str) -> Result<(), QueueError> {
        self.queue.clear_all(partition).await.map(drop)
    }

    /// Puts the fields of one key, like [`kv_batch_put`](Self::kv_batch_put).
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn kv_put(
        &self,
        key: &str,
        partition: &str,
        fields: Option<RecordBatch>,
        tag: Option<Value>,
    ) -> Result<(), QueueError> {
        let tags = tag.map(|tag| vec![tag]);
        self.kv_batch_put(&[key.to_owned()], partition, fields, tags).await
    }

    /// Puts fields of keys, with one row for each key. An existing key gets further fields. A field that the
    /// key already has is an error. Given tags replace earlier tags. Without fields, only the tags change.
    ///
    /// A dropped call may have written some of the keys. Each row is written completely or not at all. If all
    /// keys are new, they are written together.
    pub async fn kv_batch_put(
        &self,
        keys: &[String],
        partition: &str,
        fields: Option<RecordBatch>,
        tags: Option<Vec<Value>>,
    ) -> Result<(), QueueError> {
        if let Some(tags) = &tags {
            check_counts("tags", keys.len(), tags.len())?;
        }
        let Some(fields) = fields else {
            let tags = tags.ok_or_else(|| bad("expected fields or tags".to_owned()))?;
            return self.tag(keys, partition, tags).await;
        };
        check_counts("keys", fields.num_rows(), keys.len())?;
        let put = Put {
            keys: keys.to_vec(),
            tags: tags.clone().unwrap_or_default(),
            ..Put::group(self.group(), fields.clone())
        };
        match self.queue.put(partition, put, Some(self.put_wait)).await {
            Err(QueueError::KeyExists { .. }) => {}
            outcome => return outcome.map(drop),
        }
        // Some keys already exist.
        let (mut known, mut places) = (Vec::new(), Vec::new());
        for (place, key) in keys.iter().enumerate() {
            match self.queue.find(partition, Some(std::slice::from_ref(key))).await {
                Ok(found) => {
                    known.extend(found);
                    places.push(place as u64);
                }
                Err(QueueError::UnknownKey { .. }) => {
                    let tags = tags.as_ref().map_or_else(Vec::new, |tags| vec![tags[place].clone()]);
                    let row = Put::group(self.group(), fields.slice(place, 1));
                    let row = Put { keys: vec![key.clone()], tags, ..row };
                    self.queue.put(partition, row, Some(self.put_wait)).await?;
                }
                Err(error) => return Err(error),
            }
        }
        let rows: Vec<RowHandle> = known.iter().map(|found| found.row).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let more = take_record_batch(&fields, &UInt64Array::from(places.clone()))?;
        self.queue.write_columns(partition, &rows, more).await?;
        let Some(tags) = tags else { return Ok(()) };
        let tags = places.iter().zip(rows).map(|(place, row)| (row, tags[*place as usize].clone()));
        self.queue.set_tags(partition, tags.collect()).await
    }

    async fn tag(&self, keys: &[String], partition: &str, tags: Vec<Value>) -> Result<(), QueueError> {
        let found = self.queue.find(partition, Some(keys)).await?;
        let tags = found.into_iter().map(|found| found.row).zip(tags).collect();
        self.queue.set_tags(partition, tags).await
    }

    /// Returns the rows with these keys, in the order of the keys. An unknown key is an error. Cancel-safe.
    pub async fn kv_meta(&self, keys: &[String], partition: &str) -> Result<BatchMeta, QueueError> {
        let found = self.queue.find(partition, Some(keys)).await?;
        Ok(BatchMeta {
            partition: partition.to_owned(),
            rows: found.into_iter().map(|found| found.row).collect(),
        })
    }

    /// Reads fields of keys, in the order of the keys. If `fields` is absent, reads all fields. Nothing is
    /// consumed. Cancel-safe.
    pub async fn kv_batch_get(
        &self,
        keys: &[String],
        partition: &str,
        fields: Option<&[String]>,
    ) -> Result<RecordBatch, QueueError> {
        self.get_data(&self.kv_meta(keys, partition).await?, fields).await
    }

    /// Returns all keys with their tags, in O(keys). A key without tags has null. Cancel-safe.
    pub async fn kv_list(&self, partition: &str) -> Result<BTreeMap<String, Value>, QueueError> {
        let rows = self.queue.find(partition, None).await?;
        Ok(rows.into_iter().map(|row| (row.key, row.tags)).collect())
    }

    /// Frees the rows with these keys. If a key is unknown, returns an error and frees nothing.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn kv_clear(&self, keys: &[String], partition: &str) -> Result<(), QueueError> {
        self.clear_samples(&self.kv_meta(keys, partition).await?).await
    }
}
