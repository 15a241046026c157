//! The run's queue. Accepted groups are put into the queue. If the recipe has an embedded consumer, the
//! consumer takes the groups in a trainer's place.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_queue::{
    ColumnSpec, Lease, Partition, PartitionSpec, Put, QueueConfig, QueueError, ServiceConfig, Take,
    TransferQueue, holds_queue,
};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::convert::{Claims, seconds};
use super::short_versions::{Due, ShortVersions};
use super::validation_rows::ValidationRows;
use crate::policy::PolicyState;
use crate::process::{QUEUE_FOLDER, of_queue, serve_queue, until_taken};
use crate::recipe::{ColumnType, Consumer, Recipe};
use crate::rollout::Group;
use crate::rows::group_rows;
use crate::scope::Scope;
use crate::scope::blocking;
use rolldock_ledger::{QueueRecord, Resumption};

/// The pause before the consumer repeats a take that found no groups.
const CONSUMER_PAUSE: Duration = Duration::from_millis(100);
/// The pause before the run repeats a put that failed because the machine lacked disk space or descriptors.
const LACK_PAUSE: Duration = Duration::from_millis(500);
/// The interval at which the consumer renews the lease of a batch while it trains.
const RENEW: Duration = Duration::from_secs(10);

/// The queue of a run with its one partition. Clones share the queue.
#[derive(Clone)]
pub(super) struct RunQueue {
    queue: TransferQueue,
    partition: Partition,
    validation: Option<ValidationRows>,
    put_deadline: Duration,
    /// The first step whose groups the consumer does not take.
    kept_from_step: u64,
    consumer_task: Option<String>,
    /// The number of groups that a step collects.
    step_groups: u64,
    /// The number of groups that the consumer may take in total, including the groups that it has taken.
    allowed: Arc<watch::Sender<u64>>,
    consumed: Arc<AtomicU64>,
    /// The versions for which a consumer that announces gets too few groups.
    short: Arc<Mutex<ShortVersions>>,
    /// Whether the consumer announces versions.
    announces: bool,
    lack: Lack,
}

/// The error of a put that is repeated now, because the machine lacks disk space or file descriptors; `None` if no put
/// waits for them.
pub(super) type Lack = Arc<Mutex<Option<String>>>;

impl RunQueue {
    /// Opens the queue of a run. `begun` is the id of the run, if its ledger has one. In this case the queue
    /// must exist, because a new, empty queue would lose the accepted groups.
    pub(super) async fn open(out: &Path, recipe: &Recipe, begun: Option<&str>) -> anyhow::Result<Self> {
        let durability = recipe.queue.durability;
        let folder = out.join(QUEUE_FOLDER);
        if let Some(run_id) = begun.filter(|_| !holds_queue(&folder)) {
            let out = out.display();
            anyhow::bail!(
                "{} holds no queue; expected the queue of run_id={run_id}, which the ledger in {out} continues: put \
                 it back, restore a snapshot with `rolldock queue restore FILE {out}`, or begin a new run in another \
                 directory",
                folder.display()
            );
        }
        let config = QueueConfig { dir: Some(folder), durability, ..QueueConfig::default() };
        let queue = blocking("queue open", move || TransferQueue::open(config)).await??;
        let settings = &recipe.queue;
        let column = |(name, kind): (&String, &ColumnType)| ColumnSpec::new(name, kind.dtype.clone());
        let spec = PartitionSpec {
            tasks: settings.tasks.specs(),
            columns: settings.columns.iter().map(column).collect(),
            on_full: settings.on_full,
            length_columns: ["prompt_ids", "response_ids"].map(str::to_owned).to_vec(),
            lease_ms: seconds(settings.lease_s).as_millis() as u64,
            ..PartitionSpec::new(&settings.partition, settings.tasks.names(), settings.capacity_rows)
        };
        let partition = queue.declare(spec).await?;
        let validation = match recipe.validation {
            Some(_) => Some(ValidationRows::open(&queue).await?),
            None => None,
        };
        let kept = settings.consumer.as_ref().map_or(0, |consumer| consumer.keep_last_steps);
        let kept_from_step = recipe.run.steps.map_or(u64::MAX, |steps| steps.saturating_sub(kept) + 1);
        Ok(Self {
            queue,
            partition,
            validation,
            put_deadline: seconds(recipe.timeouts.queue_put),
            kept_from_step,
            step_groups: recipe.rollout.train_batch_size as u64,
            consumer_task: settings.consumer.as_ref().map(|consumer| consumer.task.clone()),
            allowed: Arc::new(watch::Sender::new(0)),
            consumed: Arc::new(AtomicU64::new(0)),
            short: Arc::new(Mutex::new(ShortVersions::new(
                recipe.policy.steps_per_version,
                recipe.rollout.train_batch_size as u64,
            ))),
            announces: recipe.own_trainer().is_some(),
            lack: Lack::default(),
        })
    }

