//! The calls of a DataPool: steps of trajectories in, whole prompt groups out.
//!
//! A step is a row at once, durable as the queue is, and counts against the capacity from then on. A
//! trajectory is complete with its last step or by [`complete_trajectory`](DataPool::complete_trajectory),
//! and a prompt's group when as many trajectories are as it has: the queue knows that itself, as
//! [`Put::sample`](rolldock_queue::Put::sample). A group that is not complete keeps no other one from being fetched.
//! What comes for a group or a trajectory that is complete, fetched or given up is an error and makes
//! nothing.
//!
//! Payload of consumed groups is freed as the queue does it: at once where all rows of a put are gone, else
//! by copying those that are left when more than half are gone.
//!
//! ```
//! # use std::sync::Arc;
//! # use rolldock_queue::{QueueConfig, QueueError, TransferQueue};
//! # use rolldock_queue_compat::{DataPool, PoolConfig, Step};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), QueueError> {
//! # let step = Step { prompt_ids: vec![1], response_ids: vec![2], reward: 1.0, trajectory_uid: "t".into(),
//! #     prompt_uid: "p".into(), step_index: 0, policy_version: 3, is_last: true, metadata: serde_json::Value::Null };
//! let queue = Arc::new(TransferQueue::open(QueueConfig::default())?);
//! let pool = DataPool::open(queue, PoolConfig::new("pool", ["train"], 4096, 1)).await?;
//! pool.submit_step(step).await?;
//! while let Some(batch) = pool.fetch_batch("train", 8).await? {
//!     println!("{} of {} steps are off-policy", batch.off_policy_count(), batch.rows().len());
//!     batch.consume().await?;
//! }
//! # Ok(())
//! # }
//! ```

mod batch;
mod step;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_array::{ArrayRef, Float32Array, RecordBatch};
use tokio::time::Instant;

use super::{bad, check_counts};
use rolldock_queue::{
    ClosedGroup, PartitionSpec, Put, Queue, QueueError, RowHandle, SamplePart, Stale, Take, Unfinished,
    check_depth, joined,
};

pub use batch::PoolBatch;
pub use step::Step;

/// The column for the importance weight: null until a client has written it.
const IMPORTANCE_WEIGHT: &str = "importance_weight";

/// Trajectories of a prompt, for prompts that differ from the default.
pub type GroupSizes = Arc<dyn Fn(&str) -> Option<usize> + Send + Sync>;

/// How a pool works.
#[derive(Clone)]
pub struct PoolConfig {
    /// Its partition, whose capacity is in steps. [`new`](Self::new) makes it; tasks may be told to wait for
    /// `importance_weight` there, and what a full pool does is its `on_full`.
    pub partition: PartitionSpec,
    /// Trajectories of a prompt.
    pub group_size: usize,
    /// Where prompts differ; asked for every put of a prompt, and to be answered alike each time.
    pub group_sizes: Option<GroupSizes>,
    /// A group that is not complete so long after its first step is given up; checked at each submission and
    /// fetch. Absent: never.
    pub group_deadline: Option<Duration>,
    /// What becomes of the steps of such a group.
    pub unfinished: Unfinished,
    /// A step is off-policy if its policy version is further than this below the newest; versions.
    pub staleness_threshold: u64,
    /// How long a submission waits for room.
    pub submit_wait: Duration,
}

impl std::fmt::Debug for PoolConfig {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("PoolConfig").field("partition", &self.partition.name).finish_non_exhaustive()
    }
}

impl PoolConfig {
    /// Groups of `group_size` trajectories that are dropped when they are not complete in an hour; one
    /// version of staleness; a minute of waiting for room.
    pub fn new(
        partition: impl Into<String>,
        tasks: impl IntoIterator<Item = impl Into<String>>,
        capacity_steps: usize,
        group_size: usize,
    ) -> Self {
        let partition = PartitionSpec::new(partition, tasks, capacity_steps);
        let length_columns = ["prompt_ids", "response_ids"].map(str::to_owned).to_vec();
        Self {
            partition: PartitionSpec { length_columns, ..partition },
            group_size,
            group_sizes: None,
            group_deadline: Some(Duration::from_secs(3600)),
            unfinished: Unfinished::Drop,
            staleness_threshold: 1,
            submit_wait: Duration::from_secs(60),
        }
    }

    fn size_of(&self, prompt_uid: &str) -> usize {
        self.group_sizes.as_ref().and_then(|sizes| sizes(prompt_uid)).unwrap_or(self.group_size)
    }
}

