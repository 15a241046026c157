//! The frames and payloads of a snapshot, from front to back.

use std::io::Read;

use serde::Deserialize;

use super::{Line, MAGIC};
use crate::journal::{HEAD, read_head};
use crate::{ChunkLocation, QueueError};

/// A frame is held in memory while it is read; bytes.
const FRAME_BYTES_MAX: u64 = 512 << 20;
/// So is the payload of one put; bytes.
const PAYLOAD_BYTES_MAX: u64 = 4 << 30;

/// Reads a snapshot that somebody else may have written, or damaged: nothing in it is taken on trust, and no length in it
/// reserves memory before the bytes are there.
pub(super) struct Reader<'a> {
    source: &'a mut dyn Read,
    /// Bytes that have been read.
    offset: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(source: &'a mut dyn Read) -> Result<Self, QueueError> {
        let mut reader = Self { source, offset: 0 };
        let magic = reader.bytes(MAGIC.len() as u64)?;
        if magic != MAGIC {
            return Err(bad(0, "this is no snapshot of a queue, or one of another version"));
        }
        Ok(reader)
    }

    /// Complains about what was read last.
    pub(super) fn bad(&self, reason: impl ToString) -> QueueError {
        bad(self.offset, reason)
    }

    fn bytes(&mut self, length: u64) -> Result<Vec<u8>, QueueError> {
        let mut bytes = Vec::new();
        let read = (&mut *self.source).take(length).read_to_end(&mut bytes);
        read.map_err(|error| bad(self.offset, format!("it cannot be read on: {error}")))?;
        if (bytes.len() as u64) < length {
            return Err(bad(self.offset + bytes.len() as u64, "it is cut: its end record is missing"));
        }
        self.offset += length;
        Ok(bytes)
    }

    /// The lines of the next frame.
    pub(super) fn frame(&mut self) -> Result<Vec<Line>, QueueError> {
        let at = self.offset;
        let head = self.bytes(HEAD as u64)?;
        let damaged = || bad(at, "the checksum of a frame's head does not match");
        let (length, checksum) = read_head(&head).ok_or_else(damaged)?;
        if u64::from(length) > FRAME_BYTES_MAX {
            return Err(bad(at, format!("a frame of bytes={length}, at most bytes_max={FRAME_BYTES_MAX}")));
        }
        let body = self.bytes(u64::from(length))?;
        if crc32fast::hash(&body) != checksum {
            return Err(bad(at, "the checksum of a frame does not match"));
        }
        let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| read_line(line).map_err(|error| bad(at, error))).collect()
    }

    /// The payload that stands behind its frame.
    pub(super) fn payload(&mut self, location: &ChunkLocation) -> Result<Vec<u8>, QueueError> {
        let at = self.offset;
        if location.length > PAYLOAD_BYTES_MAX {
            let length = location.length;
            return Err(bad(at, format!("payload of bytes={length}, at most bytes_max={PAYLOAD_BYTES_MAX}")));
        }
        let bytes = self.bytes(location.length)?;
        if crc32fast::hash(&bytes) != location.checksum {
            return Err(bad(at, "the checksum of a payload does not match"));
        }
        Ok(bytes)
    }

    /// Nothing stands behind the end.
    pub(super) fn end(&mut self) -> Result<(), QueueError> {
        let mut more = [0];
        match self.source.read(&mut more) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.bad("there are bytes behind its end record")),
            Err(error) => Err(self.bad(format!("it cannot be read on: {error}"))),
        }
    }
}

fn read_line(line: &[u8]) -> serde_json::Result<Line> {
    Line::deserialize(&mut serde_json::Deserializer::from_slice(line))
}

fn bad(offset: u64, reason: impl ToString) -> QueueError {
    QueueError::BadSnapshot { offset, reason: reason.to_string() }
}
