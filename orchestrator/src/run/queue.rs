//! The run's queue: accepted groups in, and out again where the recipe has a trainer's stand-in.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rolldock_queue::{Lease, Partition, PartitionSpec, Put, QueueConfig, Take, TransferQueue};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::convert::{Claims, seconds};
use super::serve::{serve_queue, until_taken};
use crate::policy::PolicyState;
use crate::recipe::{Consumer, Recipe};
use crate::rollout::Group;
use crate::rows::group_rows;
use crate::scope::Scope;
use crate::scope::blocking;
use rolldock_ledger::{QueueRecord, Resumption};

/// Inside a run's directory.
pub const QUEUE_FOLDER: &str = "queue";

/// How long the consumer waits for groups before it looks again whether the run is over.
const CONSUMER_PAUSE: Duration = Duration::from_millis(100);
/// How often the lease of a batch that is trained on is renewed.
const RENEW: Duration = Duration::from_secs(10);

/// Where a run keeps its queue; also accepts the queue's own directory.
pub fn queue_folder(dir: &Path) -> PathBuf {
    let inside = dir.join(QUEUE_FOLDER);
    if !inside.exists() && dir.join("journal.log").exists() { dir.to_owned() } else { inside }
}

/// The queue of a run with its one partition. Clones are of the same queue.
#[derive(Clone)]
pub(super) struct RunQueue {
    queue: TransferQueue,
    partition: Partition,
    put_deadline: Duration,
    /// The first step whose groups the consumer leaves alone.
    kept_from_step: u64,
    consumer_task: Option<String>,
    /// That a step collects.
    step_groups: u64,
    /// Groups that the consumer may take.
    allowed: Arc<watch::Sender<u64>>,
    consumed: Arc<AtomicU64>,
}

impl RunQueue {
    pub(super) async fn open(out: &Path, recipe: &Recipe) -> anyhow::Result<Self> {
        let durability = recipe.queue.durability;
        let config = QueueConfig { dir: Some(out.join(QUEUE_FOLDER)), durability, ..QueueConfig::default() };
        let queue = blocking("queue open", move || TransferQueue::open(config)).await??;
        let settings = &recipe.queue;
        let spec =
            PartitionSpec::new(&settings.partition, settings.tasks.iter().cloned(), settings.capacity_rows);
        let length_columns = ["prompt_ids", "response_ids"].map(str::to_owned).to_vec();
        let partition =
            queue.declare(PartitionSpec { on_full: settings.on_full, length_columns, ..spec }).await?;
        let kept = settings.consumer.as_ref().map_or(0, |consumer| consumer.keep_last_steps);
        let kept_from_step = recipe.run.steps.map_or(u64::MAX, |steps| steps.saturating_sub(kept) + 1);
        Ok(Self {
            queue,
            partition,
            put_deadline: seconds(recipe.timeouts.queue_put),
            kept_from_step,
            step_groups: recipe.rollout.train_batch_size as u64,
            consumer_task: settings.consumer.as_ref().map(|consumer| consumer.task.clone()),
            allowed: Arc::new(watch::Sender::new(0)),
            consumed: Arc::new(AtomicU64::new(0)),
        })
    }

    /// The table of training rows.
    pub(super) fn partition(&self) -> Partition {
        self.partition.clone()
    }

    /// Rows that earlier lives of the run have put, and that are not taken yet, may be taken too.
    pub(super) fn allow_earlier(&self, resumption: Option<&Resumption>) -> anyhow::Result<()> {
        let Some(resumption) = resumption else { return Ok(()) };
        let Some(task) = &self.consumer_task else { return Ok(()) };
        // A step that is not open has all of its groups.
        let of_step = |step: u64| {
            let open = resumption.open_steps.iter().find(|open| open.step == step);
            open.map_or(self.step_groups, |open| open.accepted)
        };
        let kept: u64 = (self.kept_from_step..=resumption.last_step).map(of_step).sum();
        let ready = self.partition.ready_groups(task)? as u64;
        self.allowed.send_modify(|allowed| *allowed += ready.saturating_sub(kept));
        Ok(())
    }

