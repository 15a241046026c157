//! The calls of a TransferDock: the experiences of one iteration, by index and column. Each consumer gets
//! every experience once.
//!
//! A dock has one row for each sample of an iteration. With `n` samples per prompt, the samples of a prompt
//! have the indexes `n * prompt` to `n * prompt + n - 1` and form a group. Rows stay until
//! [`clear`](TransferDock::clear), even if they are consumed, because the dock has a task that never acks
//! them.
//!
//! ```
//! # use std::sync::Arc;
//! # use arrow_array::{Int64Array, RecordBatch};
//! # use rolldock_queue::{QueueConfig, QueueError, TransferQueue};
//! # use rolldock_queue_compat::{DockConfig, Pick, TransferDock};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), QueueError> {
//! let queue = Arc::new(TransferQueue::open(QueueConfig::default())?);
//! let config = DockConfig::new("dock", [("actor_train", vec!["responses"])], 4, 2);
//! let dock = TransferDock::open(queue, config).await?;
//! let responses = RecordBatch::try_from_iter([("responses", Arc::new(Int64Array::from(vec![1, 2])) as _)])?;
//! dock.put_experience(&responses, &[2, 3]).await?;
//! if let Some(experience) = dock.get_experience("actor_train", None, Pick::Prompts(1), None).await? {
//!     assert_eq!(experience.indexes(), [2, 3]);
//!     experience.consume().await?;
//! }
//! assert!(!dock.all_consumed("actor_train").await?);
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{RecordBatch, UInt64Array};
use arrow_select::take::take_record_batch;
use tokio::time::Instant;

use super::{bad, check_counts, task_of};
use rolldock_queue::{
    Lease, PartitionSpec, Put, Queue, QueueError, RowHandle, Sampler, Take, TaskSpec, joined,
};

/// The task that keeps rows until they are cleared. It never acks them.
const KEEPER: &str = "_dock";

/// The configuration of a dock.
#[derive(Debug, Clone)]
pub struct DockConfig {
    /// The partition of the dock. Its tasks are the consumers, and its capacity is `rows`. [`new`](Self::new)
    /// creates it. The durability and the limits in bytes may be changed.
    pub partition: PartitionSpec,
    /// The number of samples of an iteration.
    pub rows: usize,
    /// The number of samples of a prompt.
    pub n_samples_per_prompt: usize,
    /// The order in which samples or prompts are delivered if the request has no indexes.
    pub sampler: Sampler,
}

impl DockConfig {
    /// Creates a configuration in which each consumer gets the columns that it requires. A consumer without
    /// columns gets all existing columns.
    pub fn new<C: Into<String>>(
        partition: impl Into<String>,
        consumers: impl IntoIterator<Item = (C, Vec<&'static str>)>,
        rows: usize,
        n_samples_per_prompt: usize,
    ) -> Self {
        let consumers = consumers.into_iter().map(|(name, columns)| TaskSpec {
            name: name.into(),
            columns: columns.into_iter().map(str::to_owned).collect(),
        });
        let keeper = TaskSpec { name: KEEPER.to_owned(), columns: Vec::new() };
        let tasks = consumers.chain([keeper]).collect();
        let partition = PartitionSpec { tasks, ..PartitionSpec::new(partition, [KEEPER], rows) };
        Self { partition, rows, n_samples_per_prompt, sampler: Sampler::Fifo }
    }

    fn check(&self) -> Result<(), QueueError> {
        let size = self.n_samples_per_prompt;
        if size == 0 || self.rows == 0 || !self.rows.is_multiple_of(size) {
            let reason = format!("expected rows to be a multiple of n_samples_per_prompt={size}");
            return Err(bad(format!("{reason}, found rows={}", self.rows)));
        }
        if self.partition.capacity_rows < self.rows {
            let capacity = self.partition.capacity_rows;
            return Err(bad(format!("expected a capacity of rows={}, found capacity={capacity}", self.rows)));
        }
        if !self.partition.tasks.iter().any(|task| task.name == KEEPER) {
            return Err(bad(format!("expected a task={KEEPER} that keeps the rows")));
        }
        Ok(())
    }
}

/// The experiences that a consumer requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pick {
    /// The experiences with these indexes, in this order.
    Indexes(Vec<u64>),
    /// This many experiences of any prompts.
    Samples(usize),
    /// All samples of this many prompts.
    Prompts(usize),
}

/// Experiences that a consumer holds under a lease. They are consumed by [`consume`](Self::consume), or
/// delivered again when this value is dropped.
#[derive(Debug)]
#[must_use = "dropping it gives its rows back"]
pub struct Experience {
    lease: Lease,
    batch: RecordBatch,
    indexes: Vec<u64>,
}

