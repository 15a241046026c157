//! The journal: what happened, in the order in which it happened.
//!
//! It knows bytes and frames, and payload that is written in front of what is said about it. What is said, it
//! does not know.
//!
//! A file of frames, appended by one thread. The thread takes whatever has gathered while the last write was
//! under way and makes it durable with one sync for the payload and one for the journal: group commit. Each
//! entry carries what has to be done when it is durable, or has failed; that runs on the writer's thread, so
//! a caller that goes away in the middle changes nothing.

mod frame;
mod leases;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::config::Durability;

pub(crate) use frame::{Body, Tail, framed, look_behind, read_frames};
pub(crate) use leases::{LeaseLog, read_leases};
pub(crate) use writer::{Entry, Facts, Journal, LiveRecords, Notes, Payload, Relocate, Sink};

/// The journal's file.
const FILE: &str = "journal.log";

/// The path of the journal of a queue's directory.
pub(crate) fn journal_path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// Where a queue writes down what happens. Clones are of the same files.
#[derive(Clone)]
pub(crate) enum Log {
    /// Nowhere: nothing outlives the process.
    Nowhere,
    /// A directory that this process does not own: nothing may be written.
    ReadOnly,
    /// A directory.
    Files {
        journal: Arc<Journal>,
        leases: Arc<LeaseLog>,
        /// What a put survives unless its partition says otherwise.
        durability: Durability,
    },
}

impl Log {
    /// What a put survives unless its partition says otherwise.
    pub(crate) fn durability(&self) -> Durability {
        match self {
            Self::Files { durability, .. } => *durability,
            Self::Nowhere | Self::ReadOnly => Durability::None,
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::ReadOnly)
    }

    /// Whether there are files.
    pub(crate) fn is_written(&self) -> bool {
        matches!(self, Self::Files { .. })
    }

    /// Writes down what clients hold, where anything is written down. Not under a table's lock.
    pub(crate) fn note_lease(&self, partition: &str, record: &impl Serialize) {
        if let Self::Files { leases, .. } = self
            && let Err(error) = leases.append(record)
        {
            tracing::warn!(partition, %error, "a lease would not outlive this process");
        }
    }

    /// Writes what is waiting. Later changes are errors. Blocks.
    pub(crate) fn close(&self) {
        if let Self::Files { journal, .. } = self {
            journal.close();
        }
    }
}
