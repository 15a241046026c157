//! Records in [frames](rolldock_frames). The body of a frame is JSON, with one record per line.
//!
//! One frame holds all records that are made durable together.

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use rolldock_frames::{Damage, Format, ReadError, Reader};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::QueueError;

/// The frame format of journals, lease files and snapshots.
pub(super) const FORMAT: Format = Format { magic: MAGIC, body_bytes_max: u32::MAX, tail_bytes_max: u64::MAX };
/// The first bytes of every journal.
pub(crate) const MAGIC: &[u8] = b"ROLLDOCK-QUEUE-3\n";

/// The records of one frame, without the frame's head.
#[derive(Debug, Default)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    records: u64,
}

/// A position between two records of a body.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mark {
    bytes: usize,
    records: u64,
}

impl Body {
    pub(crate) fn push(&mut self, record: &impl Serialize) -> Result<(), QueueError> {
        let sound = self.mark();
        let written = serde_json::to_writer(&mut self.bytes, record);
        if let Err(error) = written {
            self.cut_to(sound);
            return Err(QueueError::Arrow { reason: error.to_string() });
        }
        self.bytes.push(b'\n');
        self.records += 1;
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The number of records.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { bytes: self.bytes.len(), records: self.records }
    }

    /// Appends the records of another body that are between two marks of that body.
    pub(super) fn extend(&mut self, other: &Self, part: Range<Mark>) {
        self.bytes.extend_from_slice(&other.bytes[part.start.bytes..part.end.bytes]);
        self.records += part.end.records - part.start.records;
    }

    /// Removes everything after `mark`.
    pub(super) fn cut_to(&mut self, mark: Mark) {
        self.bytes.truncate(mark.bytes);
        self.records = mark.records;
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the frame, or no bytes for an empty body.
    pub(crate) fn into_frame(self) -> Result<Vec<u8>, QueueError> {
        if self.bytes.is_empty() { Ok(Vec::new()) } else { framed(&self.bytes) }
    }
}

/// Returns a frame: a head, followed by `body`.
pub(crate) fn framed(body: &[u8]) -> Result<Vec<u8>, QueueError> {
    FORMAT.frame(body).map_err(|error| QueueError::Arrow { reason: error.to_string() })
}

/// The bytes after the sound part of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// No bytes, the rest of a write that a crash or a power cut interrupted, or a write in progress.
    Unfinished { bytes: u64 },
    /// A complete frame, or a head, whose bytes differ from the bytes that were written.
    Damaged(Damage),
}

/// Examines `rest`, which follows the first `sound` bytes of a journal.
pub(crate) fn look_behind(sound: u64, rest: &[u8]) -> Tail {
    match FORMAT.tail(rest) {
        rolldock_frames::Tail::Damaged(damage) if sound >= MAGIC.len() as u64 => Tail::Damaged(damage),
        _ => Tail::Unfinished { bytes: rest.len() as u64 },
    }
}

/// Calls `each` with every record and returns the length of the sound part. An incomplete last frame is
/// skipped.
///
/// # Errors
/// Returns [`QueueError::Corrupt`] for any other damage and for bytes that are not a record, and the errors
/// of `each`.
pub(crate) fn read_frames<Record: DeserializeOwned>(
    file: &Path,
    bytes: &[u8],
    each: impl FnMut(Record) -> Result<(), QueueError>,
) -> Result<u64, QueueError> {
    read_source(file, Cursor::new(bytes), bytes.len() as u64, each)
}

/// Reads a file as [`read_frames`] does, with only one frame in memory at a time. Returns the length of the
/// sound part, and the bytes that follow it. Another thread or process may append to the file during the
/// call.
///
/// # Errors
/// Returns [`QueueError::Io`] if the file cannot be read or was shortened during the call, and the errors of
/// [`read_frames`].
pub(crate) fn scan_frames<Record: DeserializeOwned>(
    file: &Path,
    each: impl FnMut(Record) -> Result<(), QueueError>,
) -> Result<(u64, Vec<u8>), QueueError> {
    let opened = File::open(file).map_err(QueueError::io("open", file))?;
    let length = opened.metadata().map_err(QueueError::io("read", file))?.len();
    let sound = read_source(file, BufReader::new(&opened), length, each)?;
    let (mut source, mut rest) = (&opened, Vec::new());
    source
        .seek(SeekFrom::Start(sound))
        .and_then(|_| source.take(length - sound).read_to_end(&mut rest))
        .map_err(QueueError::io("read", file))?;
    Ok((sound, rest))
}

/// Calls `each` with every record in the first `length` bytes of a source. Returns the length of the sound
/// part.
fn read_source<Record: DeserializeOwned>(
    file: &Path,
    source: impl Read + Seek,
    length: u64,
    mut each: impl FnMut(Record) -> Result<(), QueueError>,
) -> Result<u64, QueueError> {
    let corrupt = |offset: u64, reason: String| QueueError::Corrupt { file: file.to_owned(), offset, reason };
    let refused = |error: ReadError| match error {
        ReadError::OtherFormat => {
            corrupt(0, "this is no journal of a queue, or one of another version".to_owned())
        }
        ReadError::Damaged { offset, damage } => corrupt(offset, damage.to_string()),
        ReadError::Io(error) => QueueError::io("read", file)(error),
    };
    let mut reader = Reader::new(source, length, FORMAT).map_err(refused)?;
    while let Some(frame) = reader.next_frame().map_err(refused)? {
        for record in serde_json::Deserializer::from_slice(frame.body).into_iter() {
            each(record.map_err(|error| corrupt(frame.offset, error.to_string()))?)?;
        }
    }
    let (sound_bytes, torn_bytes) = (reader.sound_bytes(), reader.torn_bytes());
    if sound_bytes > 0 && torn_bytes > 0 {
        tracing::warn!(file = %file.display(), torn_bytes, "the last write was not finished; it is skipped");
    }
    Ok(sound_bytes)
}

#[cfg(test)]
mod tests;