    /// The whole queue, for its metrics.
    pub(super) fn whole(&self) -> TransferQueue {
        self.queue.clone()
    }

    /// The partition with the training rows.
    pub(super) fn partition(&self) -> Partition {
        self.partition.clone()
    }

    /// What the puts lack now.
    pub(super) fn lack(&self) -> Lack {
        Arc::clone(&self.lack)
    }

    /// Allows the consumer to take the groups that earlier processes of the run have put and that are not
    /// taken yet. The groups of the last steps are excluded, because they stay in the queue.
    pub(super) fn allow_earlier(&self, resumption: Option<&Resumption>) -> anyhow::Result<()> {
        let Some(resumption) = resumption else { return Ok(()) };
        let Some(task) = &self.consumer_task else { return Ok(()) };
        // A step that is not open has all of its groups in the queue.
        let of_step = |step: u64| {
            let open = resumption.open_steps.iter().find(|open| open.step == step);
            open.map_or(self.step_groups, |open| open.accepted)
        };
        let kept: u64 = (self.kept_from_step..=resumption.last_step).map(of_step).sum();
        let ready = self.partition.ready_groups(task)? as u64;
        let earlier = ready.saturating_sub(kept);
        self.allowed.send_modify(|allowed| *allowed += earlier);
        // The last step that has ended may have been short.
        let open = resumption.open_steps.iter().filter(|open| open.step < self.kept_from_step);
        let ended_groups = earlier.saturating_sub(open.map(|open| open.accepted).sum());
        let ended = resumption.open_steps.first().map_or(resumption.last_step, |open| open.step - 1);
        if self.announces && (1..self.kept_from_step).contains(&ended) {
            self.short.lock().note_earlier(ended, ended_groups);
        }
        Ok(())
    }

    /// Notes that `step` has ended with too few groups, all of which are put. A consumer that announces does not wait
    /// for further groups of that step.
    pub(super) fn ended_short(&self, step: u64) {
        if self.announces && step < self.kept_from_step {
            self.short.lock().note(step, *self.allowed.borrow());
            // Wakes the consumer.
            self.allowed.send_modify(|_| ());
        }
    }

    /// Puts a group. Waits for room in the queue and on its disk, up to the time that the recipe sets.
    pub(super) async fn put(&self, group: &Group) -> anyhow::Result<()> {
        let record = QueueRecord::new(group.dispatch, group.number, group.step, group.prompt.uid);
        let rows = group_rows(group)?;
        let put = Put {
            // A trajectory may have several rows.
            group_size: rows.num_rows(),
            batches: vec![rows],
            group: format!("{}-{}", group.prompt.uid, group.dispatch),
            sample: None,
            policy_version: group.policy_version_min(),
            priority: 0,
            keys: Vec::new(),
            tags: Vec::new(),
            token: Some(format!("dispatch-{}", group.dispatch)),
            record: Some(record.to_json()),
        };
        let deadline = Instant::now() + self.put_deadline;
        let mut is_waiting = false;
        loop {
            match self.partition.put(put.clone(), Some(deadline)).await {
                Err(error) if is_lack(&error) && Instant::now() + LACK_PAUSE < deadline => {
                    if !std::mem::replace(&mut is_waiting, true) {
                        tracing::warn!(dispatch = %group.dispatch, %error, "a group waits until it can be put");
                    }
                    *self.lack.lock() = Some(error.to_string());
                    tokio::time::sleep(LACK_PAUSE).await;
                }
                outcome => {
                    *self.lack.lock() = None;
                    break drop(outcome?);
                }
            }
        }
        if group.step < self.kept_from_step {
            self.allowed.send_modify(|allowed| *allowed += 1);
        }
        Ok(())
    }

