//! What all parts of a gateway share: the book of trajectories, their log, and the records that change both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rolldock_queue::Durability;
use rolldock_scope::{Scope, blocking};
use rolldock_trajectory::{Delivery, Trajectory, TurnId};
use tokio::sync::mpsc;

use crate::config::{GatewayConfig, Spec};
use crate::error::GatewayError;
use crate::refusal::Refusal;
use crate::store::{Entry, Sequence, Store, StoreError};
use crate::trajectories::{Book, End, Event, Live, One, Reward, Settled, Tombstone};

/// The shared state of a gateway.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: GatewayConfig,
    pub(crate) book: Arc<Book>,
    pub(crate) store: Store,
    pub(crate) scope: Scope,
}

impl Core {
    /// Opens the log, and rebuilds its trajectories. Also returns a receiver of the groups that end. It gets
    /// groups of the log that had ended too, if their rows were not put.
    pub(crate) async fn open(
        config: GatewayConfig,
        scope: Scope,
    ) -> Result<(Arc<Self>, mpsc::UnboundedReceiver<Settled>), GatewayError> {
        let (book, settled) = Book::new((config.entropy.0)() as u64, config.trajectories_max);
        let (dir, durability) = (config.dir.clone(), config.durability);
        let opening = blocking("gateway log open", move || read_log(&dir, durability));
        let failed = |error: tokio::task::JoinError| StoreError::Io {
            action: "read the log in",
            path: config.dir.clone(),
            reason: error.to_string(),
        };
        let (store, restored) = opening.await.map_err(failed)??;
        let core = Arc::new(Self { config, book, store, scope });
        core.restore(restored)?;
        Ok((core, settled))
    }

    /// The state of a gateway without a log. Its trajectories end with the process.
    pub(crate) fn in_memory(config: GatewayConfig, scope: Scope) -> Arc<Self> {
        // The run removes each trajectory from the book itself, so no task waits for the ends of groups.
        let (book, _settled) = Book::new((config.entropy.0)() as u64, config.trajectories_max);
        Arc::new(Self { config, book, store: Store::none(), scope })
    }

    fn restore(&self, restored: Restored) -> Result<(), GatewayError> {
        for (number, tombstone) in restored.buried {
            for forgotten in self.book.bury(number, tombstone) {
                self.store.forget(forgotten);
            }
        }
        let dir = self.config.dir.display();
        let mut turns = 0;
        let trajectories = restored.live.len();
        for (number, (spec, events)) in restored.live {
            let age = Duration::from_secs((self.config.unix_seconds)().saturating_sub(spec.opened_s));
            let mut live = Live::new(&spec, self.config.history, age);
            let damaged = |reason: String| {
                GatewayError::Damaged(format!("dir={dir}: trajectory={}: {reason}", spec.uid))
            };
            events.into_iter().try_for_each(|event| live.apply(event)).map_err(damaged)?;
            turns += live.turns();
            let has_ended = live.end.is_some();
            let one = self.book.add(Some(number), spec, live);
            let one = one.map_err(|error| GatewayError::Damaged(format!("dir={dir}: {error}")))?;
            if has_ended {
                one.ended.cancel();
            }
        }
        if trajectories > 0 {
            tracing::info!(trajectories, turns, "the log has trajectories whose rows are not put yet");
        }
        Ok(())
    }

    /// Appends a record of a trajectory. Except for `Opened`, the caller holds the lock of the trajectory's
    /// state, so that the log has the records in the order of the changes.
    pub(crate) fn append(&self, number: u64, event: &Event) -> Sequence {
        if !self.store.keeps() {
            return Sequence::default();
        }
        let body = event.encode();
        self.store.append(Entry { number, is_last: event.is_last(), body: &body })
    }

    /// Opens a trajectory. The trajectory is durable when this call returns. Cancel-safe: the trajectory is
    /// opened completely or not at all.
    pub(crate) async fn open_trajectory(self: &Arc<Self>, spec: Spec) -> Result<Arc<One>, Refusal> {
        let live = Live::new(&spec, self.config.history, Duration::ZERO);
        let one = self.book.add(None, spec.clone(), live)?;
        let sequence = self.append(one.number, &Event::Opened(Box::new(spec)));
        metrics::counter!("rolldock_gateway_trajectories_opened_total").increment(1);
        self.kept(sequence).await?;
        Ok(one)
    }

    /// Ends a trajectory, if it has not ended. Returns the position of the record in the log's order.
    pub(crate) fn end(&self, one: &Arc<One>, end: End) -> Option<Sequence> {
        let sequence = {
            let mut live = one.live.lock();
            if live.end.is_some() {
                return None;
            }
            let event = Event::Ended(end, (self.config.unix_seconds)());
            let sequence = self.append(one.number, &event);
            // The record of an end can be applied to every trajectory.
            let _ = live.apply(event);
            sequence
        };
        metrics::counter!("rolldock_gateway_trajectories_ended_total", "end" => end.as_str()).increment(1);
        tracing::debug!(trajectory = one.spec.uid, end = end.as_str(), "a trajectory has ended");
        one.ended.cancel();
        self.book.changed(one);
        Some(sequence)
    }

