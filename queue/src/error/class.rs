//! What a caller can do about an error.

use serde::{Deserialize, Serialize};

use super::QueueError;

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The caller can try again.
    Retryable,
    /// The queue is full. The caller can try again later.
    Backpressure,
    /// The call is wrong. Repeating it does not help.
    Client,
    /// The disk, the queue or Arrow failed.
    Fault,
    /// The partition or the queue was closed.
    Cancelled,
}

impl QueueError {
    /// Returns what a caller can do about the error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Full { .. }
            | Self::RecordsFull { .. }
            | Self::Deadline { .. }
            | Self::DiskFull { .. }
            | Self::OutOfFiles { .. } => ErrorClass::Backpressure,
            Self::InUse { .. }
            | Self::LeaseGone { .. }
            | Self::ChunkGone { .. }
            | Self::Stopping
            | Self::UnitAway { .. }
            | Self::Unreachable { .. } => ErrorClass::Retryable,
            Self::Corrupt { .. }
            | Self::JournalMissing { .. }
            | Self::JournalCut { .. }
            | Self::Io { .. }
            | Self::Arrow { .. } => ErrorClass::Fault,
            Self::Closed { .. } => ErrorClass::Cancelled,
            _ => ErrorClass::Client,
        }
    }
}
