//! The state of one trajectory: its forest, its calls, and how it ended.

use std::time::Duration;

use rolldock_trajectory::{HistoryPolicy, Trajectory, TurnId};
use tokio::time::Instant;

use super::drawn_by::DrawnBy;
use super::{End, Event, Reward};
use crate::answer::TurnExtra;
use crate::config::{Limits, Spec};

/// What a call may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// The number of the call. No other call of the trajectory has this number in this process.
    pub(crate) call: u64,
    /// How many calls were in flight when it began.
    pub(crate) ahead: u32,
    /// Tokens that the call may draw, at least 1.
    pub(crate) tokens: u32,
}

/// A call in flight.
#[derive(Debug, Clone, Copy)]
struct Reserved {
    /// The hash of its body.
    body: u128,
    /// The tokens that it may draw.
    tokens: u32,
}

/// Why a call is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotAdmitted {
    /// The limit that ends the trajectory.
    End(End),
    /// Calls in flight have reserved the remaining turns or tokens, and may return some of them.
    Later,
}

/// The state of a trajectory.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) forest: Trajectory,
    /// The data to answer repeated requests. Only turns that no later turn continues have an entry, so there is
    /// usually one entry.
    extras: Vec<(TurnId, TurnExtra)>,
    drawn_by: DrawnBy,
    pub(crate) end: Option<End>,
    ended_at: Option<Instant>,
    pub(crate) reward: Option<Reward>,
    is_unrewarded: bool,
    sampled: u64,
    is_buried: bool,
    in_flight: Vec<Reserved>,
    next_call: u64,
    opened_at: Instant,
    active_at: Instant,
}

impl Live {
    /// A trajectory without turns, which was opened `age` ago.
    pub(crate) fn new(spec: &Spec, history: HistoryPolicy, age: Duration) -> Self {
        let now = Instant::now();
        Self {
            forest: Trajectory::new(spec.uid.as_str(), history),
            extras: Vec::new(),
            drawn_by: DrawnBy::default(),
            end: None,
            ended_at: None,
            reward: None,
            is_unrewarded: false,
            sampled: 0,
            is_buried: false,
            in_flight: Vec::new(),
            next_call: 0,
            opened_at: now.checked_sub(age).unwrap_or(now),
            active_at: now,
        }
    }

    /// Applies the change of a durable record.
    ///
    /// # Errors
    /// The record does not fit the trajectory.
    pub(crate) fn apply(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Turn(extra, record) => {
                let turn = record.turn();
                self.forest.apply(record).map_err(|error| error.to_string())?;
                let added = self.forest.turn(turn);
                self.sampled += added.map_or(0, |turn| turn.sampled_ids().len() as u64);
                if let Some(parent) = added.and_then(rolldock_trajectory::Turn::parent) {
                    self.extras.retain(|(turn, _)| *turn != parent);
                }
                self.drawn_by.add(turn, &extra.server, extra.is_fallback);
                // A vector that grows by itself would allocate capacity for four entries at once.
                self.extras.reserve_exact(1);
                self.extras.push((turn, extra));
            }
            Event::Change(record) => self.forest.apply(record).map_err(|error| error.to_string())?,
            Event::Ended(end, _) => {
                self.end.get_or_insert(end);
                self.ended_at.get_or_insert(Instant::now());
            }
            Event::Rewarded(reward) => drop(self.reward.get_or_insert(reward)),
            Event::Unrewarded => self.is_unrewarded = true,
            Event::Opened(_) | Event::Buried(_) => {
                return Err("expected a record of an open trajectory".to_owned());
            }
        }
        Ok(())
    }

    /// Admits a call with this hash of its body, which draws at most `asked` tokens. The turn and its tokens are
    /// reserved until the call ends, so calls in parallel stay within the limits. If calls in flight leave fewer
    /// tokens than a new call may use, the new call waits until they have ended.
    pub(super) fn admit(&mut self, limits: &Limits, body: u128, asked: u32) -> Result<Admitted, NotAdmitted> {
        let turns = limits.turns.saturating_sub(self.turns()) as usize;
        if turns == 0 {
            return Err(NotAdmitted::End(End::Turns));
        }
        let left = limits.tokens.saturating_sub(self.sampled);
        if left == 0 {
            return Err(NotAdmitted::End(End::Tokens));
        }
        let tokens = left.min(u64::from(limits.turn_tokens.min(asked).max(1))) as u32;
        let reserved: u64 = self.in_flight.iter().map(|call| u64::from(call.tokens)).sum();
        if self.in_flight.len() >= turns || reserved + u64::from(tokens) > left {
            return Err(NotAdmitted::Later);
        }
        let ahead = self.in_flight.len() as u32;
        self.in_flight.push(Reserved { body, tokens });
        self.active_at = Instant::now();
        self.next_call += 1;
        Ok(Admitted { call: self.next_call, ahead, tokens })
    }

    /// Frees the reservation of a call that has ended. The tokens of its turn were counted when the turn was
    /// recorded.
    pub(super) fn release(&mut self, body: u128, tokens: u32) {
        let is_it = |call: &Reserved| (call.body, call.tokens) == (body, tokens);
        if let Some(at) = self.in_flight.iter().position(is_it) {
            self.in_flight.swap_remove(at);
        }
        self.active_at = Instant::now();
    }

    /// Whether a call with this body is in flight.
    pub(crate) fn has_in_flight(&self, body: u128) -> bool {
        self.in_flight.iter().any(|call| call.body == body)
    }

    /// Whether a call is in flight.
    pub(crate) fn has_calls(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Which servers drew the turns.
    pub(crate) fn drawn_by(&self) -> &DrawnBy {
        &self.drawn_by
    }

    /// What is needed to repeat the answer of a turn.
    pub(crate) fn extra(&self, turn: TurnId) -> Option<&TurnExtra> {
        self.extras.iter().find(|(of, _)| *of == turn).map(|(_, extra)| extra)
    }

    pub(crate) fn turns(&self) -> u32 {
        self.drawn_by.turns()
    }

    pub(crate) fn sampled(&self) -> u64 {
        self.sampled
    }

    /// The next moment at which the trajectory may end, or may be settled without a reward. While a call is
    /// in flight the trajectory is not idle.
    pub(crate) fn deadline(&self, limits: &Limits) -> Option<(Instant, Option<End>)> {
        match self.ended_at {
            None => {
                let wall = (self.opened_at + seconds(limits.wall), Some(End::Wall));
                let idle = (self.active_at + seconds(limits.idle), Some(End::Idle));
                if self.in_flight.is_empty() && idle.0 < wall.0 { Some(idle) } else { Some(wall) }
            }
            Some(_) if self.knows_reward() => None,
            Some(ended_at) => Some((ended_at + seconds(limits.reward), None)),
        }
    }

    /// Whether nothing can change any more.
    pub(crate) fn is_settled(&self) -> bool {
        self.end.is_some() && self.in_flight.is_empty() && self.knows_reward()
    }

    /// Whether the reward is known, or known never to come.
    pub(crate) fn knows_reward(&self) -> bool {
        self.reward.is_some() || self.is_unrewarded
    }

    /// Marks the trajectory as buried. The record that buries it is its last record, so the trajectory takes no
    /// further records.
    pub(crate) fn set_buried(&mut self) {
        self.is_buried = true;
    }

    pub(crate) fn is_buried(&self) -> bool {
        self.is_buried
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 4)
}
