//! The run's queue: accepted groups in, and out again where the recipe has a trainer's stand-in.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rolldock_queue::{Durability, OnFull, Partition, PartitionSpec, Put, QueueConfig, Take, TransferQueue};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::convert::seconds;
use super::serve::{serve_queue, until_taken};
use crate::recipe::{self, Consumer, Recipe};
use crate::rollout::Group;
use crate::rows::group_rows;
use crate::scope::Scope;

/// Inside a run's directory.
pub const QUEUE_FOLDER: &str = "queue";

/// How long the consumer waits for groups before it looks again whether the run is over.
const CONSUMER_WAIT: Duration = Duration::from_secs(1);

/// Where a run keeps its queue; also accepts the queue's own directory.
pub fn queue_folder(dir: &Path) -> PathBuf {
    let inside = dir.join(QUEUE_FOLDER);
    if !inside.exists() && dir.join("journal.log").exists() { dir.to_owned() } else { inside }
}

/// See the module's documentation. Clones are of the same queue.
#[derive(Clone)]
pub(super) struct RunQueue {
    queue: TransferQueue,
    partition: Partition,
    put_deadline: Duration,
    /// The first step whose groups the consumer leaves alone.
    kept_from_step: u64,
    /// Groups that the consumer may take.
    allowed: Arc<watch::Sender<u64>>,
    consumed: Arc<AtomicU64>,
}

impl RunQueue {
    pub(super) async fn open(out: &Path, recipe: &Recipe) -> anyhow::Result<Self> {
        let durability = match recipe.queue.durability {
            recipe::Durability::None => Durability::None,
            recipe::Durability::Os => Durability::Os,
            recipe::Durability::Fsync => Durability::Fsync,
        };
        let config = QueueConfig { dir: Some(out.join(QUEUE_FOLDER)), durability, ..QueueConfig::default() };
        let queue = tokio::task::spawn_blocking(move || TransferQueue::open(config)).await??;
        let on_full = match recipe.queue.on_full {
            recipe::OnFull::Block => OnFull::Block,
            recipe::OnFull::Refuse => OnFull::Refuse,
            recipe::OnFull::DropOldest => OnFull::DropOldest,
        };
        let settings = &recipe.queue;
        let spec =
            PartitionSpec::new(&settings.partition, settings.tasks.iter().cloned(), settings.capacity_rows);
        let length_columns = ["prompt_ids", "response_ids"].map(str::to_owned).to_vec();
        let partition = queue.declare(PartitionSpec { on_full, length_columns, ..spec }).await?;
        let kept = settings.consumer.as_ref().map_or(0, |consumer| consumer.keep_last_steps);
        let kept_from_step = recipe.run.steps.map_or(u64::MAX, |steps| steps.saturating_sub(kept) + 1);
        Ok(Self {
            queue,
            partition,
            put_deadline: seconds(recipe.timeouts.queue_put),
            kept_from_step,
            allowed: Arc::new(watch::Sender::new(0)),
            consumed: Arc::new(AtomicU64::new(0)),
        })
    }

    /// Puts a group; waits for room as long as the recipe says.
    pub(super) async fn put(&self, step: u64, group: &Group) -> anyhow::Result<()> {
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
            record: None,
        };
        self.partition.put(put, Some(Instant::now() + self.put_deadline)).await?;
        if step < self.kept_from_step {
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

    /// Waits until those whom it is served to have taken everything, or `interrupted`.
    pub(super) async fn until_taken(&self, at: SocketAddr, interrupted: &CancellationToken) {
        until_taken(&self.partition, at, interrupted).await;
    }

    /// Takes and acks what it may until the end of puts, in a trainer's place; returns the number of groups.
    pub(super) async fn consume(self, consumer: Consumer, end: CancellationToken) -> anyhow::Result<u64> {
        let mut allowed = self.allowed.subscribe();
        while !end.is_cancelled() {
            let open = *allowed.borrow_and_update() - self.consumed.load(Ordering::Relaxed);
            if open == 0 {
                // What is allowed grows with every put, and not any more after the last one.
                let ended = self.partition.stats().ended;
                if ended && *allowed.borrow() == self.consumed.load(Ordering::Relaxed) {
                    break;
                }
                let _ = tokio::time::timeout(CONSUMER_WAIT / 10, allowed.changed()).await;
                continue;
            }
            let count = consumer.take_groups.min(usize::try_from(open).unwrap_or(usize::MAX));
            let take = Take::groups(&consumer.task, count);
            let Some(lease) = self.partition.take(&take).await? else {
                let _ = tokio::time::timeout(CONSUMER_WAIT / 10, allowed.changed()).await;
                continue;
            };
            let mut groups: Vec<&String> = lease.groups().iter().collect();
            groups.dedup();
            let taken = groups.len() as u64;
            lease.ack().await?;
            self.consumed.fetch_add(taken, Ordering::Relaxed);
        }
        Ok(self.consumed.load(Ordering::Relaxed))
    }

    /// Makes everything durable and says how many rows are left.
    pub(super) async fn close(&self) -> anyhow::Result<u64> {
        let queue = self.queue.clone();
        tokio::task::spawn_blocking(move || queue.close()).await?;
        Ok(self.partition.stats().rows as u64)
    }
}
