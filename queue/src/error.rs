//! What can go wrong, in words that name it.

use std::path::PathBuf;
use std::sync::Arc;

/// What a caller may do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Try again.
    Retryable,
    /// Full; try later.
    Backpressure,
    /// The call is wrong.
    Client,
    /// The disk or the queue failed.
    Fault,
    /// Somebody asked for the end.
    Cancelled,
}

/// Errors of this crate. Whatever failed left the queue as it was.
#[derive(Debug, Clone, thiserror::Error)]
pub enum QueueError {
    /// Another process has the directory.
    #[error("queue dir={dir} is in use by {owner}")]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// What its lock file says.
        owner: String,
    },
    /// There is no queue.
    #[error("dir={dir} holds no queue")]
    NoQueue {
        /// The directory.
        dir: PathBuf,
    },
    /// No such partition.
    #[error("unknown partition={name}")]
    UnknownPartition {
        /// Its name.
        name: String,
    },
    /// No such task.
    #[error("partition={partition} has no task={task}; it has {tasks}")]
    UnknownTask {
        /// The partition.
        partition: String,
        /// The task.
        task: String,
        /// Those that there are.
        tasks: String,
    },
    /// No such column.
    #[error("partition={partition} has no column={column}")]
    UnknownColumn {
        /// The partition.
        partition: String,
        /// The column.
        column: String,
    },
    /// A declaration differs from the one that is there.
    #[error("partition={name} is declared otherwise: {what}")]
    DeclaredOtherwise {
        /// The partition.
        name: String,
        /// The difference.
        what: String,
    },
    /// A column's type differs from its first one. Nothing is cast.
    #[error("column={column} has dtype={expected}, found dtype={found}")]
    WrongType {
        /// The column.
        column: String,
        /// Of its declaration or first put.
        expected: String,
        /// Of this put.
        found: String,
    },
    /// A column that the row has already.
    #[error("column={column} is there already")]
    ColumnExists {
        /// The column.
        column: String,
    },
    /// More rows than a group was declared with.
    #[error("group={group} was declared with size={size}, found rows={rows}")]
    GroupOverflow {
        /// The group.
        group: String,
        /// Declared.
        size: usize,
        /// With this put.
        rows: usize,
    },
    /// A put that can never fit.
    #[error("a put of rows={rows} never fits into capacity_rows={capacity}")]
    TooLarge {
        /// Rows of the put.
        rows: usize,
        /// Of the partition.
        capacity: usize,
    },
    /// No room, and the partition refuses.
    #[error("partition={partition} is full: capacity_rows={capacity}")]
    Full {
        /// The partition.
        partition: String,
        /// Its capacity.
        capacity: usize,
    },
    /// The owner's records fill their bound.
    #[error(
        "partition={partition} keeps bytes={bytes} of records, at most bytes_max={bytes_max}; forget those that are settled"
    )]
    RecordsFull {
        /// The partition.
        partition: String,
        /// Kept.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// Payload that was freed or moved meanwhile.
    #[error("chunk={chunk} is not there")]
    ChunkGone {
        /// Its number.
        chunk: u64,
    },
    /// Nothing happened before the deadline.
    #[error("{what} did not happen before the deadline; partition={partition}: {state}")]
    Deadline {
        /// What was waited for.
        what: &'static str,
        /// The partition.
        partition: String,
        /// Its rows by state.
        state: String,
    },
    /// A handle of a row that was freed.
    #[error("stale handle: row slot={slot} generation={generation} was freed")]
    StaleHandle {
        /// The row's slot.
        slot: u32,
        /// The row's generation.
        generation: u32,
    },
    /// A lease that expired, or was acked or nacked before.
    #[error("lease={lease} is not held any more")]
    LeaseGone {
        /// Its number.
        lease: u64,
    },
    /// No more puts.
    #[error("partition={partition} takes no more puts")]
    Closed {
        /// The partition.
        partition: String,
    },
    /// A take or put of nothing.
    #[error("expected at least one row or group")]
    Empty,
    /// The queue was opened to be read.
    #[error("the queue was opened read-only")]
    ReadOnly,
    /// Bytes that are not what was written.
    #[error("file={file} is corrupt at offset={offset}: {reason}")]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The operating system refused.
    #[error("{what} failed for {path}: {reason}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's words.
        reason: Arc<std::io::Error>,
    },
    /// Arrow refused a batch.
    #[error("arrow: {reason}")]
    Arrow {
        /// Its words.
        reason: String,
    },
}

impl QueueError {
    /// What a caller may do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Full { .. } | Self::RecordsFull { .. } | Self::Deadline { .. } => ErrorClass::Backpressure,
            Self::InUse { .. } | Self::LeaseGone { .. } | Self::ChunkGone { .. } => ErrorClass::Retryable,
            Self::Corrupt { .. } | Self::Io { .. } | Self::Arrow { .. } => ErrorClass::Fault,
            Self::Closed { .. } => ErrorClass::Cancelled,
            _ => ErrorClass::Client,
        }
    }

    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { what, path, reason: Arc::new(error) }
    }
}

impl From<arrow::error::ArrowError> for QueueError {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self::Arrow { reason: error.to_string() }
    }
}
