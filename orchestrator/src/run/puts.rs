//! Puts accepted groups into the queue as rows. Each group is put once, in the order in which the groups were
//! accepted.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use rolldock_reward::Estimator;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::figures::RunFigures;
use super::journalling::RunJournal;
use super::meters::Meters;
use super::queue::RunQueue;
use crate::rollout::{Group, Handed, Phase, RolloutControl, Sample, StepMetrics, Subject};

/// The time for which an interrupted run waits until the queue has room for an accepted group. Without room in this time,
/// this group and all later ones are issued again when the run continues.
const INTERRUPTED_PUT_LIMIT: std::time::Duration = std::time::Duration::from_secs(1);

/// Puts accepted groups into the queue.
pub(super) struct Puts<'a> {
    pub(super) queue: &'a RunQueue,
    pub(super) ledger: &'a RunJournal,
    pub(super) figures: &'a RunFigures,
    pub(super) control: RolloutControl,
    pub(super) meters: &'a Meters,
    pub(super) advantage: Estimator,
    /// Cancelled when the run is interrupted. After that there may be no consumer that makes room.
    pub(super) interrupted: CancellationToken,
    /// Whether a group has found no room after the interrupt. No later group is put, because the groups in the queue
    /// have the order in which they were accepted.
    pub(super) is_over: AtomicBool,
}

impl Puts<'_> {
    /// Puts each group as soon as it is accepted. If the advantages need the whole batch, all groups of a
    /// step are put when the last of them is accepted. Calls `ended` for each step of a flow after its groups
    /// are put.
    pub(super) async fn all(
        &self,
        mut handed: mpsc::UnboundedReceiver<Handed>,
        mut ended: impl AsyncFnMut(Box<StepMetrics>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut lost = 0_u64;
        let mut batch = Vec::new();
        while let Some(handed) = handed.recv().await {
            match handed {
                Handed::Group(group) if self.advantage.per_group().is_some() => {
                    self.meters.accepted(&group);
                    lost += u64::from(!self.put(&group).await?);
                }
                Handed::Group(group) => {
                    self.meters.accepted(&group);
                    batch.push(*group);
                }
                Handed::StepEnd(metrics) => {
                    lost += self.put_batch(&mut batch).await?;
                    self.settle().await?;
                    ended(metrics).await?;
                }
            }
        }
        lost += self.put_batch(&mut batch).await?;
        self.settle().await?;
        if lost > 0 {
            tracing::warn!(
                groups = lost,
                "accepted groups found no room in the full queue; they are issued again when the run continues"
            );
        }
        Ok(())
    }

    /// Settles the groups that are in the queue. Waits if the disk of the ledger is full.
    async fn settle(&self) -> anyhow::Result<()> {
        let subject = Subject { detail: Some("the ledger".into()), ..Subject::default() };
        let _waiting = self.control.waits().enter(Phase::Queue, subject);
        self.ledger.settle().await
    }

    async fn put_batch(&self, batch: &mut Vec<Group>) -> anyhow::Result<u64> {
        let mut lost = 0;
        estimate(batch, self.advantage);
        for group in std::mem::take(batch) {
            lost += u64::from(!self.put(&group).await?);
        }
        Ok(lost)
    }

    /// Puts a group, and returns whether the queue had room for it. After an interruption, the wait for room
    /// is at most [`INTERRUPTED_PUT_LIMIT`].
    async fn put(&self, group: &Group) -> anyhow::Result<bool> {
        if self.is_over.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let subject = Subject {
            dispatch: Some(group.dispatch),
            prompt_uid: Some(group.prompt.uid),
            detail: Some("room for its rows".into()),
            ..Subject::default()
        };
        let waiting = self.control.waits().enter(Phase::Queue, subject);
        // The ledger is written first, because it must have every group that the queue has. It waits if its disk is full.
        self.ledger.before_put().await?;
        let mut putting = std::pin::pin!(self.queue.put(group));
        let put = tokio::select! {
            biased;
            put = &mut putting => put,
            () = self.interrupted.cancelled() => match tokio::time::timeout(INTERRUPTED_PUT_LIMIT, putting).await {
                Ok(put) => put,
                Err(_elapsed) => {
                    self.is_over.store(true, Ordering::Relaxed);
                    return Ok(false);
                }
            },
        };
        drop(waiting);
        put.with_context(|| format!("cannot put the group of dispatch={}", group.dispatch))?;
        self.ledger.was_put(group.dispatch);
        self.figures.accepted(group);
        self.control.was_put();
        Ok(true)
    }
}

/// Computes the advantages that depend on every group of the step.
fn estimate(groups: &mut [Group], advantage: Estimator) {
    let of_each = |group: &Group| group.samples.iter().map(|sample| sample.reward).collect::<Vec<f32>>();
    let rewards: Vec<Vec<f32>> = groups.iter().map(of_each).collect();
    let length = |sample: &Sample| if sample.is_masked { 0 } else { sample.response_ids.len() as u32 };
    let lengths: Vec<Vec<u32>> =
        groups.iter().map(|group| group.samples.iter().map(length).collect()).collect();
    let rewards: Vec<&[f32]> = rewards.iter().map(Vec::as_slice).collect();
    let lengths: Vec<&[u32]> = lengths.iter().map(Vec::as_slice).collect();
    let advantages = advantage.of_batch_by_tokens(&rewards, &lengths);
    for (group, advantages) in groups.iter_mut().zip(advantages) {
        for (sample, advantage) in group.samples.iter_mut().zip(advantages) {
            sample.advantage = advantage;
        }
    }
}
