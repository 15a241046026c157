//! Puts the rows of groups into the queue.
//!
//! A group is put once: the token of the put names the group's first trajectory, so a put that is repeated after
//! a crash returns the rows of the first put. Then the records of all trajectories of the group are replaced in
//! one write.
//!
//! # Invariants
//! - Groups are put independently: if the queue has no room for a group, the group gives up its place after
//!   [`PUT_WAIT`], so that other groups can be put.
//! - At most [`PUTS_MAX`] groups are on their way to the queue at a time, so few rows are in memory twice.
//! - A group is given up only if its rows cannot be encoded or the queue can never take them. Its fate,
//!   `refused`, is counted and logged once, and is shown for each of its trajectories. After any other failure
//!   the put is repeated until the queue has the rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rolldock_queue::{Put, Queue, QueueError};
use rolldock_reward::Estimator;
use rolldock_trajectory::turn_advantages;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::rows::{Member, batch_of};
use crate::config::Unrewarded;
use crate::core::Core;
use crate::store::Entry;
use crate::trajectories::{End, Event, One, Settled, Tombstone};

/// Maximum number of groups that are put at a time.
const PUTS_MAX: usize = 8;
/// Maximum time that a put waits for room in the queue. Other groups can be put after that.
const PUT_WAIT: Duration = Duration::from_secs(10);
/// The pause before a failed put is repeated for the first time. Each later pause is twice as long.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest pause before a failed put is repeated.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Puts groups.
pub(crate) struct Puts {
    core: Arc<Core>,
    queue: Arc<dyn Queue>,
    places: Semaphore,
}

/// What became of a group.
enum Fate {
    /// The queue has the rows of the group. The map has the number of rows of each trajectory that was put, by
    /// the number of the trajectory.
    Put(BTreeMap<u64, u32>),
    /// The group has no rows to put: its trajectories have none, or they were left out for lack of a reward.
    LeftOut,
    /// The queue can never take the group's rows.
    Refused(String),
}

/// The error of an attempt that must be repeated.
struct Again(String);

impl Puts {
    pub(crate) fn new(core: Arc<Core>, queue: Arc<dyn Queue>) -> Self {
        Self { core, queue, places: Semaphore::new(PUTS_MAX) }
    }

    /// Puts each group that ends, until `end` is cancelled. The gateway repeats an interrupted put after its next
    /// start.
    pub(crate) async fn run(self, settled: mpsc::UnboundedReceiver<Settled>, end: CancellationToken) {
        end.run_until_cancelled(self.finish_all(settled)).await;
    }

    async fn finish_all(&self, mut settled: mpsc::UnboundedReceiver<Settled>) {
        // A running put waits either for the fate of its group or for its last record. While it waits for the
        // fate, the group's trajectories are not buried, so the limit of trajectories (`live_max`) also bounds
        // these puts.
        let mut running = FuturesUnordered::new();
        loop {
            metrics::gauge!("rolldock_gateway_groups_waiting").set(running.len() as f64);
            tokio::select! {
                biased;
                Some(()) = running.next() => {}
                group = settled.recv() => match group {
                    Some(group) => running.push(self.finish(group)),
                    None => break,
                },
            }
        }
        while running.next().await.is_some() {}
    }

