//! The calls of a DataPool: steps of trajectories are submitted, and whole prompt groups are fetched.
//!
//! A submitted step is immediately a row. It is as durable as the queue, and counts against the capacity. A
//! trajectory is complete after its last step, or after
//! [`complete_trajectory`](DataPool::complete_trajectory). A prompt's group is complete when as many
//! trajectories as its size are complete. The queue itself tracks this with
//! [`Put::sample`](rolldock_queue::Put::sample). Incomplete groups do not prevent other groups from being
//! fetched. Submitting to a complete, fetched or given-up group or trajectory is an error and has no effect.
//!
//! The queue frees the payload of consumed groups. When all rows of a put are freed, the payload of the put
//! is freed immediately. When more than half of the payload belongs to freed rows, the queue copies the
//! remaining rows and frees the rest.
//!
//! ```
//! # use std::sync::Arc;
//! # use rolldock_queue::{QueueConfig, QueueError, TransferQueue};
//! # use rolldock_queue_compat::{DataPool, Path, PoolConfig, Step};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), QueueError> {
//! # let step = Step { prompt_ids: vec![1], response_ids: vec![2], reward: 1.0, trajectory_uid: "t".into(),
//! #     prompt_uid: "p".into(), step_index: 0, policy_version: 3, is_last: true,
//! #     metadata: serde_json::Value::Null, path: Path::default() };
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
    joined,
};

pub use batch::PoolBatch;
pub use step::{Path, Step, StepTurn};

/// The column of the importance weight. It is null until a client has written it.
const IMPORTANCE_WEIGHT: &str = "importance_weight";

/// Returns the number of trajectories of a prompt, or `None` for the default number.
pub type GroupSizes = Arc<dyn Fn(&str) -> Option<usize> + Send + Sync>;

/// The configuration of a pool.
#[derive(Clone)]
pub struct PoolConfig {
    /// The partition of the pool; its capacity is in steps. [`new`](Self::new) creates it. Its tasks can be
    /// changed to require `importance_weight`, and its `on_full` determines what happens when the pool is
    /// full.
    pub partition: PartitionSpec,
    /// The number of trajectories of a prompt.
    pub group_size: usize,
    /// A function that returns the group size of a prompt, for prompts whose size differs from `group_size`.
    /// It is called for every put of a prompt, and must always return the same size for a prompt.
    pub group_sizes: Option<GroupSizes>,
    /// The time for which a group may be incomplete, counted from its first step. After this time, the group
    /// is given up. The time is checked at each submission and fetch. If absent, no group is given up.
    pub group_deadline: Option<Duration>,
    /// What happens to the steps of a group that is given up.
    pub unfinished: Unfinished,
    /// A step is off-policy if its policy version is more than this many versions below the newest.
    pub staleness_threshold: u64,
    /// The time that a submission waits for room.
    pub submit_wait: Duration,
}

impl std::fmt::Debug for PoolConfig {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("PoolConfig").field("partition", &self.partition.name).finish_non_exhaustive()
    }
}

impl PoolConfig {
    /// Creates a configuration with groups of `group_size` trajectories. Groups that are incomplete after an
    /// hour are dropped. The staleness threshold is one version, and submissions wait for room for a minute.
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

/// A pool. Clones refer to the same pool.
#[derive(Debug, Clone)]
pub struct DataPool {
    queue: Arc<dyn Queue>,
    config: Arc<PoolConfig>,
    expired: Arc<AtomicU64>,
}

impl DataPool {
    /// Declares the pool's partition. If the partition exists with an equal declaration, it is used with its
    /// rows.
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

    /// Submits one step, like [`submit_steps`](Self::submit_steps).
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn submit_step(&self, step: Step) -> Result<(), QueueError> {
        self.submit_steps(&[step]).await
    }

