//! The errors of the queue.

use std::borrow::Cow;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a caller may do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// Try again.
    Retryable,
    /// The queue is full; try later.
    Backpressure,
    /// The call is wrong.
    Client,
    /// The disk or the queue failed.
    Fault,
    /// The caller or the process asked for the end.
    Cancelled,
}

/// Errors of this crate. A call that fails leaves the queue as it was.
///
/// They go over the wire as JSON with a variant's name as the stable `code`, and are read back as the
/// variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum QueueError {
    /// Another process has the directory open.
    #[error("queue dir={dir} is in use by {owner}")]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The contents of the lock file.
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
    /// A partition of that name exists, or another call is declaring or restoring it.
    #[error("partition={name} is there already")]
    PartitionExists {
        /// Its name.
        name: String,
    },
    /// A snapshot that is not whole, or not what was written.
    #[error("the snapshot is not sound at offset={offset}: {reason}")]
    BadSnapshot {
        /// The offset of the damaged frame or payload.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// No such task.
    #[error("partition={partition} has no task={task}; it has {tasks}")]
    UnknownTask {
        /// The partition.
        partition: String,
        /// The task.
        task: String,
        /// The partition's tasks.
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
    /// A declaration differs from the existing one.
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
        /// The type in the declaration or the first put.
        expected: String,
        /// The type in this put.
        found: String,
    },
    /// A column that the row has already.
    #[error("column={column} is there already")]
    ColumnExists {
        /// The column.
        column: String,
    },
    /// A column was asked for that a row does not have yet.
    #[error("a row has no column={column} yet")]
    ColumnMissing {
        /// The column.
        column: String,
    },
    /// More rows than a group was declared with.
    #[error("group={group} was declared with size={size}, found rows={rows}")]
    GroupOverflow {
        /// The group.
        group: String,
        /// The declared size.
        size: usize,
        /// The size with this put.
        rows: usize,
    },
    /// A put that can never fit.
    #[error("a put of rows={rows} never fits into capacity_rows={capacity}")]
    TooLarge {
        /// Rows of the put.
        rows: usize,
        /// The partition's capacity in rows.
        capacity: usize,
    },
    /// The partition has no room, and refuses puts.
    #[error("partition={partition} is full: capacity_rows={capacity}")]
    Full {
        /// The partition.
        partition: String,
        /// Its capacity.
        capacity: usize,
    },
    /// A key that another row has.
    #[error("key={key} belongs to a row that is there already")]
    KeyExists {
        /// The key.
        key: String,
    },
    /// No row has the key.
    #[error("partition={partition} has no row with key={key}")]
    UnknownKey {
        /// The partition.
        partition: String,
        /// The key.
        key: String,
    },
    /// A row that is longer than the partition's limit.
    #[error("row={row} has bytes={bytes}, at most bytes_max={bytes_max}")]
    RowTooLong {
        /// Its place in the batch, from 0.
        row: usize,
        /// Its length in bytes.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// A put whose bytes can never fit.
    #[error("a put of bytes={bytes} never fits into capacity_bytes={capacity_bytes}")]
    TooManyBytes {
        /// Bytes of the put.
        bytes: u64,
        /// The partition's capacity in bytes.
        capacity_bytes: u64,
    },
    /// A row was asked for that its task has acked.
    #[error("task={task} is done with row slot={slot} generation={generation}")]
    RowConsumed {
        /// The task.
        task: String,
        /// The row's slot.
        slot: u32,
        /// The row's generation.
        generation: u32,
    },
    /// Rows for a group that was closed: it was complete, it was given up, or it is gone.
    #[error("group={group} was closed and takes no more rows")]
    GroupClosed {
        /// The group.
        group: String,
    },
    /// Rows for a sample that is whole.
    #[error("sample={sample} is whole and takes no more rows")]
    SampleClosed {
        /// The sample.
        sample: String,
    },
    /// No existing group has such a sample.
    #[error("partition={partition} has no sample={sample}")]
    UnknownSample {
        /// The partition.
        partition: String,
        /// The sample.
        sample: String,
    },
    /// A step that exists already with other contents.
    #[error("step={step} of trajectory={trajectory} is there already and differs")]
    StepDiffers {
        /// The trajectory.
        trajectory: String,
        /// The step's index in it.
        step: u32,
    },
    /// The owner's records fill their bound.
    #[error(
        "partition={partition} keeps bytes={bytes} of records, at most bytes_max={bytes_max}; forget those that are settled"
    )]
    RecordsFull {
        /// The partition.
        partition: String,
        /// Bytes that are kept.
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
    /// A wait ended at its deadline.
    #[error("{what} did not happen before the deadline; partition={partition}: {state}")]
    Deadline {
        /// What was waited for.
        what: Cow<'static, str>,
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
    /// The partition takes no more puts.
    #[error("partition={partition} takes no more puts")]
    Closed {
        /// The partition.
        partition: String,
    },
    /// A take or a put without rows or groups.
    #[error("expected at least one row or group")]
    Empty,
    /// The queue was opened read-only.
    #[error("the queue was opened read-only")]
    ReadOnly,
    /// Bytes that differ from what was written.
    #[error("file={file} is corrupt at offset={offset}: {reason}")]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// The offset.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The operating system reported an error.
    #[error("{what} failed for {path}: {reason}")]
    Io {
        /// The operation.
        what: Cow<'static, str>,
        /// The file or directory.
        path: PathBuf,
        /// The system's message.
        reason: String,
    },
    /// A request that is not what the wire format says.
    #[error("bad request: {reason}")]
    BadRequest {
        /// What was found and what was expected.
        reason: String,
    },
    /// A path that the server does not have.
    #[error("the queue's server has no path={path}")]
    UnknownPath {
        /// The path of the request.
        path: String,
    },
    /// A path that the server has, but not with this method.
    #[error("path={path} has no method={method}")]
    WrongMethod {
        /// The method.
        method: String,
        /// The path.
        path: String,
    },
    /// A request or an answer over its limit.
    #[error("a body of more than bytes_max={bytes_max} bytes")]
    BodyTooLarge {
        /// The limit.
        bytes_max: usize,
    },
    /// No bearer token, or a wrong one.
    #[error("the queue's server asks for its bearer token")]
    Unauthorized,
    /// No such storage unit.
    #[error("unknown storage unit={unit}")]
    UnknownUnit {
        /// Its name.
        unit: String,
    },
    /// A storage unit that does not answer.
    #[error("storage unit={unit} is away")]
    UnitAway {
        /// Its name.
        unit: String,
    },
    /// The server ends before it has an answer; the call had no effect.
    #[error("the queue's server is ending")]
    Stopping,
    /// No server answers, or one that does not serve a queue.
    #[error("no answer of a queue at {url}: {reason}")]
    Unreachable {
        /// The address.
        url: String,
        /// The reason.
        reason: String,
    },
    /// Arrow reported an error.
    #[error("arrow: {reason}")]
    Arrow {
        /// Arrow's message.
        reason: String,
    },
}

impl QueueError {
    /// What a caller may do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Full { .. } | Self::RecordsFull { .. } | Self::Deadline { .. } => ErrorClass::Backpressure,
            Self::InUse { .. }
            | Self::LeaseGone { .. }
            | Self::ChunkGone { .. }
            | Self::Stopping
            | Self::UnitAway { .. }
            | Self::Unreachable { .. } => ErrorClass::Retryable,
            Self::Corrupt { .. } | Self::Io { .. } | Self::Arrow { .. } => ErrorClass::Fault,
            Self::Closed { .. } => ErrorClass::Cancelled,
            _ => ErrorClass::Client,
        }
    }

    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { what: what.into(), path, reason: error.to_string() }
    }
}

impl From<arrow_schema::ArrowError> for QueueError {
    fn from(error: arrow_schema::ArrowError) -> Self {
        Self::Arrow { reason: error.to_string() }
    }
}
