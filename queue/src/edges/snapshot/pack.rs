//! Fills frames with records, and packs the rows of small records with equal schemas into common payloads.
//!
//! As a separate Arrow stream, a put of one row takes a kilobyte. Its record takes two hundred bytes of JSON,
//! which differ little from the record of the previous put. Rows with equal columns therefore share a
//! payload, even if they belong to different puts, and the frame with the records is compressed. The
//! documentation of the parent module explains why payload is not compressed.

use std::io::Read;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use bytes::Bytes;

use super::{Line, SnapshotCounts, Stretch};
use crate::error::QueueError;
use crate::journal::{Body, framed};
use crate::record::{PayloadRecord, Record};
use crate::store::{Chunk, ChunkId, Encoded, Loaded, payload_bytes};

/// The approximate size, in bytes, of a payload that several records share. The rows of a record get a
/// separate payload if they have at least half of this size. A later read of one row reads the whole payload
/// to check its checksum. The size is therefore no larger than necessary to make the overhead of the stream's
/// head small.
const PACK_BYTES: usize = 256 << 10;
/// A frame is closed when its records take this many bytes. A writer and a reader hold several copies of the
/// frame, and longer frames hardly compress better.
const FRAME_BYTES: usize = 256 << 10;
/// A frame is closed when its payloads take this many bytes.
const FRAME_PAYLOAD_BYTES: usize = 1 << 20;
/// The level of compression, which is zstd's default.
const LEVEL: i32 = 3;
/// The base-2 logarithm of the memory, in bytes, that reading a frame may take in addition to the unpacked
/// frame. [`LEVEL`] needs 21.
const WINDOW_LOG_MAX: u32 = 23;

/// A payload that will follow a frame.
#[derive(Debug)]
enum Payload {
    /// The payload may get more rows.
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
    /// The size of all payloads in bytes, before they are packed.
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

    /// Adds a record, with its rows if it has any.
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

    /// Appends rows to a payload, and returns the number of the payload.
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

    /// Returns the frame and the payloads that follow it.
    pub(super) fn close(mut self, counts: &mut SnapshotCounts) -> Result<Vec<Bytes>, QueueError> {
        let payloads = self.payloads.into_iter().map(Payload::close).collect::<Result<Vec<_>, _>>()?;
        let stretches: Vec<Stretch> = payloads.iter().map(|bytes| Stretch::of(bytes)).collect();
        if !stretches.is_empty() {
            counts.count_payloads(&stretches);
            self.body.push(&Line::Payloads { payloads: stretches })?;
        }
        // This call sizes the compressor's tables for the whole body, so a short body does not need
        // megabytes.
        let body = zstd::bulk::compress(self.body.as_bytes(), LEVEL)
            .map_err(QueueError::io("compress", "a frame"))?;
        let frame = Bytes::from(framed(&body)?);
        Ok(std::iter::once(frame).chain(payloads.into_iter().map(Bytes::from_owner)).collect())
    }
}

/// Unpacks the body of a frame. It is an error if the unpacked body has more than `bytes_max` bytes.
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