    /// Tries to put a group until its fate is known, and then buries its trajectories.
    async fn finish(&self, group: Settled) {
        let mut pause = PAUSE;
        let fate = loop {
            match self.attempt(&group).await {
                Ok(fate) => break fate,
                Err(Again(error)) => {
                    tracing::warn!(group = group.group, error, "a group waits until it can be put");
                    metrics::counter!("rolldock_gateway_puts_failed_total").increment(1);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        };
        let (name, rows, refused) = match fate {
            Fate::Put(rows) => ("put", rows, None),
            Fate::LeftOut => ("left_out", BTreeMap::new(), None),
            Fate::Refused(reason) => {
                tracing::error!(group = group.group, reason, "the queue can never take a group's rows");
                ("refused", BTreeMap::new(), Some(reason))
            }
        };
        let total = rows.values().copied().map(u64::from).sum();
        metrics::counter!("rolldock_gateway_groups_total", "fate" => name).increment(1);
        metrics::counter!("rolldock_gateway_rows_total").increment(total);
        let of = |one: &One| rows.get(&one.number).copied().unwrap_or(0);
        let buried = group.members.iter().map(|one| (one.number, tombstone(one, of(one), refused.clone())));
        self.bury(buried.collect()).await;
    }

    async fn attempt(&self, group: &Settled) -> Result<Fate, Again> {
        // The semaphore is never closed.
        let _place = self.places.acquire().await;
        let members = self.members(group);
        let rows: BTreeMap<u64, u32> =
            members.iter().map(|member| (member.number, member.rows.len() as u32)).collect();
        if rows.values().all(|rows| *rows == 0) {
            return Ok(Fate::LeftOut);
        }
        let has_turns = self.core.config.advantage.per_turn().is_some();
        let batch = match batch_of(&group.group, &members, has_turns) {
            Ok(batch) => batch,
            Err(error) => return Ok(Fate::Refused(error.to_string())),
        };
        let first = group.members.first().map(|one| one.spec.uid.as_str()).unwrap_or_default();
        let versions = members.iter().flat_map(|member| member.versions());
        let put = Put {
            policy_version: versions.min().unwrap_or(0),
            token: Some(format!("gateway-{first}")),
            ..Put::group(format!("{}-{first}", group.group), batch)
        };
        // The batch has a copy of the members' rows. The members are dropped before the put, which may wait for
        // room.
        drop(members);
        match self.queue.put(&self.core.config.partition, put, Some(PUT_WAIT)).await {
            Ok(_) => Ok(Fate::Put(rows)),
            Err(error) if is_final(&error) => Ok(Fate::Refused(error.to_string())),
            Err(error) => Err(Again(error.to_string())),
        }
    }

    /// The trajectories that are put, with their advantages. The setting `unrewarded` decides what happens to
    /// trajectories without a reward.
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
        estimate(&mut members, self.core.config.advantage);
        members
    }

    /// Replaces the records of trajectories with their tombstones, all in one write.
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
            tracing::error!(
                %refusal,
                "the end of a group is not recorded; the gateway puts the group again after its next start"
            );
        }
    }
}

/// Gives the trajectories of a group their advantages.
fn estimate(members: &mut [Member], estimator: Estimator) {
    let rewards: Vec<f32> = members.iter().map(|member| member.reward).collect();
    let of_group = estimator.of_batch(&[&rewards]).into_iter().flatten();
    for (member, advantage) in members.iter_mut().zip(of_group) {
        member.advantage = advantage;
    }
    let Some(estimator) = estimator.per_turn() else { return };
    let group: Vec<_> = members.iter().map(|member| (member.rows.as_slice(), member.reward)).collect();
    let of_turns = turn_advantages(&group, estimator);
    for (member, advantages) in members.iter_mut().zip(of_turns) {
        member.turn_advantages = advantages;
    }
}

/// Whether the queue can never take a group, because of the rows themselves. What an operator can fix (a full or
/// unreachable queue, a wrong access token, a partition with other columns) is not final.
fn is_final(error: &QueueError) -> bool {
    use QueueError as E;
    matches!(
        error,
        E::TooLarge { .. }
            | E::TooManyBytes { .. }
            | E::RowTooLong { .. }
            | E::GroupOverflow { .. }
            | E::GroupClosed { .. }
    )
}

/// Marks a trajectory as buried, so that it takes no further records, and returns its tombstone.
fn tombstone(one: &One, rows: u32, refused: Option<String>) -> Tombstone {
    let mut live = one.live.lock();
    live.set_buried();
    Tombstone {
        uid: one.spec.uid.clone(),
        capability: one.spec.capability.clone(),
        group: one.spec.group.clone(),
        // A settled trajectory has ended.
        end: live.end.unwrap_or(End::Completed),
        reward: live.reward.clone(),
        rows,
        refused,
        turns: live.turns(),
    }
}
