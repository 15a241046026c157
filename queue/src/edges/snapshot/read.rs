//! The frames and payloads of a snapshot, from front to back.

use std::io::Read;

use rolldock_frames::{Damage, HEAD_BYTES, Head};
use serde::Deserialize;

use super::pack::unpacked;
use super::{Line, MAGIC, SnapshotCounts, Stretch};
use crate::error::QueueError;
use crate::record::Record;

/// The maximum size of a frame in bytes, packed or unpacked. A frame is held in memory while it is read.
const FRAME_BYTES_MAX: u64 = 512 << 20;
/// The maximum size of a payload in bytes. Each payload is held in memory while it is read.
const PAYLOAD_BYTES_MAX: u64 = 4 << 30;
/// The maximum memory in bytes that is reserved for a stated length before its bytes are read. Most payloads
/// are no larger.
const RESERVED_BYTES_MAX: u64 = 1 << 20;

/// The content of a frame.
pub(super) enum Frame {
    Records {
        records: Vec<Record>,
        /// The payloads that follow the frame.
        payloads: Vec<Stretch>,
    },
    End(SnapshotCounts),
}

impl Frame {
    fn of(lines: Vec<Line>) -> Result<Self, &'static str> {
        let count = lines.len();
        let (mut records, mut payloads) = (Vec::with_capacity(count), Vec::new());
        for line in lines {
            match line {
                Line::Record(record) => records.push(*record),
                Line::Payloads { payloads: stretches } => payloads.extend(stretches),
                Line::End(counts) if count == 1 => return Ok(Self::End(counts)),
                Line::End(_) => return Err("an end that is not alone in its frame"),
            }
        }
        Ok(Self::Records { records, payloads })
    }
}

/// Reads a snapshot that may be untrusted or damaged. All of its contents are checked, including lengths.
pub(super) struct Reader<'a> {
    source: &'a mut dyn Read,
    /// The number of bytes that have been read.
    offset: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(source: &'a mut dyn Read) -> Result<Self, QueueError> {
        let mut reader = Self { source, offset: 0 };
        let magic = reader.bytes(MAGIC.len() as u64)?;
        check_magic(&magic).map_err(|reason| bad(0, reason))?;
        Ok(reader)
    }

    /// An error at the offset that the reader has reached.
    pub(super) fn bad(&self, reason: impl ToString) -> QueueError {
        bad(self.offset, reason)
    }

    /// Reads `length` bytes into an allocation of exactly that size, because the allocation may be kept as
    /// long as its rows exist.
    fn bytes(&mut self, length: u64) -> Result<Vec<u8>, QueueError> {
        let mut bytes = Vec::with_capacity(length.min(RESERVED_BYTES_MAX) as usize);
        let read = (&mut *self.source).take(length).read_to_end(&mut bytes);
        read.map_err(|error| bad(self.offset, format!("it cannot be read on: {error}")))?;
        if (bytes.len() as u64) < length {
            return Err(bad(self.offset + bytes.len() as u64, "it is cut: its end record is missing"));
        }
        self.offset += length;
        bytes.shrink_to_fit();
        Ok(bytes)
    }

    /// Reads the next frame, without the payloads that follow it.
    pub(super) fn frame(&mut self) -> Result<Frame, QueueError> {
        let at = self.offset;
        let head = self.bytes(HEAD_BYTES as u64)?;
        let head = Head::read(&head).ok_or_else(|| bad(at, Damage::Head))?;
        let length = u64::from(head.body_bytes());
        if length > FRAME_BYTES_MAX {
            return Err(bad(at, format!("a frame of bytes={length}, at most bytes_max={FRAME_BYTES_MAX}")));
        }
        let body = self.bytes(length)?;
        if !head.matches(&body) {
            return Err(bad(at, Damage::Body));
        }
        let body = unpacked(&body, FRAME_BYTES_MAX).map_err(|reason| bad(at, reason))?;
        let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let lines = lines.map(|line| read_line(line).map_err(|error| bad(at, error)));
        Frame::of(lines.collect::<Result<_, _>>()?).map_err(|reason| bad(at, reason))
    }

    /// Reads the next payload, which the frame before it has announced.
    pub(super) fn payload(&mut self, stretch: Stretch) -> Result<Vec<u8>, QueueError> {
        let (at, length) = (self.offset, stretch.length);
        if length > PAYLOAD_BYTES_MAX {
            return Err(bad(at, format!("payload of bytes={length}, at most bytes_max={PAYLOAD_BYTES_MAX}")));
        }
        let bytes = self.bytes(length)?;
        if Stretch::of(&bytes) != stretch {
            return Err(bad(at, "the checksum of a payload does not match"));
        }
        Ok(bytes)
    }

    /// Checks that no bytes follow the end record.
    pub(super) fn end(&mut self) -> Result<(), QueueError> {
        let mut more = [0];
        match self.source.read(&mut more) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.bad("there are bytes after its end record")),
            Err(error) => Err(self.bad(format!("it cannot be read on: {error}"))),
        }
    }
}

fn check_magic(magic: &[u8]) -> Result<(), String> {
    let (name, expected) = MAGIC.split_at(MAGIC.len() - 2);
    match magic.strip_prefix(name) {
        Some(found) if found == expected => Ok(()),
        Some([version, b'\n']) => {
            let (found, expected) = (char::from(*version), char::from(expected[0]));
            Err(format!("a snapshot of format={found}, expected format={expected}"))
        }
        _ => Err("this is no snapshot of a queue".to_owned()),
    }
}

fn read_line(line: &[u8]) -> serde_json::Result<Line> {
    Line::deserialize(&mut serde_json::Deserializer::from_slice(line))
}

fn bad(offset: u64, reason: impl ToString) -> QueueError {
    QueueError::BadSnapshot { offset, reason: reason.to_string() }
}
