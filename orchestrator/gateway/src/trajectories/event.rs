//! The records of the log: what happened to a trajectory.
//!
//! A record is a byte for its kind and a body. The bodies for turns and other changes of the forest contain
//! the forest's own records, so the ids and texts determine their size. All other bodies are JSON.

use rolldock_trajectory::Record;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{End, Reward, Tombstone};
use crate::answer::TurnExtra;
use crate::config::Spec;

const OPENED: u8 = b'O';
const TURN: u8 = b'T';
const CHANGE: u8 = b'F';
const ENDED: u8 = b'E';
const REWARDED: u8 = b'R';
const UNREWARDED: u8 = b'U';
const BURIED: u8 = b'B';

/// Something that happened to a trajectory.
#[derive(Debug)]
pub(crate) enum Event {
    Opened(Box<Spec>),
    /// A turn.
    Turn(TurnExtra, Record),
    /// Another change of the forest.
    Change(Record),
    /// The trajectory takes no more calls. The number is the time in seconds since 1970.
    Ended(End, u64),
    Rewarded(Reward),
    /// The time for the trajectory's reward is over.
    Unrewarded,
    /// The trajectory's rows were put or left out. This record replaces all earlier records of the
    /// trajectory.
    Buried(Box<Tombstone>),
}

impl Event {
    pub(crate) fn is_last(&self) -> bool {
        matches!(self, Self::Buried(_))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Opened(spec) => json(OPENED, spec),
            Self::Turn(extra, record) => {
                let extra = json(TURN, extra);
                let record = record.encode();
                let mut bytes = Vec::with_capacity(4 + extra.len() + record.len());
                bytes.push(TURN);
                // The JSON text has a few hundred bytes, or contains the log-probabilities of one turn.
                bytes.extend(((extra.len() - 1) as u32).to_le_bytes());
                bytes.extend(&extra[1..]);
                bytes.extend(record);
                bytes
            }
            Self::Change(record) => {
                let mut bytes = vec![CHANGE];
                bytes.extend(record.encode());
                bytes
            }
            Self::Ended(end, at_s) => json(ENDED, &(end, at_s)),
            Self::Rewarded(reward) => json(REWARDED, reward),
            Self::Unrewarded => vec![UNREWARDED],
            Self::Buried(tombstone) => json(BURIED, tombstone),
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// What was found and what was expected.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (kind, body) = bytes.split_first().ok_or("expected a record, found nothing")?;
        Ok(match *kind {
            OPENED => Self::Opened(read(body)?),
            TURN => {
                let (length, rest) =
                    body.split_at_checked(4).ok_or("expected the length of a turn's text")?;
                let length = length.try_into().map(u32::from_le_bytes).unwrap_or_default() as usize;
                let (extra, record) = rest.split_at_checked(length).ok_or("expected the text of a turn")?;
                Self::Turn(read(extra)?, forest(record)?)
            }
            CHANGE => Self::Change(forest(body)?),
            ENDED => {
                let (end, at_s) = read(body)?;
                Self::Ended(end, at_s)
            }
            REWARDED => Self::Rewarded(read(body)?),
            UNREWARDED => Self::Unrewarded,
            BURIED => Self::Buried(read(body)?),
            other => return Err(format!("unknown kind={other} of a record")),
        })
    }
}

fn json(kind: u8, body: &impl Serialize) -> Vec<u8> {
    let mut bytes = vec![kind];
    // All maps in these types have strings as keys, so writing them does not fail.
    let _ = serde_json::to_writer(&mut bytes, body);
    bytes
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

fn forest(body: &[u8]) -> Result<Record, String> {
    Record::decode(body).map_err(|error| error.to_string())
}
