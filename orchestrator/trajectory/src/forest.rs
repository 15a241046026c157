//! The forest: its turns, the changes that records make to it, and the ids of its paths.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::canonical;
use crate::message::{Assistant, Message};
use crate::prompt::Prompt;
use crate::record::{Change, Record};
use crate::turn::{Delivery, Emitted, Origin, Sampled, Turn, check_spans};
use crate::{TrajectoryError, TurnId};

/// Maximum number of turns before an applied turn that may be reserved but absent. It bounds the table of
/// turns, whatever number a record has.
const RESERVED_MAX: usize = 4_096;

/// What becomes of sampled text that the chat template would show differently in a later prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryPolicy {
    /// Sampled tokens stay in all later prompts, including the reasoning.
    #[default]
    Append,
    /// Prompts follow the template's rendering of the conversation. Where the template drops or changes
    /// sampled text, as Qwen3 does with the reasoning before a user's message, the path forks.
    Template,
}

/// The turns of an agent's work on one prompt.
#[derive(Debug, Clone)]
pub struct Trajectory {
    uid: Arc<str>,
    policy: HistoryPolicy,
    /// The turns by number. A turn that was recorded but not applied is absent.
    slots: Vec<Option<Box<Turn>>>,
    /// The number of the next turn.
    next: u32,
    /// The version labels of all spans. Equal labels share their text.
    labels: Vec<Arc<str>>,
    /// The bytes that the turns and labels hold.
    held: usize,
}

/// Two trajectories are equal if they have the same turns. Numbers that are only reserved do not count.
impl PartialEq for Trajectory {
    fn eq(&self, other: &Self) -> bool {
        self.uid == other.uid && self.policy == other.policy && self.turns().eq(other.turns())
    }
}

impl Trajectory {
    /// A trajectory without turns.
    pub fn new(uid: impl Into<Arc<str>>, policy: HistoryPolicy) -> Self {
        Self { uid: uid.into(), policy, slots: Vec::new(), next: 0, labels: Vec::new(), held: 0 }
    }

    /// A trajectory from its durable records, in the order in which they became durable.
    ///
    /// # Errors
    /// The errors of [`apply`](Self::apply).
    pub fn rebuild(
        uid: impl Into<Arc<str>>,
        policy: HistoryPolicy,
        records: impl IntoIterator<Item = Record>,
    ) -> Result<Self, TrajectoryError> {
        let mut trajectory = Self::new(uid, policy);
        for record in records {
            trajectory.apply(record)?;
        }
        Ok(trajectory)
    }

    /// The identity of the trajectory.
    pub fn uid(&self) -> &Arc<str> {
        &self.uid
    }

    /// The history policy.
    pub fn policy(&self) -> HistoryPolicy {
        self.policy
    }

    /// The turns, in the order of their numbers.
    pub fn turns(&self) -> impl Iterator<Item = &Turn> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    /// A turn; `None` if there is no turn of this number.
    pub fn turn(&self, id: TurnId) -> Option<&Turn> {
        self.slots.get(id.0 as usize)?.as_deref()
    }

    /// The number of turns with this origin.
    pub fn count(&self, origin: Origin) -> usize {
        self.turns().filter(|turn| turn.origin == origin).count()
    }

    /// The newest turn of a request with this body ([`Request::with_body`](crate::Request::with_body)).
    pub fn retried(&self, body: &[u8]) -> Option<TurnId> {
        let hash = xxhash_rust::xxh3::xxh3_128(body);
        self.turns().filter(|turn| turn.body == hash).last().map(|turn| turn.id)
    }

    /// The turn for which an id was minted.
    pub fn turn_of_minted(&self, minted: &str) -> Option<TurnId> {
        self.turns().find(|turn| turn.minted().any(|own| own == minted)).map(|turn| turn.id)
    }

    /// The conversation up to and including a turn's answer, in canonical form.
    ///
    /// # Errors
    /// There is no such turn.
    pub fn conversation(&self, id: TurnId) -> Result<Vec<Value>, TrajectoryError> {
        let mut turns = vec![self.known(id)?];
        while let Some(parent) = turns.last().and_then(|turn| turn.parent) {
            turns.push(self.known(parent)?);
        }
        let messages = turns.into_iter().rev();
        Ok(messages.flat_map(|turn| turn.new_messages().into_iter().chain([turn.emitted()])).collect())
    }

    /// All ids of a turn's path: its prompt as it was sent, and what was sampled.
    ///
    /// # Errors
    /// There is no such turn.
    pub fn path_ids(&self, id: TurnId) -> Result<Vec<u32>, TrajectoryError> {
        let turn = self.known(id)?;
        let mut ids = vec![0; turn.end() as usize];
        for piece in self.pieces(turn) {
            let own = &piece.turn.ids[..(piece.end - piece.turn.start) as usize];
            ids[piece.turn.start as usize..piece.end as usize].copy_from_slice(own);
        }
        Ok(ids)
    }

