//! Frames while they are filled: records, and their rows in a few payloads of one schema each.
//!
//! A put of one row takes a kilobyte as an Arrow stream of its own, and its record takes two hundred bytes of
//! JSON that hardly differ from the record before. So rows of the same columns share a payload, whichever put
//! brought them, and each frame is compressed. Payload is not compressed; see the parent's documentation.

use std::io::Read;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use bytes::Bytes;

use super::{Line, SnapshotCounts, Stretch};
use crate::error::QueueError;
use crate::journal::{Body, framed};
use crate::record::{PayloadRecord, Record};
use crate::store::{Chunk, ChunkId, Encoded, Loaded, payload_bytes};

/// The approximate size in bytes of a payload that several records share; a record with at least half as many
/// bytes gets a payload of its own. A later read of one row reads the whole payload for its checksum, so the
/// size is just large enough for the head to cost little.
const PACK_BYTES: usize = 256 << 10;
/// A frame is closed when its records take this many bytes.
const FRAME_BYTES: usize = 1 << 20;
/// A frame is also closed when its payloads take this many bytes.
const FRAME_PAYLOAD_BYTES: usize = 1 << 20;
/// The level of compression, which is zstd's default.
const LEVEL: i32 = 3;
/// The largest zstd window that a reader accepts, as a power of two in bytes: it bounds the memory that
/// unpacking takes beside its output. Frames of the level above ask for 21.
const WINDOW_LOG_MAX: u32 = 23;

/// A payload that will follow the frame.
#[derive(Debug)]
enum Payload {
    /// More rows may be added.
    Open {
        rows: Vec<RecordBatch>,
        bytes: usize,
    },
    Closed(Buffer),
}

impl Payload {
    fn close(self) -> Result<Buffer, QueueError> {
        let rows = match self {
            Self::Closed(bytes) => return Ok(bytes),
            Self::Open { rows, .. } => Chunk::new(rows)?,
        };
        let packed = match rows.pieces() {
            [_] => rows,
            _ => rows.select(&(0..rows.rows() as u32).collect::<Vec<_>>())?,
        };
        Encoded::of(&packed).map(Encoded::into_buffer)
    }
}

/// A frame that is being filled, and the payloads that will follow it.
#[derive(Debug, Default)]
pub(super) struct Filling {
    body: Body,
    payloads: Vec<Payload>,
    /// Size of all payloads.
    payload_bytes: usize,
}

impl Filling {
    pub(super) fn is_empty(&self) -> bool {
        self.body.len() == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.body.len() >= FRAME_BYTES || self.payload_bytes >= FRAME_PAYLOAD_BYTES
    }

    pub(super) fn push(&mut self, line: &Line) -> Result<(), QueueError> {
        self.body.push(line)
    }

    /// Adds a record, with rows if it brings any.
    pub(super) fn push_record(
        &mut self,
        mut record: Box<Record>,
        loaded: Option<Loaded>,
    ) -> Result<(), QueueError> {
        if let (Some(payload), Some(loaded)) = (record.payload_mut(), loaded) {
            let number = self.place(loaded)?;
            *payload = PayloadRecord {
                chunk: ChunkId(number as u64),
                note: None,
                columns: std::mem::take(&mut payload.columns),
                chunk_rows: Vec::new(),
            };
        }
        self.push(&Line::Record(record))
    }

    /// Adds the rows to the end of an open payload of their schema, or to a new payload, and returns the
    /// payload's number.
    fn place(&mut self, loaded: Loaded) -> Result<usize, QueueError> {
        let more = loaded.rows.pieces().iter().map(payload_bytes).sum::<Result<usize, _>>()?;
        self.payload_bytes += more;
        if more >= PACK_BYTES / 2 {
            self.payloads.push(Payload::Closed(loaded.into_bytes()?));
            return Ok(self.payloads.len() - 1);
        }
        let pieces = loaded.rows.pieces().iter().cloned();
        for (number, payload) in self.payloads.iter_mut().enumerate().rev() {
            let Payload::Open { rows, bytes } = payload else { continue };
            if rows[0].schema_ref() != loaded.rows.schema() {
                continue;
            }
            rows.extend(pieces);
            *bytes += more;
            if *bytes >= PACK_BYTES {
                let full = std::mem::replace(payload, Payload::Closed(Buffer::from_vec(Vec::<u8>::new())));
                *payload = Payload::Closed(full.close()?);
            }
            return Ok(number);
        }
        self.payloads.push(Payload::Open { rows: pieces.collect(), bytes: more });
        Ok(self.payloads.len() - 1)
    }

    /// Ends the frame; returns its bytes and then those of its payloads.
    pub(super) fn close(mut self, counts: &mut SnapshotCounts) -> Result<Vec<Bytes>, QueueError> {
        let payloads = self.payloads.into_iter().map(Payload::close).collect::<Result<Vec<_>, _>>()?;
        let stretches: Vec<Stretch> = payloads.iter().map(|bytes| Stretch::of(bytes)).collect();
        if !stretches.is_empty() {
            counts.count_payloads(&stretches);
            self.body.push(&Line::Payloads { payloads: stretches })?;
        }
        let body =
            zstd::encode_all(self.body.as_bytes(), LEVEL).map_err(QueueError::io("compress", "a frame"))?;
        let frame = Bytes::from(framed(&body)?);
        Ok(std::iter::once(frame).chain(payloads.into_iter().map(Bytes::from_owner)).collect())
    }
}

/// Unpacks a frame's body; a body that unpacks to more than `bytes_max` bytes is refused.
pub(super) fn unpacked(body: &[u8], bytes_max: u64) -> Result<Vec<u8>, String> {
    let unpacking = || -> std::io::Result<Vec<u8>> {
        let mut decoder = zstd::Decoder::with_buffer(body)?.single_frame();
        decoder.window_log_max(WINDOW_LOG_MAX)?;
        let mut unpacked = Vec::new();
        decoder.take(bytes_max + 1).read_to_end(&mut unpacked)?;
        Ok(unpacked)
    };
    let unpacked = unpacking().map_err(|error| format!("a frame cannot be unpacked: {error}"))?;
    if unpacked.len() as u64 > bytes_max {
        return Err(format!("a frame of more than bytes_max={bytes_max}"));
    }
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_frame_that_unpacks_to_more_than_it_may_is_refused() {
        let body = vec![b'x'; 1 << 20];
        let packed = zstd::encode_all(&body[..], LEVEL).unwrap();
        assert!(packed.len() < 1 << 10);
        assert_eq!(unpacked(&packed, 1 << 20), Ok(body));
        assert_eq!(
            unpacked(&packed, (1 << 20) - 1),
            Err("a frame of more than bytes_max=1048575".to_owned())
        );
        let cut = unpacked(&packed[..packed.len() - 1], 1 << 20).unwrap_err();
        assert!(cut.starts_with("a frame cannot be unpacked"), "{cut}");
    }
}
