//! The simulated trainer: takes batches from a queue in memory, trains for a while, and announces versions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use rolldock_queue::{Partition, PartitionSpec, Put, QueueConfig, Take, TransferQueue};
use rolldock_simengine::PauseMode;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::outcome::Accepted;
use crate::engine::simulated::SimulatedEngine;
use crate::policy::UpdatePause;
use crate::recipe::Recipe;
use crate::rollout::{Group, Handed, RolloutControl};

/// The task of the queue.
const TASK: &str = "train";
/// The longest wait for a claim or for room in the queue, in virtual time.
const CLAIM_LIMIT: Duration = Duration::from_secs(10_000_000);

/// A trainer, with the queue from which it takes groups. Each group is one row, because only the order and
/// the versions of groups matter.
pub(super) struct Trainer {
    partition: Partition,
    control: RolloutControl,
    engine: SimulatedEngine,
    version: Arc<watch::Sender<u64>>,
    training: Duration,
    pause: UpdatePause,
    steps: u64,
    target: usize,
    steps_per_version: u64,
}

/// The times at which batches were claimed, and the number of groups for each staleness at the claim.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pub(super) at: Vec<Instant>,
    pub(super) ages: BTreeMap<u64, u64>,
}

impl Claims {
    /// The mean time from claim to claim, in seconds, of a run that began at `began`. Generation is up to `ahead` steps
    /// ahead of the claims. For the first claims more is generated than these steps need, and for the last claims less, so
    /// these claims do not count. If no other claims are left, the result is the time of the run over all claims.
    pub(super) fn step_s(&self, began: Instant, ahead: u64) -> f64 {
        let claims = self.at.len();
        let first = claims / 6;
        let last = claims.saturating_sub(1).checked_sub(usize::try_from(ahead).unwrap_or(usize::MAX));
        match last.filter(|last| *last > first) {
            Some(last) => (self.at[last] - self.at[first]).as_secs_f64() / (last - first) as f64,
            None => {
                let whole = self.at.last().map_or(Duration::ZERO, |last| *last - began);
                whole.as_secs_f64() / claims.max(1) as f64
            }
        }
    }
}

impl Trainer {
    /// A trainer that trains `steps` steps, and needs the time `training` for each step.
    pub(super) async fn new(
        control: RolloutControl,
        engine: SimulatedEngine,
        recipe: &Recipe,
        steps: u64,
        training: Duration,
    ) -> anyhow::Result<Self> {
        let target = recipe.rollout.train_batch_size;
        let queue = TransferQueue::open(QueueConfig::default())?;
        // The recipe's queue has a row for each sample. The simulated queue always has room for the groups of
        // a step, because otherwise no step could end.
        let rows = recipe.queue.capacity_rows / recipe.rollout.samples_per_prompt.max(1) as usize;
        let partition = queue.declare(PartitionSpec::new(TASK, [TASK], rows.max(target))).await?;
        partition.announce(recipe.policy.first_version).await?;
        Ok(Self {
            partition,
            control,
            engine,
            version: Arc::new(watch::Sender::new(recipe.policy.first_version)),
            training,
            pause: recipe.policy.update.pause,
            steps,
            target,
            steps_per_version: recipe.policy.steps_per_version,
        })
    }

    /// The version that the servers have.
    pub(super) fn version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Puts accepted groups into the queue until the rollout ends.
    pub(super) async fn put_all(
        &self,
        mut handed: mpsc::UnboundedReceiver<Handed>,
        accepted: &mut Accepted,
    ) -> anyhow::Result<()> {
        while let Some(handed) = handed.recv().await {
            match handed {
                Handed::Group(group) => {
                    self.partition.put(row(&group)?, Some(Instant::now() + CLAIM_LIMIT)).await?;
                    self.control.was_put();
                    accepted.add(&group);
                }
                Handed::StepEnd(metrics) => accepted.step_ended(&metrics),
            }
        }
        self.partition.end_of_puts();
        Ok(())
    }

    /// Takes all batches and trains on them. Ends early if the rollout ends before all batches are complete.
    pub(super) async fn train(&self) -> anyhow::Result<Claims> {
        let mut claims = Claims::default();
        for step in 1..=self.steps {
            let take = Take { at_least: self.target, ..Take::groups(TASK, self.target) };
            let lease = self.partition.take(&take.until(Instant::now() + CLAIM_LIMIT)).await?;
            let Some(lease) = lease else { break };
            claims.at.push(Instant::now());
            let version = *self.version.borrow();
            for generated_by in lease.policy_versions() {
                *claims.ages.entry(version.saturating_sub(*generated_by)).or_default() += 1;
            }
            lease.ack().await?;
            tokio::time::sleep(self.training).await;
            if step.is_multiple_of(self.steps_per_version) && step < self.steps {
                self.update(version + 1).await?;
            }
        }
        Ok(claims)
    }

    /// Updates the weights of all servers together, and announces the version.
    async fn update(&self, version: u64) -> anyhow::Result<()> {
        let mode = match self.pause {
            UpdatePause::Keep => Some(PauseMode::Keep),
            UpdatePause::Abort => Some(PauseMode::Abort),
            UpdatePause::Wait => Some(PauseMode::Wait),
            UpdatePause::None => None,
        };
        for server in self.engine.servers() {
            if let Some(mode) = mode {
                server.pause(mode).await;
            }
        }
        for server in self.engine.servers() {
            server.update_weight_version(version.to_string());
            server.reset_prefix_cache(false);
            server.resume();
        }
        self.partition.announce(version).await?;
        self.control.set_policy_version(version);
        self.version.send_replace(version);
        Ok(())
    }
}

fn row(group: &Group) -> anyhow::Result<Put> {
    let number: ArrayRef = Arc::new(UInt64Array::from(vec![group.number]));
    let batch = RecordBatch::try_from_iter([("number", number)])?;
    Ok(Put { policy_version: group.policy_version_min(), ..Put::group(group.number.to_string(), batch) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claims come every 10 s. The first two are late, and the last two are early.
    #[test]
    fn claims_without_generation_ahead_of_them_do_not_count() {
        let began = Instant::now();
        let seconds = [25, 45, 55, 65, 75, 85, 95, 105, 115, 125, 126, 127];
        let at = seconds.map(|seconds| began + Duration::from_secs(seconds)).to_vec();
        let claims = Claims { at, ages: BTreeMap::new() };
        assert_eq!(claims.step_s(began, 2), 10.0);
        assert_eq!(claims.step_s(began, 20), 127.0 / 12.0, "no claim is left, so the whole run counts");
        assert_eq!(Claims::default().step_s(began, 0), 0.0);
    }
}