    /// Submits steps, and waits for room for at most `PoolConfig::submit_wait`. A step that was already
    /// submitted has no effect. These are errors: a different step with the same trajectory and index, a new
    /// step of a trajectory or group that is complete, fetched or given up, and more trajectories than a
    /// group has.
    ///
    /// After an error or a dropped call, some of the first steps may have been submitted. The call can safely
    /// be repeated.
    pub async fn submit_steps(&self, steps: &[Step]) -> Result<(), QueueError> {
        steps.iter().try_for_each(Step::check)?;
        self.expire().await?;
        let deadline = Instant::now() + self.config.submit_wait;
        for steps in steps.chunk_by(Step::goes_on_with) {
            match self.put(steps, deadline).await {
                // Some of the steps already exist.
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
                // The room may be occupied by a group that no client will complete.
                Err(QueueError::Deadline { .. }) if wait < left => {
                    self.expire().await?;
                }
                outcome => return outcome.map(drop),
            }
        }
    }

    /// The time that a call waits before it checks again for groups to give up.
    fn between_looks(&self) -> Option<Duration> {
        self.config.group_deadline.map(|deadline| (deadline / 4).max(Duration::from_millis(1)))
    }

    /// Submits a step that may already exist.
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
                // The first submission of the step is still in progress.
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

    /// Completes a trajectory whose last step was not marked as the last. A repeated call has no effect while
    /// the trajectory exists. A trajectory that is unknown or was freed is an error.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn complete_trajectory(&self, trajectory_uid: &str) -> Result<(), QueueError> {
        self.expire().await?;
        self.queue.end_sample(self.partition(), trajectory_uid).await
    }

    /// Fetches up to `groups` ready prompt groups, oldest first. Returns `None` immediately if no group is
    /// ready.
    ///
    /// Cancel-safe: steps that were leased for a dropped call are given back.
    pub async fn fetch_batch(&self, task: &str, groups: usize) -> Result<Option<PoolBatch>, QueueError> {
        self.expire().await?;
        self.take(&self.asked(task, groups)).await
    }

    /// Fetches up to `groups` ready prompt groups, and waits until at least one is ready. Returns `None` if
    /// no group can become ready any more, and an error after `wait`.
    ///
    /// Cancel-safe, like [`fetch_batch`](Self::fetch_batch).
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
        // Stale groups are also fetched, and their steps are flagged.
        let max_staleness = Some(self.config.staleness_threshold);
        Take { max_staleness, stale: Stale::Deliver, ..Take::groups(task, groups) }
    }

    async fn take(&self, take: &Take) -> Result<Option<PoolBatch>, QueueError> {
        let lease = self.queue.take(self.partition(), take).await?;
        lease.map(PoolBatch::new).transpose()
    }

    /// Writes the importance weights of steps, once. The rows come from [`PoolBatch::rows`]. An estimator
    /// with its own task can write them for a trainer whose task requires the column.
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

    /// Announces a newer policy version. Staleness is measured from the newest version of any announcement or
    /// step.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn announce(&self, policy_version: u64) -> Result<(), QueueError> {
        self.queue.announce(self.partition(), policy_version).await
    }

    /// Gives up groups that were not complete in time, and returns them. Every submission and every fetch
    /// first calls this function.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn expire(&self) -> Result<Vec<ClosedGroup>, QueueError> {
        let Some(deadline) = self.config.group_deadline else { return Ok(Vec::new()) };
        let closed = self.queue.close_groups(self.partition(), deadline, self.config.unfinished).await?;
        self.expired.fetch_add(closed.len() as u64, Ordering::Relaxed);
        Ok(closed)
    }

    /// The number of groups that this pool has given up since it was opened.
    pub fn expired_groups(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// Frees all steps. Incomplete groups accept no more steps.
    ///
    /// A dropped call may have given up the incomplete groups without freeing the other steps.
    pub async fn clear(&self) -> Result<(), QueueError> {
        self.queue.close_groups(self.partition(), Duration::ZERO, Unfinished::Drop).await?;
        self.queue.clear_all(self.partition()).await.map(drop)
    }
}