    /// The turns that make up a turn's path, from the turn itself back to the first turn.
    pub(crate) fn pieces<'a>(&'a self, turn: &'a Turn) -> impl Iterator<Item = Piece<'a>> {
        let own = Piece { turn, end: turn.end() };
        std::iter::successors(Some(own), |piece| {
            let base = self.turn(piece.turn.base?)?;
            Some(Piece { turn: base, end: piece.turn.start })
        })
    }

    /// The record of a new turn, whose number is now reserved. The turn becomes part of the trajectory when
    /// the record is [applied](Self::apply), so no prompt builds on a turn that is not durable yet.
    ///
    /// # Errors
    /// The parts of `sampled` do not fit together.
    pub fn record(
        &mut self,
        prompt: &Prompt,
        sampled: Sampled,
        emitted: &Emitted,
        delivery: Delivery,
    ) -> Result<Record, TrajectoryError> {
        sampled.check()?;
        let minted = minted_ids(emitted)?;
        let (base, start) = self.shared_prefix(&prompt.ids);
        let input = &prompt.ids[start as usize..];
        let mut ids = Vec::with_capacity(input.len() + sampled.ids.len());
        ids.extend_from_slice(input);
        ids.extend_from_slice(&sampled.ids);
        let about = &prompt.about;
        let id = TurnId(self.next);
        self.next += 1;
        let turn = Turn {
            id,
            parent: about.parent,
            base,
            start,
            input_tokens: input.len() as u32,
            ids: ids.into(),
            logprobs: kept(&sampled.logprobs),
            version_spans: kept(&sampled.version_spans),
            versions_reported: sampled.versions_reported,
            finish_reason: sampled.finish_reason,
            origin: about.origin,
            delivery,
            reward: None,
            key: about.key,
            body: about.body,
            messages: about.messages.as_str().into(),
            emitted: canonical(&emitted.message).as_str().into(),
            minted: minted.as_str().into(),
        };
        Ok(Record { change: Change::Turn(Box::new(turn)) })
    }

    /// Records and applies a turn at once, for callers that keep no durable records.
    ///
    /// # Errors
    /// The errors of [`record`](Self::record) and [`apply`](Self::apply).
    pub fn add(
        &mut self,
        prompt: &Prompt,
        sampled: Sampled,
        emitted: &Emitted,
    ) -> Result<TurnId, TrajectoryError> {
        let record = self.record(prompt, sampled, emitted, Delivery::Delivered)?;
        let turn = record.turn();
        self.apply(record)?;
        Ok(turn)
    }

    /// The record that says whether a turn's answer reached the agent.
    pub fn record_delivery(turn: TurnId, delivery: Delivery) -> Record {
        Record { change: Change::Delivery(turn, delivery) }
    }

    /// The record of a turn's own reward.
    pub fn record_reward(turn: TurnId, reward: f32) -> Record {
        Record { change: Change::Reward(turn, reward) }
    }

    /// Applies the change of a durable record.
    ///
    /// # Errors
    /// [`TrajectoryError::Misplaced`] if the record builds on a turn that is absent, or if the number of a
    /// new turn is taken. The trajectory stays as it was.
    pub fn apply(&mut self, record: Record) -> Result<(), TrajectoryError> {
        match record.change {
            Change::Turn(turn) => self.insert(turn),
            Change::Delivery(turn, delivery) => {
                self.known_mut(turn)?.delivery = delivery;
                Ok(())
            }
            Change::Reward(turn, reward) => {
                self.known_mut(turn)?.reward = Some(reward);
                Ok(())
            }
        }
    }

    /// The bytes that the trajectory holds in memory, without what the allocator adds.
    pub fn bytes(&self) -> usize {
        let tables = self.slots.capacity() * size_of::<Option<Box<Turn>>>()
            + self.labels.capacity() * size_of::<Arc<str>>();
        size_of::<Self>() + shared_bytes(&self.uid) + tables + self.held
    }

    /// For each slot, whether the agent has the turn's answer: it was received, or a later turn continues it.
    pub(crate) fn received(&self) -> Vec<bool> {
        let mut received = vec![false; self.slots.len()];
        for turn in self.turns() {
            received[turn.id.0 as usize] |= turn.delivery.is_received();
            let base = turn.base.and_then(|base| self.turn(base)).filter(|base| base.end() == turn.start);
            for continued in turn.parent.into_iter().chain(base.map(|base| base.id)) {
                received[continued.0 as usize] = true;
            }
        }
        received
    }