    /// Keeps the groups of the validation after `step`. If they cannot be kept, the run continues without
    /// them.
    pub(super) async fn keep_validation(&self, step: u64, groups: &[Group]) {
        let Some(validation) = &self.validation else { return };
        if let Err(error) = validation.put(step, groups).await {
            tracing::warn!(step, %error, "the rows of a validation are not kept");
        }
    }

    /// Tells the queue that the run puts nothing more.
    pub(super) fn end_of_puts(&self) {
        self.partition.end_of_puts();
        if let Some(validation) = &self.validation {
            validation.end_of_puts();
        }
        // Wakes the consumer, which may wait for groups that do not come any more.
        self.allowed.send_modify(|_| ());
    }

    /// Serves the queue until the scope ends, and returns the bound address.
    pub(super) async fn serve(
        &self,
        address: SocketAddr,
        config: ServiceConfig,
        scope: &Scope,
    ) -> anyhow::Result<SocketAddr> {
        let metrics = Some(of_queue(None, self.queue.clone()));
        serve_queue(self.queue.clone(), address, ServiceConfig { metrics, ..config }, scope).await
    }

    /// Waits until the clients of the served queue have taken everything, or `interrupted` is cancelled.
    pub(super) async fn until_taken(&self, at: SocketAddr, interrupted: &CancellationToken) {
        until_taken(&self.partition, at, interrupted).await;
    }

    /// Takes and acks groups in a trainer's place, until the end of puts or until `end` is cancelled. Returns
    /// the number of groups that it acked.
    ///
    /// If the consumer trains, it takes whole batches, except for the last one. If it announces versions, a batch is
    /// also smaller if a step of its version was short, and the consumer acks a batch only when the servers have the
    /// version that came from the batch. If the run ends before that, its next process takes the batch again, trains on
    /// it again and announces the version. If the batch were already acked, the next process would wait for a version
    /// that is never announced.
    pub(super) async fn consume(
        self,
        consumer: Consumer,
        claims: Claims,
        versions: Option<PolicyState>,
        end: CancellationToken,
    ) -> anyhow::Result<u64> {
        let trains = consumer.trains();
        while let Some(groups) = self.next_batch(&consumer, trains, &end).await {
            if groups == 0 {
                if !announced(None, versions.as_ref(), &end).await {
                    break;
                }
                self.short.lock().announced(0, self.consumed_groups());
                continue;
            }
            let take = Take {
                max_staleness: claims.max_staleness,
                stale: claims.stale,
                ..Take::groups(&consumer.task, groups).held_by("the run's own consumer")
            };
            let Some(lease) = or_later(self.partition.take(&take).await)? else {
                // Some allowed groups never arrive, because the queue has dropped them as stale or has lost
                // them.
                tokio::time::sleep(CONSUMER_PAUSE).await;
                if self.partition.stats().ended && self.partition.ready_groups(&consumer.task)? == 0 {
                    break;
                }
                continue;
            };
            let mut names: Vec<&String> = lease.groups().iter().collect();
            names.dedup();
            let taken = names.len() as u64;
            if trains && !train(&lease, seconds(consumer.train_s), &end).await? {
                break;
            }
            let announcing = versions.as_ref().filter(|_| consumer.announces);
            // If the run is over, the batch is not acked. Dropping its lease returns the rows to the queue.
            if !announced(Some(&lease), announcing, &end).await {
                break;
            }
            lease.ack().await?;
            let acked = self.consumed.fetch_add(taken, Ordering::Relaxed) + taken;
            self.short.lock().announced(taken, acked);
        }
        Ok(self.consumed_groups())
    }