/// A pool. Clones are of the same one.
#[derive(Debug, Clone)]
pub struct DataPool {
    queue: Arc<dyn Queue>,
    config: Arc<PoolConfig>,
    expired: Arc<AtomicU64>,
}

impl DataPool {
    /// Declares the pool's partition, or finds it declared in the same way with what is in it.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn open(queue: Arc<dyn Queue>, config: PoolConfig) -> Result<Self, QueueError> {
        let is_zero = |wait: Duration| wait < Duration::from_millis(1);
        if config.group_size == 0 || config.group_deadline.is_some_and(is_zero) {
            return Err(bad(
                "expected group_size of at least 1 and group_deadline of at least 1 ms".to_owned()
            ));
        }
        queue.declare(config.partition.clone()).await?;
        Ok(Self { queue, config: Arc::new(config), expired: Arc::default() })
    }

    fn partition(&self) -> &str {
        &self.config.partition.name
    }

    /// Submits one step, as [`submit_steps`](Self::submit_steps) does.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn submit_step(&self, step: Step) -> Result<(), QueueError> {
        self.submit_steps(&[step]).await
    }

    /// Submits steps, waiting for room as long as the pool was told. A step that is there already changes
    /// nothing; one of the same trajectory and index that differs is an error. So are steps of trajectories
    /// and groups that are complete, fetched or given up, and of more trajectories than a group has.
    ///
    /// After an error, and dropped in the middle, those before may have been submitted; repeating it is
    /// harmless.
    pub async fn submit_steps(&self, steps: &[Step]) -> Result<(), QueueError> {
        steps.iter().try_for_each(|step| check_depth("metadata", &step.metadata))?;
        self.expire().await?;
        let deadline = Instant::now() + self.config.submit_wait;
        for steps in steps.chunk_by(Step::goes_on_with) {
            match self.put(steps, deadline).await {
                // Some are there already.
                Err(QueueError::KeyExists { .. }) => {
                    for step in steps {
                        self.submit_again(step, deadline).await?;
                    }
                }
                outcome => outcome?,
            }
        }
        Ok(())
    }

    async fn put(&self, steps: &[Step], deadline: Instant) -> Result<(), QueueError> {
        let Some(last) = steps.last() else { return Ok(()) };
        let put = Put {
            group_size: self.config.size_of(&last.prompt_uid),
            sample: Some(SamplePart { uid: last.trajectory_uid.clone(), is_last: last.is_last }),
            policy_version: last.policy_version,
            keys: steps.iter().map(Step::key).collect(),
            ..Put::group(last.prompt_uid.clone(), step::rows_of(steps)?)
        };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = self.between_looks().map_or(left, |between| between.min(left));
            match self.queue.put(self.partition(), put.clone(), Some(wait)).await {
                // The room may be taken by a group that no client completes any more.
                Err(QueueError::Deadline { .. }) if wait < left => {
                    self.expire().await?;
                }
                outcome => return outcome.map(drop),
            }
        }
    }

    /// How long a call may wait before it looks again for groups that are to be given up.
    fn between_looks(&self) -> Option<Duration> {
        self.config.group_deadline.map(|deadline| (deadline / 4).max(Duration::from_millis(1)))
    }

    /// Submits a step that may be there.
    async fn submit_again(&self, step: &Step, deadline: Instant) -> Result<(), QueueError> {
        let key = [step.key()];
        loop {
            let revision = self.queue.status(self.partition()).await?.revision;
            match self.put(std::slice::from_ref(step), deadline).await {
                Err(QueueError::KeyExists { .. }) => {}
                outcome => return outcome,
            }
            match self.queue.find(self.partition(), Some(&key)).await {
                Ok(found) => {
                    let rows: Vec<RowHandle> = found.into_iter().map(|found| found.row).collect();
                    return self.check_same(step, &rows).await;
                }
                // The first one is still on its way.
                Err(QueueError::UnknownKey { .. }) => {}
                Err(error) => return Err(error),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(QueueError::Deadline {
                    what: "the first submission of a step".into(),
                    partition: self.partition().to_owned(),
                    state: format!("step={}", step.key()),
                });
            }
            self.queue.status_after(self.partition(), revision, left).await?;
        }
    }

    async fn check_same(&self, step: &Step, rows: &[RowHandle]) -> Result<(), QueueError> {
        let ours = step::rows_of(std::slice::from_ref(step))?;
        let names: Vec<String> =
            ours.schema_ref().fields().iter().map(|field| field.name().clone()).collect();
        let there = match self.queue.get(self.partition(), rows, Some(&names)).await {
            Ok(there) => joined(&there)?,
            Err(QueueError::StaleHandle { .. }) => {
                return Err(QueueError::GroupClosed { group: step.prompt_uid.clone() });
            }
            Err(error) => return Err(error),
        };
        if there.columns() == ours.columns() {
            return Ok(());
        }
        Err(QueueError::StepDiffers { trajectory: step.trajectory_uid.clone(), step: step.step_index })
    }

    /// A trajectory whose last step did not say so is complete. Repeating it changes nothing while the
    /// trajectory is there; then, and for one that never was, it is an error.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn complete_trajectory(&self, trajectory_uid: &str) -> Result<(), QueueError> {
        self.expire().await?;
        self.queue.end_sample(self.partition(), trajectory_uid).await
    }

    /// Up to `groups` prompt groups that are ready, oldest first; `None` at once if there are none.
    ///
    /// Cancel-safe: steps that were leased for a dropped call are given back.
    pub async fn fetch_batch(&self, task: &str, groups: usize) -> Result<Option<PoolBatch>, QueueError> {
        self.expire().await?;
        self.take(&self.asked(task, groups)).await
    }

    /// Up to `groups` prompt groups; waits for the first that is ready. `None` if no group will be ready.
    /// After `wait` it is an error.
    ///
    /// Cancel-safe, as [`fetch_batch`](Self::fetch_batch) is.
    pub async fn wait_batch(
        &self,
        task: &str,
        groups: usize,
        wait: Duration,
    ) -> Result<Option<PoolBatch>, QueueError> {
        let deadline = Instant::now() + wait;
        loop {
            self.expire().await?;
            let look = self.between_looks().map_or(deadline, |between| Instant::now() + between);
            let until = look.min(deadline);
            match self.take(&self.asked(task, groups).until(until)).await {
                Err(QueueError::Deadline { .. }) if until < deadline => {}
                outcome => return outcome,
            }
        }
    }

    fn asked(&self, task: &str, groups: usize) -> Take {
        // Stale ones are given too, and flagged.
        let max_staleness = Some(self.config.staleness_threshold);
        Take { max_staleness, stale: Stale::Deliver, ..Take::groups(task, groups) }
    }

    async fn take(&self, take: &Take) -> Result<Option<PoolBatch>, QueueError> {
        let lease = self.queue.take(self.partition(), take).await?;
        lease.map(PoolBatch::new).transpose()
    }

    /// Writes the importance weights of steps, once. [`PoolBatch::rows`] names them; an estimator that is a
    /// task of its own does it before a trainer whose task waits for the column.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn write_importance_weights(
        &self,
        rows: &[RowHandle],
        weights: &[f32],
    ) -> Result<(), QueueError> {
        check_counts("weights", rows.len(), weights.len())?;
        let weights: ArrayRef = Arc::new(Float32Array::from(weights.to_vec()));
        let batch = RecordBatch::try_from_iter_with_nullable([(IMPORTANCE_WEIGHT, weights, true)])?;
        self.queue.write_columns(self.partition(), rows, batch).await
    }

    /// There is a newer policy version: what staleness counts from, besides the steps' own versions.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn announce(&self, policy_version: u64) -> Result<(), QueueError> {
        self.queue.announce(self.partition(), policy_version).await
    }

    /// Gives up groups that were not complete in time; says which. Every submission and every fetch does it
    /// first.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn expire(&self) -> Result<Vec<ClosedGroup>, QueueError> {
        let Some(deadline) = self.config.group_deadline else { return Ok(Vec::new()) };
        let closed = self.queue.close_groups(self.partition(), deadline, self.config.unfinished).await?;
        self.expired.fetch_add(closed.len() as u64, Ordering::Relaxed);
        Ok(closed)
    }

    /// Groups that this pool has given up, since it was opened.
    pub fn expired_groups(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// Frees all steps; the groups that are not complete take no more.
    ///
    /// Dropped in the middle, those may have been given up alone.
    pub async fn clear(&self) -> Result<(), QueueError> {
        self.queue.close_groups(self.partition(), Duration::ZERO, Unfinished::Drop).await?;
        self.queue.clear_all(self.partition()).await.map(drop)
    }
}