    /// The number of slots, absent turns included.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn known(&self, turn: TurnId) -> Result<&Turn, TrajectoryError> {
        self.turn(turn).ok_or(TrajectoryError::UnknownTurn { turn })
    }

    fn known_mut(&mut self, turn: TurnId) -> Result<&mut Turn, TrajectoryError> {
        let slot = self.slots.get_mut(turn.0 as usize);
        slot.and_then(Option::as_deref_mut).ok_or(TrajectoryError::UnknownTurn { turn })
    }

    /// The turn whose path has the longest common prefix with `ids`, and the length of this prefix. Among
    /// equals, the first turn is taken.
    fn shared_prefix(&self, ids: &[u32]) -> (Option<TurnId>, u32) {
        let mut best = (None, 0);
        for (turn, shared) in self.shared_prefixes(ids) {
            if shared > best.1 {
                best = (Some(turn.id), shared);
            }
        }
        best
    }

    /// For each turn, how many ids its path and `ids` have in common at their beginning.
    pub(crate) fn shared_prefixes<'a>(&'a self, ids: &'a [u32]) -> impl Iterator<Item = (&'a Turn, u32)> {
        let mut by_slot = vec![0_u32; self.slots.len()];
        self.turns().map(move |turn| {
            let of_base = turn.base.map_or(0, |base| by_slot[base.0 as usize]);
            let shared = if of_base < turn.start {
                of_base
            } else {
                let rest = ids.get(turn.start as usize..).unwrap_or_default();
                let equal = turn.ids.iter().zip(rest).take_while(|(own, other)| own == other).count();
                turn.start + equal as u32
            };
            by_slot[turn.id.0 as usize] = shared;
            (turn, shared)
        })
    }

    fn insert(&mut self, mut turn: Box<Turn>) -> Result<(), TrajectoryError> {
        self.check_place(&turn)?;
        self.share(&mut turn);
        let slot = turn.id.0 as usize;
        while self.slots.len() <= slot {
            self.slots.push(None);
        }
        self.next = self.next.max(turn.id.0 + 1);
        self.held += turn.bytes();
        self.slots[slot] = Some(turn);
        Ok(())
    }

    /// Checks that a turn fits the trajectory.
    fn check_place(&self, turn: &Turn) -> Result<(), TrajectoryError> {
        let misplaced = |reason: String| Err(TrajectoryError::Misplaced { turn: turn.id, reason });
        let numbers_end = self.slots.len().saturating_add(RESERVED_MAX);
        if turn.id.0 as usize >= numbers_end || self.turn(turn.id).is_some() {
            return misplaced(format!("expected a new number below {numbers_end}"));
        }
        let earlier = |other: TurnId| self.turn(other).filter(|other| other.id < turn.id);
        if let Some(parent) = turn.parent.filter(|parent| earlier(*parent).is_none()) {
            return misplaced(format!("it continues turn={parent}, which is not an earlier turn"));
        }
        let allowed = match turn.base {
            None => 0..=0,
            Some(base) => match earlier(base) {
                Some(base) => base.start + 1..=base.end(),
                None => return misplaced(format!("it builds on turn={base}, which is not an earlier turn")),
            },
        };
        if !allowed.contains(&turn.start) {
            return misplaced(format!("it shares {} ids, expected {allowed:?}", turn.start));
        }
        let sampled = turn.ids.len().saturating_sub(turn.input_tokens as usize);
        if sampled == 0 || !(turn.logprobs.is_empty() || turn.logprobs.len() == sampled) {
            return misplaced(format!(
                "found {} log-probabilities for {sampled} tokens",
                turn.logprobs.len()
            ));
        }
        check_spans(&turn.version_spans, sampled).or_else(misplaced)?;
        if Assistant::emitted(&turn.emitted).is_none() {
            return misplaced("expected an emitted message of an assistant".to_owned());
        }
        Ok(())
    }

    /// Lets the turn share its messages with an earlier sibling, and its version labels with earlier turns.
    fn share(&mut self, turn: &mut Turn) {
        let sibling = |other: &&Turn| other.parent == turn.parent && other.messages == turn.messages;
        let shared = self.turns().find(sibling).map(|other| Arc::clone(&other.messages));
        match shared {
            Some(messages) => turn.messages = messages,
            None => self.held += shared_bytes(&turn.messages),
        }
        for span in &mut turn.version_spans {
            match self.labels.iter().find(|label| **label == span.version) {
                Some(label) => span.version = Arc::clone(label),
                None => {
                    self.held += shared_bytes(&span.version);
                    self.labels.push(Arc::clone(&span.version));
                }
            }
        }
    }
}

/// A part of a path: the ids of one turn up to a position of the path.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) turn: &'a Turn,
    /// One past the last id of the piece, counted from the start of the path.
    pub(crate) end: u32,
}

/// The minted ids of an answer, with a line feed behind each.
fn minted_ids(emitted: &Emitted) -> Result<String, TrajectoryError> {
    let unsound = |reason: String| TrajectoryError::Unsound { reason };
    let message = Message::read(&emitted.message).map_err(unsound)?;
    let assistant =
        message.assistant.ok_or_else(|| unsound("expected a message of an assistant".to_owned()))?;
    let ids = assistant.ids.iter().chain(&emitted.ids);
    Ok(ids.flat_map(|minted| [minted.as_str(), "\n"]).collect())
}

/// Copies the items to a block of exactly their size. A vector that becomes a box may keep its whole block,
/// because allocators such as mimalloc do not move a block that shrinks by less than half.
fn kept<T: Clone>(items: &[T]) -> Box<[T]> {
    items.into()
}

/// The bytes of a shared text: two counters and the text.
fn shared_bytes(text: &str) -> usize {
    2 * size_of::<usize>() + text.len()
}

#[cfg(test)]
mod tests;
