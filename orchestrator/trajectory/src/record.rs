//! The durable form of a trajectory: one record for each change, with everything that is needed to repeat the
//! change.
//!
//! A record holds only what its turn adds, so the records of a trajectory grow linearly with its turns.
//! Numbers are little-endian. A record begins with the version of the format and its kind.
//!
//! Checksums and frames are deliberately absent, because the journal that stores the records has them.

mod reader;

use std::sync::Arc;

use rolldock_dispatch::{FinishReason, VersionSpan};

use crate::turn::{Delivery, Origin, Turn};
use crate::{TrajectoryError, TurnId};
use reader::Reader;

/// The version of the format. A record of another version is refused.
const FORMAT: u8 = 1;
const KIND_TURN: u8 = 1;
const KIND_DELIVERY: u8 = 2;
const KIND_REWARD: u8 = 3;
/// Stands for a turn that is absent.
const NONE: u32 = u32::MAX;

/// One change of a trajectory. [`Trajectory::apply`](crate::Trajectory::apply) makes the change.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub(crate) change: Change,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    /// A new turn.
    Turn(Box<Turn>),
    /// Whether the answer of a turn reached the agent.
    Delivery(TurnId, Delivery),
    /// The reward of a turn.
    Reward(TurnId, f32),
}

impl Record {
    /// The turn that the record adds or changes.
    pub fn turn(&self) -> TurnId {
        match &self.change {
            Change::Turn(turn) => turn.id,
            Change::Delivery(turn, _) | Change::Reward(turn, _) => *turn,
        }
    }

    /// The record as bytes.
    pub fn encode(&self) -> Vec<u8> {
        match &self.change {
            Change::Turn(turn) => encode_turn(turn),
            Change::Delivery(turn, delivery) => {
                let mut bytes = vec![FORMAT, KIND_DELIVERY];
                bytes.extend(turn.0.to_le_bytes());
                bytes.push(*delivery as u8);
                bytes
            }
            Change::Reward(turn, reward) => {
                let mut bytes = vec![FORMAT, KIND_REWARD];
                bytes.extend(turn.0.to_le_bytes());
                bytes.extend(reward.to_le_bytes());
                bytes
            }
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`TrajectoryError::Damaged`] for any bytes that [`encode`](Self::encode) does not write.
    pub fn decode(bytes: &[u8]) -> Result<Self, TrajectoryError> {
        let mut reader = Reader::new(bytes);
        let format = reader.byte()?;
        if format != FORMAT {
            return Err(reader.damaged(format!("found format={format}, expected {FORMAT}")));
        }
        let change = match reader.byte()? {
            KIND_TURN => Change::Turn(Box::new(decode_turn(&mut reader)?)),
            KIND_DELIVERY => Change::Delivery(TurnId(reader.number()?), reader.one_of(&Delivery::ALL)?),
            KIND_REWARD => Change::Reward(TurnId(reader.number()?), f32::from_bits(reader.number()?)),
            kind => return Err(reader.damaged(format!("unknown kind={kind}"))),
        };
        reader.end()?;
        Ok(Self { change })
    }
}

fn encode_turn(turn: &Turn) -> Vec<u8> {
    let tokens = turn.ids.len() + turn.logprobs.len();
    let text = turn.messages.len() + turn.emitted.len() + turn.minted.len();
    let mut bytes = Vec::with_capacity(128 + tokens * 4 + text + turn.version_spans.len() * 32);
    bytes.extend([FORMAT, KIND_TURN]);
    let number = |id: Option<TurnId>| id.map_or(NONE, |turn| turn.0);
    for value in [turn.id.0, number(turn.parent), number(turn.base), turn.start, turn.input_tokens] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend([
        u8::from(turn.versions_reported),
        u8::from(turn.finish_reason == FinishReason::Length),
        turn.origin as u8,
        turn.delivery as u8,
        u8::from(turn.reward.is_some()),
    ]);
    bytes.extend(turn.reward.unwrap_or_default().to_le_bytes());
    bytes.extend(turn.key.to_le_bytes());
    bytes.extend(turn.body.to_le_bytes());
    push_length(&mut bytes, turn.ids.len());
    turn.ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
    push_length(&mut bytes, turn.logprobs.len());
    turn.logprobs.iter().for_each(|logprob| bytes.extend(logprob.to_le_bytes()));
    push_length(&mut bytes, turn.version_spans.len());
    for span in &turn.version_spans {
        push_text(&mut bytes, &span.version);
        bytes.extend(span.start.to_le_bytes());
        bytes.extend(span.end.to_le_bytes());
    }
    for text in [&*turn.messages, &*turn.emitted, &*turn.minted] {
        push_text(&mut bytes, text);
    }
    bytes
}

fn push_length(bytes: &mut Vec<u8>, length: usize) {
    // A turn has far fewer than 2^32 tokens or bytes of text: the limits of requests are below that.
    bytes.extend((length as u32).to_le_bytes());
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    push_length(bytes, text.len());
    bytes.extend(text.as_bytes());
}

fn decode_turn(reader: &mut Reader<'_>) -> Result<Turn, TrajectoryError> {
    let id = TurnId(reader.number()?);
    let [parent, base] =
        [reader.number()?, reader.number()?].map(|turn| (turn != NONE).then_some(TurnId(turn)));
    let (start, input_tokens) = (reader.number()?, reader.number()?);
    let versions_reported = reader.one_of(&[false, true])?;
    let finish_reason = reader.one_of(&[FinishReason::Stop, FinishReason::Length])?;
    let origin = reader.one_of(&Origin::ALL)?;
    let delivery = reader.one_of(&Delivery::ALL)?;
    let has_reward = reader.one_of(&[false, true])?;
    let reward = f32::from_bits(reader.number()?);
    let (key, body) = (reader.hash()?, reader.hash()?);
    let ids = reader.numbers()?;
    let logprobs = reader.numbers()?.into_iter().map(f32::from_bits).collect();
    let spans = reader.length(12)?;
    let mut version_spans = Vec::with_capacity(spans);
    for _ in 0..spans {
        let version = reader.text()?.into();
        version_spans.push(VersionSpan { version, start: reader.number()?, end: reader.number()? });
    }
    let (messages, emitted, minted) =
        (Arc::from(reader.text()?), reader.text()?.into(), reader.text()?.into());
    Ok(Turn {
        id,
        parent,
        base,
        start,
        input_tokens,
        ids: ids.into(),
        logprobs,
        version_spans: version_spans.into(),
        versions_reported,
        finish_reason,
        origin,
        delivery,
        reward: has_reward.then_some(reward),
        key,
        body,
        messages,
        emitted,
        minted,
    })
}

#[cfg(test)]
mod tests;
