//! A queue, or one partition of it, as one stream of bytes; and back.
//!
//! ```text
//!   ROLLDOCK-SNAPSHOT-2\n
//!   frame                        the declaration of a partition
//!   frame, payload, payload...   records of it, then their rows, each payload an Arrow IPC stream
//!   ...
//!   frame                        the end, with counts: a stream without it is cut
//! ```
//! A frame has records of the journal's kind in the journal's framing, compressed with zstd, and its last
//! line says how long its payloads are. Each record that brings rows names one of them by its number, and has
//! the next rows of it: rows of the same columns lie together, whatever put they came with. All is read and
//! written from front to back, so a file, a pipe and the body of a request are the same to it.
//!
//! # What is in it
//! What the queue is at one moment: in all chosen partitions a [cut](crate::partition) begins at once. It is
//! read while it is written, some groups at a time, and that is all that traffic waits for; what changes
//! meanwhile is kept as it was. A put that was acknowledged before is in it, a group is in it as it was.
//! Tokens, owners' records, dispositions and acks are in it; leases are not, since a lease is a promise of
//! this process: its rows are not consumed. Only live rows are: a chunk of which rows are gone is written
//! without them, so a snapshot has the size of what is live, whatever the queue has seen or holds on disk.
//!
//! # All or nothing
//! A restored partition becomes visible with the last record, which on disk is one frame of the journal:
//! until then its payload lies in segments without references, which the next opening deletes. So there is
//! never half of a restored partition, in this process or after its death. Rows keep their handles.
//!
//! # Deliberately absent
//! Increments: a snapshot has all that is live. Compression of payload: it is mostly token ids and
//! log-probabilities, the network's or the file system's compression does as well. Records are compressed,
//! since those of single rows are as large as small rows and nearly all the same.

mod pack;
mod read;
mod restore;
mod write;

use serde::{Deserialize, Serialize};

use crate::record::Record;

pub use write::Snapshot;

/// Ends with the version of the format, which is one digit.
const MAGIC: &[u8] = b"ROLLDOCK-SNAPSHOT-2\n";

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotCounts {
    /// Partitions.
    pub partitions: u64,
    /// Rows.
    pub rows: u64,
    /// Stretches of payload.
    pub chunks: u64,
    /// Bytes of payload.
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
        // Lengths may be anything where a snapshot is read.
        let add = |bytes: u64, payload: &Stretch| bytes.saturating_add(payload.length);
        self.payload_bytes = payloads.iter().fold(self.payload_bytes, add);
    }
}

/// One payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stretch {
    /// Bytes.
    length: u64,
    /// CRC-32 of them.
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
    /// What stands behind the frame, in this order.
    Payloads {
        payloads: Vec<Stretch>,
    },
    #[serde(untagged)]
    Record(Box<Record>),
}