    /// Gives a trajectory its reward, and returns the place of the record in the log; `None` if the trajectory
    /// has this reward already.
    ///
    /// # Errors
    /// The trajectory has another reward, it is too late for one, or the rewards of its turns are missing or
    /// name an unknown turn.
    pub(crate) fn reward(&self, one: &Arc<One>, reward: Reward) -> Result<Option<Sequence>, Refusal> {
        let sequence = {
            let mut live = one.live.lock();
            if live.reward.as_ref() == Some(&reward) {
                return Ok(None);
            }
            if live.knows_reward() {
                return Err(Refusal::other_reward(&one.spec.uid));
            }
            if self.config.advantage.per_turn().is_some() && reward.turns.is_empty() && live.turns() > 0 {
                return Err(Refusal::bad_request(format!(
                    "trajectory={} has no rewards of turns, from which grpo_process computes advantages: expected \
                     turn_rewards",
                    one.spec.uid
                )));
            }
            let is_absent = |(turn, _): &&(u32, f32)| live.forest.turn(TurnId(*turn)).is_none();
            if let Some((turn, _)) = reward.turns.iter().find(is_absent) {
                return Err(Refusal::bad_request(format!("trajectory={} has no turn={turn}", one.spec.uid)));
            }
            for (turn, value) in &reward.turns {
                let event = Event::Change(Trajectory::record_reward(TurnId(*turn), *value));
                self.append(one.number, &event);
                live.apply(event).map_err(Refusal::Store)?;
            }
            let event = Event::Rewarded(reward);
            let sequence = self.append(one.number, &event);
            live.apply(event).map_err(Refusal::Store)?;
            sequence
        };
        self.book.changed(one);
        Ok(Some(sequence))
    }

    /// Records that a trajectory gets no reward any more, unless it has a reward or this is recorded already.
    pub(crate) fn give_up_reward(&self, one: &Arc<One>) {
        {
            let mut live = one.live.lock();
            if live.knows_reward() {
                return;
            }
            self.append(one.number, &Event::Unrewarded);
            let _ = live.apply(Event::Unrewarded);
        }
        metrics::counter!("rolldock_gateway_unrewarded_total").increment(1);
        self.book.changed(one);
    }

    /// Records whether the answer of a turn was delivered. The caller does not wait until the record is
    /// durable: without the record, the answer counts as not delivered until the agent continues the turn or
    /// repeats its request. A slow client may still be reading the answer when the rows are put. In that case
    /// nothing is recorded, because no record of a trajectory may follow the record that buries it.
    pub(crate) fn delivery(&self, one: &Arc<One>, turn: TurnId, delivery: Delivery) {
        let mut live = one.live.lock();
        let is_new = live.forest.turn(turn).is_some_and(|known| !known.delivery().is_received());
        if is_new && !live.is_buried() {
            let event = Event::Change(Trajectory::record_delivery(turn, delivery));
            self.append(one.number, &event);
            if let Err(reason) = live.apply(event) {
                tracing::error!(
                    trajectory = one.spec.uid,
                    turn = turn.0,
                    reason,
                    "a recorded delivery cannot be applied"
                );
            }
        }
    }

    /// Waits until a record is durable.
    pub(crate) async fn kept(&self, sequence: Sequence) -> Result<(), Refusal> {
        self.store.kept(sequence).await.map_err(|error| Refusal::Store(error.to_string()))
    }
}

/// The trajectories of a log.
#[derive(Debug, Default)]
struct Restored {
    live: BTreeMap<u64, (Spec, Vec<Event>)>,
    buried: BTreeMap<u64, Tombstone>,
}

impl Restored {
    fn add(&mut self, entry: Entry<'_>) -> Result<(), String> {
        match Event::decode(entry.body)? {
            Event::Opened(spec) => drop(self.live.insert(entry.number, (*spec, Vec::new()))),
            Event::Buried(tombstone) => {
                self.live.remove(&entry.number);
                self.buried.insert(entry.number, *tombstone);
            }
            // An earlier version of the gateway recorded the deliveries of slow clients here. They have no
            // effect any more.
            _ if self.buried.contains_key(&entry.number) => {}
            event => {
                let unopened = || {
                    format!("number={}: expected the record that opens the trajectory first", entry.number)
                };
                self.live.get_mut(&entry.number).ok_or_else(unopened)?.1.push(event);
            }
        }
        Ok(())
    }
}

fn read_log(dir: &std::path::Path, durability: Durability) -> Result<(Store, Restored), StoreError> {
    let mut restored = Restored::default();
    let store = Store::open(dir, durability, |entry| restored.add(entry))?;
    Ok((store, restored))
}