    /// Puts a group; waits for room as long as the recipe says.
    pub(super) async fn put(&self, group: &Group) -> anyhow::Result<()> {
        let record = QueueRecord::new(group.dispatch, group.number, group.step, group.prompt.uid);
        let put = Put {
            batches: vec![group_rows(group)?],
            group: format!("{}-{}", group.prompt.uid, group.dispatch),
            group_size: group.samples.len(),
            sample: None,
            policy_version: group.policy_version_min(),
            priority: 0,
            keys: Vec::new(),
            tags: Vec::new(),
            token: Some(format!("dispatch-{}", group.dispatch)),
            record: Some(record.to_json()),
        };
        self.partition.put(put, Some(Instant::now() + self.put_deadline)).await?;
        if group.step < self.kept_from_step {
            self.allowed.send_modify(|allowed| *allowed += 1);
        }
        Ok(())
    }

    /// The run puts nothing more.
    pub(super) fn end_of_puts(&self) {
        self.partition.end_of_puts();
    }

    /// Serves it until the scope ends; says where.
    pub(super) async fn serve(
        &self,
        address: SocketAddr,
        token: Option<String>,
        scope: &Scope,
    ) -> anyhow::Result<SocketAddr> {
        serve_queue(self.queue.clone(), address, token, scope).await
    }

    /// Waits until the clients of the served queue have taken everything, or `interrupted`.
    pub(super) async fn until_taken(&self, at: SocketAddr, interrupted: &CancellationToken) {
        until_taken(&self.partition, at, interrupted).await;
    }

    /// Takes and acks what it may until the end of puts, in a trainer's place; returns the number of groups.
    ///
    /// A batch that is trained on is whole, but for the last one. A version is announced, and the servers
    /// have it, before its batch is acked: a run that is ended in between trains on the batch once more and
    /// waits for nothing.
    pub(super) async fn consume(
        self,
        consumer: Consumer,
        claims: Claims,
        versions: Option<PolicyState>,
        end: CancellationToken,
    ) -> anyhow::Result<u64> {
        let trains = consumer.announces || consumer.train_s > 0.0;
        while let Some(open) = self.next_batch(&consumer, trains, &end).await {
            let take = Take {
                max_staleness: claims.max_staleness,
                stale: claims.stale,
                ..Take::groups(&consumer.task, open).held_by("the run's own consumer")
            };
            let Some(lease) = self.partition.take(&take).await? else {
                // What the queue has dropped as stale will never come.
                tokio::time::sleep(CONSUMER_PAUSE).await;
                if self.partition.stats().ended && self.partition.ready_groups(&consumer.task)? == 0 {
                    break;
                }
                continue;
            };
            let mut groups: Vec<&String> = lease.groups().iter().collect();
            groups.dedup();
            let taken = groups.len() as u64;
            if trains {
                let training = train(&lease, seconds(consumer.train_s), &end);
                if !training.await? {
                    break;
                }
            }
            if let Some(versions) = versions.as_ref().filter(|_| consumer.announces) {
                let version = versions.announce_next();
                // The run is over: the lease is left to expire.
                if end.run_until_cancelled(served(&lease, versions, version)).await.is_none() {
                    break;
                }
            }
            lease.ack().await?;
            self.consumed.fetch_add(taken, Ordering::Relaxed);
        }
        Ok(self.consumed.load(Ordering::Relaxed))
    }

    /// Groups of the next batch, when they may be taken; `None` when there will be no more.
    async fn next_batch(&self, consumer: &Consumer, whole: bool, end: &CancellationToken) -> Option<usize> {
        let mut allowed = self.allowed.subscribe();
        while !end.is_cancelled() {
            let open = *allowed.borrow_and_update() - self.consumed.load(Ordering::Relaxed);
            let open = usize::try_from(open).unwrap_or(usize::MAX);
            // What is allowed grows with every put, and not any more after the last one.
            let ended = self.partition.stats().ended;
            if open >= consumer.take_groups || open > 0 && (ended || !whole) {
                return Some(open.min(consumer.take_groups));
            }
            if ended && !allowed.has_changed().unwrap_or(false) {
                return None;
            }
            let _ = tokio::time::timeout(CONSUMER_PAUSE, allowed.changed()).await;
        }
        None
    }

    /// Makes everything durable and says how many rows are left.
    pub(super) async fn close(&self) -> anyhow::Result<u64> {
        let queue = self.queue.clone();
        blocking("queue close", move || queue.close()).await?;
        Ok(self.partition.stats().rows as u64)
    }
}

/// Pretends to train, and keeps the batch; says whether it came to its end.
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

/// Waits until the servers have the version, and keeps the batch that it comes from.
async fn served(lease: &Lease, versions: &PolicyState, version: u64) {
    while tokio::time::timeout(RENEW, versions.until_served(version)).await.is_err() {
        // One that was lost is trained on again; the version stays.
        let _ = lease.renew().await;
    }
}