    /// The number of groups that the embedded consumer has acked.
    pub(super) fn consumed_groups(&self) -> u64 {
        self.consumed.load(Ordering::Relaxed)
    }

    /// Waits until the next batch may be taken, and returns its number of groups, which is 0 if only a version is due.
    /// Returns `None` if there will be no more batches.
    async fn next_batch(&self, consumer: &Consumer, whole: bool, end: &CancellationToken) -> Option<usize> {
        let mut allowed = self.allowed.subscribe();
        while !end.is_cancelled() {
            let (put, acked) = (*allowed.borrow_and_update(), self.consumed_groups());
            let (open, batch) = (put - acked, consumer.take_groups as u64);
            // The allowed number grows only with puts, so it is final after the last put.
            let ended = self.partition.stats().ended;
            let due = match self.short.lock().due(acked, put, batch) {
                Due::Groups(groups) => Some(groups),
                Due::Empty => Some(0),
                Due::Later if open > 0 && (ended || !whole) => Some(open.min(batch)),
                Due::Later => None,
            };
            if due.is_some() {
                return due.map(|groups| usize::try_from(groups).unwrap_or(usize::MAX));
            }
            if ended && !allowed.has_changed().unwrap_or(false) {
                return None;
            }
            let _ = end.run_until_cancelled(allowed.changed()).await;
        }
        None
    }

    /// Makes everything durable, closes the queue, and returns the rows at the end.
    pub(super) async fn close(&self) -> anyhow::Result<RowsAtEnd> {
        let queue = self.queue.clone();
        blocking("queue close", move || queue.close()).await?;
        let stats = self.partition.stats();
        Ok(RowsAtEnd { left: stats.rows as u64, stale: stats.dispositions.stale })
    }
}

/// The numbers of training rows at the end of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowsAtEnd {
    /// The rows in the queue.
    pub(super) left: u64,
    /// The rows that the queue has dropped since the run began, because they were too old for a take.
    pub(super) stale: u64,
}

/// Whether the machine lacks disk space or file descriptors, which other processes may free.
fn is_lack(error: &QueueError) -> bool {
    matches!(error, QueueError::DiskFull { .. } | QueueError::OutOfFiles { .. })
}

/// The outcome of a take; `None` after an error that is not permanent. After damaged rows are lost, the other
/// rows can still be taken. Disk space or descriptors that the machine lacks may be free later.
fn or_later(taken: Result<Option<Lease>, QueueError>) -> Result<Option<Lease>, QueueError> {
    match taken {
        Err(error @ QueueError::Corrupt { .. }) => {
            tracing::error!(%error, "groups are lost to the run's consumer");
            Ok(None)
        }
        Err(error) if is_lack(&error) => {
            tracing::debug!(%error, "the consumer takes again");
            Ok(None)
        }
        taken => taken,
    }
}

/// Pretends to train for `time`, and renews the lease of the batch during that time. Returns `false` if `end`
/// was cancelled before the end of the training.
async fn train(lease: &Lease, time: Duration, end: &CancellationToken) -> anyhow::Result<bool> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        let slept = tokio::time::sleep_until(until.min(Instant::now() + RENEW));
        if end.run_until_cancelled(slept).await.is_none() {
            return Ok(false);
        }
        lease.renew().await?;
    }
    Ok(true)
}

/// Announces the next version, if there are versions to announce, and waits until the servers have it. Renews the
/// lease of the batch that produced the version meanwhile. Returns `false` if `end` was cancelled before.
async fn announced(lease: Option<&Lease>, versions: Option<&PolicyState>, end: &CancellationToken) -> bool {
    let Some(versions) = versions else { return true };
    let version = versions.announce_next();
    let served = async {
        while tokio::time::timeout(RENEW, versions.until_served(version)).await.is_err() {
            if let Some(lease) = lease {
                // If the lease is lost, the consumer trains on the batch again, and the version stays announced.
                let _ = lease.renew().await;
            }
        }
    };
    end.run_until_cancelled(served).await.is_some()
}
