//! A queue, or one partition of it, as one stream of bytes; and back.
//!
//! ```text
//!   ROLLDOCK-SNAPSHOT-1\n
//!   frame                        records of the journal's kind, in the journal's framing
//!   frame, payload               one put or one set of added columns, then its rows as an Arrow IPC stream
//!   ...
//!   frame                        the end, with counts: a stream without it is cut
//! ```
//! It is read and written from front to back, so a file, a pipe and the body of a request are the same to it.
//!
//! # What is in it
//! What the queue is at one moment: all chosen partitions are locked at once while their records are listed and their
//! chunks pinned, and nothing is locked while they are written. A put that was acknowledged before is in it, a group is
//! in it as it was. Tokens, owners' records, dispositions and acks are in it; leases are not, since a lease is a promise
//! of this process: its rows are not consumed. Only live rows are: a chunk of which rows are gone is written without
//! them, so a snapshot has the size of what is live, whatever the queue has seen or holds on disk.
//!
//! # All or nothing
//! A restored partition becomes visible with the last record, which on disk is one frame of the journal: until then its
//! payload lies in segments that nobody refers to, which the next opening deletes. So there is no half of a restored
//! partition, in this process or after its death. Rows keep their handles.
//!
//! # Deliberately absent
//! Increments: a snapshot has all that is live. Compression: payload is mostly token ids and log-probabilities, the
//! network's or the file system's compression does as well.

mod capture;
mod read;
mod restore;
mod write;

use serde::{Deserialize, Serialize};

use crate::journal::Record;

pub(crate) use capture::{Captured, Scrutiny, Source};
pub use write::Snapshot;

const MAGIC: &[u8] = b"ROLLDOCK-SNAPSHOT-1\n";

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
        if let Some(location) = record.payload().and_then(|payload| payload.location) {
            self.chunks += 1;
            self.payload_bytes += location.length;
        }
    }
}

/// One line of a frame.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
enum Line {
    End(SnapshotCounts),
    #[serde(untagged)]
    Record(Box<Record>),
}
