//! Frames: length, CRC-32 of the body, CRC-32 of those two, each 4 bytes little-endian, then the body: records as JSON,
//! one a line.
//!
//! One frame holds all that is made durable together, and the next is written only when that is done: after a crash
//! at most the last frame is not whole, and nothing in it was acknowledged. The head has a checksum of its own, so that
//! a damaged length is seen as damage, and never taken for the end of the file.

use std::path::Path;

use serde::Serialize;

use super::Record;
use crate::QueueError;

/// First bytes of every journal.
pub(crate) const MAGIC: &[u8] = b"ROLLDOCK-QUEUE-3\n";
/// Bytes of a frame's head.
pub(crate) const HEAD: usize = 12;

/// The records of one frame, not yet framed.
#[derive(Debug, Default)]
pub(crate) struct Body(Vec<u8>);

impl Body {
    pub(crate) fn push(&mut self, record: &impl Serialize) -> Result<(), QueueError> {
        let sound = self.0.len();
        let written = serde_json::to_writer(&mut self.0, record);
        if let Err(error) = written {
            self.0.truncate(sound);
            return Err(QueueError::Arrow { reason: error.to_string() });
        }
        self.0.push(b'\n');
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes back what was pushed behind the first `length` bytes.
    pub(super) fn cut_to(&mut self, length: usize) {
        self.0.truncate(length);
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The frame; nothing for an empty body.
    pub(crate) fn into_frame(self) -> Result<Vec<u8>, QueueError> {
        if self.0.is_empty() { Ok(Vec::new()) } else { framed(&self.0) }
    }
}

/// A body behind its head.
pub(crate) fn framed(body: &[u8]) -> Result<Vec<u8>, QueueError> {
    let length =
        u32::try_from(body.len()).map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
    let mut frame = Vec::with_capacity(HEAD + body.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&crc32fast::hash(body).to_le_bytes());
    frame.extend_from_slice(&crc32fast::hash(&frame).to_le_bytes());
    frame.extend_from_slice(body);
    Ok(frame)
}

/// What lies at a place of the file.
enum Found<'a> {
    Frame {
        body: &'a [u8],
        end: usize,
    },
    /// A sound head whose body does not end within the file.
    Cut,
    Damaged(&'static str),
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Length and checksum of a frame's body, if its head is sound.
pub(crate) fn read_head(head: &[u8]) -> Option<(u32, u32)> {
    let (length, checksum, head_checksum) = (number(head, 0)?, number(head, 4)?, number(head, 8)?);
    (length > 0 && crc32fast::hash(&head[..8]) == head_checksum).then_some((length, checksum))
}

fn look(bytes: &[u8], at: usize) -> Found<'_> {
    let Some(head) = bytes.get(at..at + HEAD) else { return Found::Cut };
    let Some((length, checksum)) = read_head(head) else {
        return Found::Damaged("the checksum of a frame's head does not match");
    };
    let end = at + HEAD + length as usize;
    let Some(body) = bytes.get(at + HEAD..end) else { return Found::Cut };
    if crc32fast::hash(body) != checksum {
        return Found::Damaged("the checksum of a frame does not match");
    }
    Found::Frame { body, end }
}

/// What lies behind the sound part of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Nothing, or what a crash or a power cut leaves of a write, or what is being written.
    Unfinished { bytes: u64 },
    /// A whole frame, or a head, that is not what was written.
    Damaged(&'static str),
}

/// Looks behind the first `sound` bytes, as [`read_frames`] returns them.
pub(crate) fn look_behind(bytes: &[u8], sound: u64) -> Tail {
    let at = (sound as usize).min(bytes.len());
    let rest = &bytes[at..];
    match look(bytes, at) {
        Found::Damaged(reason) if at >= MAGIC.len() && rest.iter().any(|byte| *byte != 0) => {
            Tail::Damaged(reason)
        }
        _ => Tail::Unfinished { bytes: rest.len() as u64 },
    }
}

/// Calls `each` with every record; returns the length of the sound part.
///
/// What the last write left half done is passed over: nothing sound follows it. Damage that is followed by a sound
/// frame is corruption, since a frame is only written when the one before it is whole.
pub(crate) fn read_frames(
    file: &Path,
    bytes: &[u8],
    mut each: impl FnMut(Record) -> Result<(), QueueError>,
) -> Result<u64, QueueError> {
    let corrupt = |offset: usize, reason: &str| QueueError::Corrupt {
        file: file.to_owned(),
        offset: offset as u64,
        reason: reason.to_owned(),
    };
    if bytes.len() < MAGIC.len() && MAGIC.starts_with(bytes) {
        return Ok(0);
    }
    if !bytes.starts_with(MAGIC) {
        return Err(corrupt(0, "this is no journal of a queue, or one of another version"));
    }
    let mut at = MAGIC.len();
    while at < bytes.len() {
        let (body, end) = match look(bytes, at) {
            Found::Frame { body, end } => (body, end),
            Found::Cut => break,
            Found::Damaged(reason) => {
                let sound_later =
                    (at + 1..bytes.len()).any(|later| matches!(look(bytes, later), Found::Frame { .. }));
                if sound_later {
                    return Err(corrupt(at, reason));
                }
                break;
            }
        };
        for record in serde_json::Deserializer::from_slice(body).into_iter() {
            each(record.map_err(|error| corrupt(at, &error.to_string()))?)?;
        }
        at = end;
    }
    if at < bytes.len() {
        tracing::warn!(file = %file.display(), torn_bytes = bytes.len() - at, "the last write was not finished; it is passed over");
    }
    Ok(at as u64)
}