impl Experience {
    /// The rows with the requested columns.
    pub fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// The index of each row.
    pub fn indexes(&self) -> &[u64] {
        &self.indexes
    }

    /// Consumes the rows for the consumer, like [`Lease::ack`]. Cancel-safe: a dropped call takes effect
    /// completely or not at all.
    pub async fn consume(self) -> Result<(), QueueError> {
        self.lease.ack().await
    }

    /// Extends the lease by a full term. Cancel-safe.
    pub async fn renew(&self) -> Result<(), QueueError> {
        self.lease.renew().await
    }
}

/// A dock. Clones refer to the same dock.
#[derive(Debug, Clone)]
pub struct TransferDock {
    queue: Arc<dyn Queue>,
    config: Arc<DockConfig>,
}

fn key(index: u64) -> String {
    index.to_string()
}

fn at_places(batch: &RecordBatch, places: &[u64]) -> Result<RecordBatch, QueueError> {
    Ok(take_record_batch(batch, &UInt64Array::from(places.to_vec()))?)
}

impl TransferDock {
    /// Declares the dock's partition. If the partition exists with an equal declaration, it is used with its
    /// rows.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn open(queue: Arc<dyn Queue>, config: DockConfig) -> Result<Self, QueueError> {
        config.check()?;
        queue.declare(config.partition.clone()).await?;
        Ok(Self { queue, config: Arc::new(config) })
    }

    fn partition(&self) -> &str {
        &self.config.partition.name
    }

    /// Writes columns of the rows `indexes`. The first columns create a row, and later columns are added to
    /// it. Writing a column that the row already has is an error.
    ///
    /// A dropped call may have written the rows of some prompts. Each row is written completely or not at
    /// all.
    pub async fn put_experience(&self, batch: &RecordBatch, indexes: &[u64]) -> Result<(), QueueError> {
        check_counts("indexes", batch.num_rows(), indexes.len())?;
        if let Some(index) = indexes.iter().find(|index| **index >= self.config.rows as u64) {
            return Err(bad(format!("expected indexes below rows={}, found {index}", self.config.rows)));
        }
        let keys: Vec<String> = indexes.iter().copied().map(key).collect();
        match self.rows_of(&keys).await? {
            Some(rows) => return self.queue.write_columns(self.partition(), &rows, batch.clone()).await,
            None if indexes.is_empty() => return Err(QueueError::Empty),
            None => {}
        }
        let mut prompts: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (place, index) in indexes.iter().enumerate() {
            prompts.entry(index / self.config.n_samples_per_prompt as u64).or_default().push(place as u64);
        }
        for (prompt, places) in prompts {
            let keys: Vec<String> = places.iter().map(|place| key(indexes[*place as usize])).collect();
            self.put_prompt(prompt, &keys, at_places(batch, &places)?).await?;
        }
        Ok(())
    }

    /// Returns the rows with these keys, or `None` if any key is unknown.
    async fn rows_of(&self, keys: &[String]) -> Result<Option<Vec<RowHandle>>, QueueError> {
        if keys.is_empty() {
            return Ok(None);
        }
        match self.queue.find(self.partition(), Some(keys)).await {
            Ok(found) => Ok(Some(found.into_iter().map(|found| found.row).collect())),
            Err(QueueError::UnknownKey { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes rows of one prompt. Some of them may already exist.
    async fn put_prompt(&self, prompt: u64, keys: &[String], batch: RecordBatch) -> Result<(), QueueError> {
        match self.put_new(prompt, keys, batch.clone()).await {
            Err(QueueError::KeyExists { .. }) => {}
            outcome => return outcome,
        }
        for (place, key) in keys.iter().enumerate() {
            let (key, row) = (std::slice::from_ref(key), batch.slice(place, 1));
            if let Some(rows) = self.rows_of(key).await? {
                self.queue.write_columns(self.partition(), &rows, row).await?;
                continue;
            }
            match self.put_new(prompt, key, row.clone()).await {
                // Another producer has just created the row with other columns.
                Err(QueueError::KeyExists { .. }) => self.add_when_there(key, row).await?,
                outcome => outcome?,
            }
        }
        Ok(())
    }

    async fn put_new(&self, prompt: u64, keys: &[String], batch: RecordBatch) -> Result<(), QueueError> {
        let group_size = self.config.n_samples_per_prompt;
        let put = Put { group_size, keys: keys.to_vec(), ..Put::group(prompt.to_string(), batch) };
        self.queue.put(self.partition(), put, Some(self.lease_term())).await.map(drop)
    }

    /// Adds columns to a row whose first put is in progress.
    async fn add_when_there(&self, key: &[String], row: RecordBatch) -> Result<(), QueueError> {
        let deadline = Instant::now() + self.lease_term();
        loop {
            let revision = self.queue.status(self.partition()).await?.revision;
            if let Some(rows) = self.rows_of(key).await? {
                return self.queue.write_columns(self.partition(), &rows, row).await;
            }
            self.await_change("the first put of a row", revision, deadline).await?;
        }
    }

    fn lease_term(&self) -> Duration {
        Duration::from_millis(self.config.partition.lease_ms)
    }

    async fn await_change(
        &self,
        what: &'static str,
        revision: u64,
        deadline: Instant,
    ) -> Result<(), QueueError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let stats = self.queue.status_after(self.partition(), revision, left).await?;
        if stats.revision == revision && Instant::now() >= deadline {
            return Err(QueueError::Deadline {
                what: what.into(),
                partition: self.partition().to_owned(),
                state: format!("rows={} of capacity={}", stats.rows, stats.capacity_rows),
            });
        }
        Ok(())
    }

    /// Leases experiences that a consumer has not consumed. Returns `None` if some experiences are missing
    /// and `wait` is absent. The batch has only `columns`. If `columns` is absent, the batch has the columns
    /// that the consumer declared, or all columns if it declared no columns. An index that the consumer has
    /// already consumed is an error.
    ///
    /// Cancel-safe: rows that were leased for a dropped call are given back. A request that gets no rows has
    /// no effect.
    pub async fn get_experience(
        &self,
        consumer: &str,
        columns: Option<&[String]>,
        pick: Pick,
        wait: Option<Duration>,
    ) -> Result<Option<Experience>, QueueError> {
        let deadline = wait.map(|wait| Instant::now() + wait);
        let take = match pick {
            Pick::Indexes(indexes) => {
                let keys: Vec<String> = indexes.into_iter().map(key).collect();
                let Some(rows) = self.rows_in_time(&keys, deadline).await? else { return Ok(None) };
                Take::only(consumer, rows)
            }
            Pick::Samples(count) => Take { at_least: count, ..Take::rows(consumer, count) },
            Pick::Prompts(count) => Take { at_least: count, ..Take::groups(consumer, count) },
        };
        let columns = self.columns_of(consumer, columns)?;
        let take = Take { columns, sampler: self.config.sampler, deadline, ..take };
        let Some(lease) = self.queue.take(self.partition(), &take).await? else { return Ok(None) };
        let batch = joined(lease.batches())?;
        let index = |key: &Option<String>| key.as_ref().and_then(|key| key.parse().ok());
        let indexes: Option<Vec<u64>> = lease.keys().iter().map(index).collect();
        let indexes = indexes.filter(|indexes| indexes.len() == batch.num_rows());
        let indexes = indexes.ok_or_else(|| bad("a row of the dock without an index".to_owned()))?;
        Ok(Some(Experience { lease, batch, indexes }))
    }

    fn columns_of(
        &self,
        consumer: &str,
        columns: Option<&[String]>,
    ) -> Result<Option<Vec<String>>, QueueError> {
        let task = self.config.partition.tasks.iter().find(|task| task.name == consumer);
        let declared = task.map(|task| task.columns.as_slice()).unwrap_or_default();
        let Some(columns) = columns else {
            return Ok((!declared.is_empty()).then(|| declared.to_vec()));
        };
        match columns.iter().find(|column| !declared.is_empty() && !declared.contains(column)) {
            None => Ok(Some(columns.to_vec())),
            Some(column) => Err(bad(format!(
                "consumer={consumer} was declared without column={column}, so it does not wait for it"
            ))),
        }
    }

    async fn rows_in_time(
        &self,
        keys: &[String],
        deadline: Option<Instant>,
    ) -> Result<Option<Vec<RowHandle>>, QueueError> {
        loop {
            let revision = self.queue.status(self.partition()).await?.revision;
            if let Some(rows) = self.rows_of(keys).await? {
                return Ok(Some(rows));
            }
            let Some(deadline) = deadline else { return Ok(None) };
            self.await_change("the rows of the indexes", revision, deadline).await?;
        }
    }

    /// Whether a consumer has consumed all samples of the iteration. Cancel-safe.
    pub async fn all_consumed(&self, consumer: &str) -> Result<bool, QueueError> {
        let stats = self.queue.status(self.partition()).await?;
        Ok(task_of(&stats, self.partition(), consumer)?.acked_rows == self.config.rows)
    }

    /// Frees all rows for the next iteration, leased rows included. Cancel-safe: a dropped call takes effect
    /// completely or not at all.
    pub async fn clear(&self) -> Result<(), QueueError> {
        self.queue.clear_all(self.partition()).await.map(drop)
    }
}
