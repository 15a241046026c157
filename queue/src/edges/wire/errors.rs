//! Errors in answers: their JSON, and the HTTP status of each.

use serde::{Deserialize, Serialize};

use crate::{ErrorClass, QueueError};

/// The body of an answer that is an error.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ErrorBody {
    pub(crate) error: ErrorDetail,
}

/// An error with its fields under a stable `code`, its class, and its message for people.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ErrorDetail {
    #[serde(flatten)]
    pub(crate) error: QueueError,
    pub(crate) class: ErrorClass,
    pub(crate) message: String,
}

impl From<QueueError> for ErrorBody {
    fn from(error: QueueError) -> Self {
        Self { error: ErrorDetail { class: error.class(), message: error.to_string(), error } }
    }
}

/// The HTTP status of an error.
pub(crate) fn status(error: &QueueError) -> u16 {
    match error {
        QueueError::Unauthorized => 401,
        QueueError::UnknownPartition { .. }
        | QueueError::UnknownTask { .. }
        | QueueError::UnknownColumn { .. }
        | QueueError::UnknownKey { .. }
        | QueueError::UnknownUnit { .. }
        | QueueError::UnknownSample { .. }
        | QueueError::UnknownPath { .. }
        | QueueError::NoQueue { .. } => 404,
        QueueError::WrongMethod { .. } => 405,
        QueueError::Deadline { .. } => 408,
        QueueError::PartitionExists { .. }
        | QueueError::DeclaredOtherwise { .. }
        | QueueError::WrongType { .. }
        | QueueError::ColumnExists { .. }
        | QueueError::GroupOverflow { .. }
        | QueueError::KeyExists { .. }
        | QueueError::RowConsumed { .. }
        | QueueError::ColumnMissing { .. }
        | QueueError::GroupClosed { .. }
        | QueueError::SampleClosed { .. }
        | QueueError::StepDiffers { .. }
        | QueueError::ReadOnly
        | QueueError::InUse { .. } => 409,
        QueueError::LeaseGone { .. } | QueueError::StaleHandle { .. } | QueueError::ChunkGone { .. } => 410,
        QueueError::BodyTooLarge { .. }
        | QueueError::TooLarge { .. }
        | QueueError::TooManyBytes { .. }
        | QueueError::RowTooLong { .. } => 413,
        QueueError::Full { .. } | QueueError::RecordsFull { .. } => 429,
        QueueError::Empty | QueueError::BadRequest { .. } | QueueError::BadSnapshot { .. } => 400,
        QueueError::Closed { .. }
        | QueueError::OutOfFiles { .. }
        | QueueError::Stopping
        | QueueError::UnitAway { .. }
        | QueueError::Unreachable { .. } => 503,
        QueueError::DiskFull { .. } => 507,
        QueueError::Corrupt { .. }
        | QueueError::JournalMissing { .. }
        | QueueError::JournalCut { .. }
        | QueueError::Io { .. }
        | QueueError::Arrow { .. } => 500,
    }
}
