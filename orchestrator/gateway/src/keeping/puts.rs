//! Puts the rows of groups into the queue.
//!
//! A group is put once: the put carries a token that names the group and its first trajectory, so a put that
//! is repeated after a crash returns the rows of the first one. Then the records of all its trajectories are
//! replaced in one write.

use std::sync::Arc;
use std::time::Duration;

use rolldock_queue::{Put, Queue};
use rolldock_reward::Advantage;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::rows::{Member, batch_of};
use crate::config::Unrewarded;
use crate::core::Core;
use crate::store::Entry;
use crate::trajectories::{Event, One, Settled, Tombstone};

/// The pause before a failed put is repeated.
const PAUSE: Duration = Duration::from_secs(1);

/// Puts groups.
pub(crate) struct Puts {
    pub(crate) core: Arc<Core>,
    pub(crate) queue: Arc<dyn Queue>,
}

impl Puts {
    /// Puts each group that ends, until `end`. A put that is cut off is repeated by the next life of the
    /// gateway.
    pub(crate) async fn run(self, mut settled: mpsc::UnboundedReceiver<Settled>, end: CancellationToken) {
        while let Some(Some(group)) = end.run_until_cancelled(settled.recv()).await {
            if end.run_until_cancelled(self.finish(&group)).await.is_none() {
                return;
            }
        }
    }

    /// Puts a group, as often as it takes, and buries its trajectories.
    async fn finish(&self, group: &Settled) {
        let members = self.members(group);
        let rows: Vec<u32> = members.iter().map(|member| member.rows.len() as u32).collect();
        if rows.iter().any(|rows| *rows > 0) {
            while let Err(error) = self.put(group, &members).await {
                tracing::warn!(group = group.group, error, "a group waits until it can be put");
                tokio::time::sleep(PAUSE).await;
            }
        }
        let fate = if rows.iter().any(|rows| *rows > 0) { "put" } else { "left_out" };
        metrics::counter!("rolldock_gateway_groups_total", "fate" => fate).increment(1);
        metrics::counter!("rolldock_gateway_rows_total").increment(rows.iter().copied().map(u64::from).sum());
        let of = |one: &Arc<One>| members.iter().position(|member| member.uid == one.spec.uid);
        let buried: Vec<(u64, Tombstone)> = group
            .members
            .iter()
            .map(|one| (one.number, tombstone(one, of(one).map_or(0, |index| rows[index]))))
            .collect();
        self.bury(buried).await;
    }

    /// The trajectories that have rows, as the rule about rewards says.
    fn members(&self, group: &Settled) -> Vec<Member> {
        let rule = self.core.config.unrewarded;
        let mut members = Vec::new();
        for (index, one) in group.members.iter().enumerate() {
            let live = one.live.lock();
            let reward = match (&live.reward, rule) {
                (Some(reward), _) => reward.reward,
                (None, Unrewarded::Zero) => 0.0,
                (None, Unrewarded::Drop) => continue,
                (None, Unrewarded::DropGroup) => return Vec::new(),
            };
            members.push(Member::of(one, &live, index as u32, reward));
        }
        let rewards: Vec<f32> = members.iter().map(|member| member.reward).collect();
        let advantages = Advantage::GRPO.of_group(&rewards);
        for (member, advantage) in members.iter_mut().zip(advantages) {
            member.advantage = advantage;
        }
        members
    }

    async fn put(&self, group: &Settled, members: &[Member]) -> Result<(), String> {
        let batch = batch_of(&group.group, members).map_err(|error| error.to_string())?;
        let first = group.members.first().map(|one| one.spec.uid.as_str()).unwrap_or_default();
        let versions = members.iter().flat_map(|member| member.versions());
        let put = Put {
            policy_version: versions.min().unwrap_or(0),
            token: Some(format!("gateway-{first}")),
            ..Put::group(format!("{}-{first}", group.group), batch)
        };
        // A queue that is full or away, or that refuses the columns, holds the group until an operator acts.
        let put = self.queue.put(&self.core.config.partition, put, None).await;
        put.map(drop).map_err(|error| error.to_string())
    }

    /// Replaces the records of trajectories by what is left of them, all in one write.
    async fn bury(&self, buried: Vec<(u64, Tombstone)>) {
        let bodies: Vec<(u64, Vec<u8>)> = buried
            .iter()
            .map(|(number, tombstone)| (*number, Event::Buried(Box::new(tombstone.clone())).encode()))
            .collect();
        let entries: Vec<Entry<'_>> =
            bodies.iter().map(|(number, body)| Entry { number: *number, is_last: true, body }).collect();
        let sequence = self.core.store.append_all(&entries);
        for (number, tombstone) in buried {
            for forgotten in self.core.book.bury(number, tombstone) {
                self.core.store.forget(forgotten);
            }
        }
        if let Err(refusal) = self.core.kept(sequence).await {
            tracing::error!(%refusal, "the end of a group is not recorded; its next life puts it again");
        }
    }
}

fn tombstone(one: &One, rows: u32) -> Tombstone {
    let live = one.live.lock();
    Tombstone {
        uid: one.spec.uid.clone(),
        capability: one.spec.capability.clone(),
        group: one.spec.group.clone(),
        // A settled trajectory has ended.
        end: live.end.unwrap_or(crate::trajectories::End::Completed),
        reward: live.reward.clone(),
        rows,
        turns: live.turns(),
    }
}
