//! The JSON of requests and answers.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{Amount, ErrorClass, ExportFormat, QueueError, RowHandle, Sampler, Share, Stale, Take};

/// Rows are sent as this.
pub(super) const ARROW_STREAM: &str = "application/vnd.apache.arrow.stream";
/// A snapshot is sent as this.
pub(super) const SNAPSHOT_STREAM: &str = "application/vnd.rolldock.snapshot";
/// The header of a take's answer that names the lease.
pub(super) const LEASE: &str = "rolldock-lease";
/// The header of an empty answer that says that there will be no more rows.
pub(super) const ENDED: &str = "rolldock-ended";

/// The query of a put.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PutQuery {
    pub(super) group: String,
    /// The rows of this put if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) group_size: Option<usize>,
    #[serde(default)]
    pub(super) policy_version: u64,
    #[serde(default)]
    pub(super) priority: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) record: Option<String>,
    /// How long to wait for room; not at all if absent.
    #[serde(default)]
    pub(super) wait_ms: u64,
}

/// The answer to a put.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PutAnswer {
    pub(super) rows: Vec<RowHandle>,
}

/// The body of a take.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TakeBody {
    pub(super) task: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) groups: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rows: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tokens: Option<u64>,
    #[serde(default = "one")]
    pub(super) at_least: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) columns: Option<Vec<String>>,
    #[serde(default)]
    pub(super) min_policy_version: u64,
    #[serde(default)]
    pub(super) stale: Stale,
    #[serde(default)]
    pub(super) sampler: Sampler,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) share: Option<Share>,
    /// How long to wait for rows; absent means not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) wait_ms: Option<u64>,
}

fn one() -> usize {
    1
}

impl TakeBody {
    pub(super) fn new(take: &Take, wait: Option<Duration>) -> Self {
        let (groups, rows, tokens) = match take.amount {
            Amount::Groups(count) => (Some(count), None, None),
            Amount::Rows(count) => (None, Some(count), None),
            Amount::Tokens(budget) => (None, None, Some(budget)),
        };
        Self {
            task: take.task.clone(),
            groups,
            rows,
            tokens,
            at_least: take.at_least,
            columns: take.columns.clone(),
            min_policy_version: take.min_policy_version,
            stale: take.stale,
            sampler: take.sampler,
            share: take.share,
            wait_ms: wait.map(|wait| wait.as_millis() as u64),
        }
    }

    pub(super) fn into_take(self) -> Result<Take, QueueError> {
        let amount = match (self.groups, self.rows, self.tokens) {
            (Some(count), None, None) => Amount::Groups(count),
            (None, Some(count), None) => Amount::Rows(count),
            (None, None, Some(budget)) => Amount::Tokens(budget),
            _ => {
                let reason = "expected one of groups, rows and tokens".to_owned();
                return Err(QueueError::BadRequest { reason });
            }
        };
        Ok(Take {
            task: self.task,
            amount,
            at_least: self.at_least,
            columns: self.columns,
            min_policy_version: self.min_policy_version,
            stale: self.stale,
            sampler: self.sampler,
            share: self.share,
            deadline: self.wait_ms.map(|wait| Instant::now() + Duration::from_millis(wait)),
        })
    }
}

/// The body of a clear: rows, or all of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClearBody {
    #[serde(default)]
    pub(super) rows: Vec<RowHandle>,
    #[serde(default)]
    pub(super) all: bool,
}

/// The answer to a clear: how many rows were freed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Cleared {
    pub(super) rows: usize,
}

/// The query of a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SnapshotQuery {
    /// The whole queue if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) partition: Option<String>,
}

/// The query of an export.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExportQuery {
    pub(super) format: ExportFormat,
}

/// The body of an answer that is an error.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ErrorBody {
    pub(super) error: ErrorWords,
}

/// An error with its fields under a stable `code`, and in words.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ErrorWords {
    #[serde(flatten)]
    pub(super) error: QueueError,
    pub(super) class: ErrorClass,
    pub(super) message: String,
}

impl From<QueueError> for ErrorBody {
    fn from(error: QueueError) -> Self {
        Self { error: ErrorWords { class: error.class(), message: error.to_string(), error } }
    }
}

/// The HTTP status of an error.
pub(super) fn status(error: &QueueError) -> u16 {
    match error {
        QueueError::Unauthorized => 401,
        QueueError::UnknownPartition { .. }
        | QueueError::UnknownTask { .. }
        | QueueError::UnknownColumn { .. }
        | QueueError::NoQueue { .. } => 404,
        QueueError::Deadline { .. } => 408,
        QueueError::PartitionExists { .. }
        | QueueError::DeclaredOtherwise { .. }
        | QueueError::WrongType { .. }
        | QueueError::ColumnExists { .. }
        | QueueError::GroupOverflow { .. }
        | QueueError::ReadOnly
        | QueueError::InUse { .. } => 409,
        QueueError::LeaseGone { .. } | QueueError::StaleHandle { .. } | QueueError::ChunkGone { .. } => 410,
        QueueError::BodyTooLarge { .. } | QueueError::TooLarge { .. } => 413,
        QueueError::Full { .. } | QueueError::RecordsFull { .. } => 429,
        QueueError::Empty | QueueError::BadRequest { .. } | QueueError::BadSnapshot { .. } => 400,
        QueueError::Closed { .. } | QueueError::Unreachable { .. } => 503,
        QueueError::Corrupt { .. } | QueueError::Io { .. } | QueueError::Arrow { .. } => 500,
    }
}
