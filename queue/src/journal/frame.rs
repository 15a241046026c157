//! Frames: length, CRC-32 of the body, CRC-32 of those two, each 4 bytes little-endian, then the body: records as JSON,
//! one a line.
//!
//! One frame holds all that is made durable together, and the next is written only when that is done: after a crash
//! at most the last frame is not whole, and nothing in it was acknowledged. The head has a checksum of its own, so that
//! a damaged length is seen as damage, and never taken for the end of the file.

use std::path::Path;

use super::Record;
use crate::QueueError;

/// First bytes of every journal.
pub(crate) const MAGIC: &[u8] = b"ROLLDOCK-QUEUE-3\n";
const HEAD: usize = 12;

/// The records of one frame, not yet framed.
#[derive(Debug, Default)]
pub(crate) struct Body(Vec<u8>);

impl Body {
    pub(crate) fn push(&mut self, record: &Record) -> Result<(), QueueError> {
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

    /// The frame; nothing for an empty body.
    pub(crate) fn into_frame(self) -> Result<Vec<u8>, QueueError> {
        if self.0.is_empty() {
            return Ok(Vec::new());
        }
        let length =
            u32::try_from(self.0.len()).map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
        let mut frame = Vec::with_capacity(HEAD + self.0.len());
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(&crc32fast::hash(&self.0).to_le_bytes());
        frame.extend_from_slice(&crc32fast::hash(&frame).to_le_bytes());
        frame.extend_from_slice(&self.0);
        Ok(frame)
    }
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

fn look(bytes: &[u8], at: usize) -> Found<'_> {
    let heads = (number(bytes, at), number(bytes, at + 4), number(bytes, at + 8));
    let (Some(length), Some(checksum), Some(head_checksum)) = heads else { return Found::Cut };
    if length == 0 || crc32fast::hash(&bytes[at..at + 8]) != head_checksum {
        return Found::Damaged("the checksum of a frame's head does not match");
    }
    let end = at + HEAD + length as usize;
    let Some(body) = bytes.get(at + HEAD..end) else { return Found::Cut };
    if crc32fast::hash(body) != checksum {
        return Found::Damaged("the checksum of a frame does not match");
    }
    Found::Frame { body, end }
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
