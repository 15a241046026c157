//! Snapshots: a queue, or one of its partitions, written as one stream of bytes and restored from it.
//!
//! ```text
//!   ROLLDOCK-SNAPSHOT-2\n
//!   frame                        the declaration of a partition
//!   frame, payload, payload...   records of it, then their rows, each payload an Arrow IPC stream
//!   ...
//!   frame                        the end, with counts: a stream without it is cut
//! ```
//! A frame has the format of a journal frame and contains journal records, compressed with zstd. Its last
//! line states the lengths of its payloads. Each record with rows names a payload by its number, and consumes
//! the next rows of that payload. Rows with the same columns share a payload, even if they belong to
//! different puts. A snapshot is read and written from front to back, so it may be a file, a pipe or the body
//! of a request.
//!
//! # Contents
//! A snapshot holds the state of the queue at one moment: a [cut](crate::partition) begins in all chosen
//! partitions at the same moment. The cut is read while the snapshot is written, some groups at a time, and
//! traffic waits only for these short reads. If a row changes before it is read, the cut keeps the row's
//! earlier state. Puts that were acknowledged before the cut are in the snapshot, and each group is as it was
//! at the cut. A snapshot contains tokens, owners' records, dispositions and acks. It contains no leases,
//! because a lease binds only this queue and its clients. Leased rows are in the snapshot as not consumed.
//! Only live rows are written, even if other rows of their chunk were freed. The size of a snapshot therefore
//! depends only on the live rows, not on earlier rows or on the size of the directory.
//!
//! # All or nothing
//! Restored partitions become visible together, at the end. On disk, all their records are one frame of the
//! journal. Until this frame is written, their payload is in segments without references, which are set aside
//! when the queue is opened again. A partition is therefore never restored in part, even if the process dies.
//! Rows keep their handles.
//!
//! # Deliberately absent
//! - There are no increments: a snapshot contains all live rows.
//! - Payload is not compressed: it is mostly token ids and log-probabilities, and compression by the network
//!   or the file system would work equally well. Records are compressed, because the record of a single row
//!   is as large as a small row, and such records hardly differ.

mod pack;
mod read;
mod restore;
mod write;

use serde::{Deserialize, Serialize};

use crate::record::Record;

pub use write::Snapshot;

/// The first bytes of a snapshot. They end with the version of the format, which is one digit, and a newline.
const MAGIC: &[u8] = b"ROLLDOCK-SNAPSHOT-2\n";

/// The counts of a snapshot's contents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotCounts {
    /// The number of partitions.
    pub partitions: u64,
    /// The number of rows.
    pub rows: u64,
    /// The number of payloads.
    pub chunks: u64,
    /// The size of all payloads in bytes.
    pub payload_bytes: u64,
}

impl SnapshotCounts {
    fn count(&mut self, record: &Record) {
        match record {
            Record::Declare { .. } => self.partitions += 1,
            Record::Put(put) => self.rows += put.rows.len() as u64,
            _ => {}
        }
    }

    fn count_payloads(&mut self, payloads: &[Stretch]) {
        self.chunks += payloads.len() as u64;
        // A snapshot that is read may claim any length.
        let add = |bytes: u64, payload: &Stretch| bytes.saturating_add(payload.length);
        self.payload_bytes = payloads.iter().fold(self.payload_bytes, add);
    }
}

/// The length and checksum of one payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stretch {
    /// The length in bytes.
    length: u64,
    /// The CRC-32 of these bytes.
    checksum: u32,
}

impl Stretch {
    fn of(bytes: &[u8]) -> Self {
        Self { length: bytes.len() as u64, checksum: crc32fast::hash(bytes) }
    }
}

/// One line of a frame.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
enum Line {
    End(SnapshotCounts),
    /// The payloads that follow the frame, in this order.
    Payloads {
        payloads: Vec<Stretch>,
    },
    #[serde(untagged)]
    Record(Box<Record>),
}
