//! The journal: the changes of a queue, in the order in which they happened.
//!
//! This module handles bytes, frames and the payload that is written before its records. It does not
//! interpret the records.
//!
//! The journal is a file of frames. One thread appends the frames (group commit). The thread collects the
//! entries that arrive during a write, and makes them durable with one sync of the payload and one of the
//! journal. Each entry has a callback for its success or failure. The callback runs on the writer's thread,
//! so it runs even if the caller is dropped.

mod frame;
mod leases;
mod length;
mod reserve;
mod salvage;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::config::Durability;

pub(crate) use frame::{Body, Tail, framed, look_behind, read_frames, scan_frames};
pub(crate) use leases::{LeaseLog, read_leases};
pub(crate) use length::{Begun, Extent, LengthNote};
pub(crate) use salvage::{Gap, salvage_frames};
pub(crate) use writer::{Entry, Facts, Journal, LiveRecords, Notes, Opening, Payload, Relocate, Sink};

/// The name of the journal file.
const FILE: &str = "journal.log";

/// The path of the journal in a queue's directory.
pub(crate) fn journal_path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// The destination of a queue's changes. Clones share the files.
#[derive(Clone)]
pub(crate) enum Log {
    /// The queue has no directory: nothing outlives the process.
    Nowhere,
    /// The queue's directory belongs to another process: nothing may be written.
    ReadOnly,
    /// The queue owns its directory.
    Files {
        journal: Arc<Journal>,
        leases: Arc<LeaseLog>,
        /// The durability of puts, unless their partition sets its own.
        durability: Durability,
    },
}

impl Log {
    /// The durability of puts, unless their partition sets its own.
    pub(crate) fn durability(&self) -> Durability {
        match self {
            Self::Files { durability, .. } => *durability,
            Self::Nowhere | Self::ReadOnly => Durability::None,
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::ReadOnly)
    }

    /// Whether changes are written to files.
    pub(crate) fn is_written(&self) -> bool {
        matches!(self, Self::Files { .. })
    }

    /// Writes a record to the lease file, if there is one. Must not be called under the lock of a table.
    pub(crate) fn note_lease(&self, partition: &str, record: &impl Serialize) {
        if let Self::Files { leases, .. } = self
            && let Err(error) = leases.append(record)
        {
            tracing::warn!(partition, %error, "a lease would not outlive this process");
        }
    }

    /// Writes all waiting entries and closes the journal. Later changes fail. Blocks.
    pub(crate) fn close(&self) {
        if let Self::Files { journal, .. } = self {
            journal.close();
        }
    }
}
