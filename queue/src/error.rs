//! The errors of the queue.

mod class;
mod damage;
mod from;

use std::borrow::Cow;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use class::ErrorClass;
use damage::{cut, damage, folder};

/// The errors of this crate. A failed call leaves the queue unchanged.
///
/// Errors are sent over the wire as JSON. The name of the variant is sent as the stable `code`, from which
/// the receiver restores the variant.
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
    /// The directory has no queue.
    #[error("dir={dir} holds no queue")]
    NoQueue {
        /// The directory.
        dir: PathBuf,
    },
    /// The journal is missing or empty, and the directory has other files of a queue. Nothing was changed.
    #[error(
        "{journal} is missing or empty, found {found} beside it; expected the journal, without which the rows cannot \
         be found: put it back from a copy, restore a snapshot into another directory, or move these files away to begin \
         a new queue"
    )]
    JournalMissing {
        /// The path of the journal.
        journal: PathBuf,
        /// The other files in the directory.
        found: String,
    },
    /// The end of the journal is missing: the journal is shorter than its noted length.
    #[error(
        "{}; rows that these put are lost, and rows that these acked would come back; `rolldock queue verify {}` lists \
         all damage; put the whole journal back, restore a snapshot into another directory, keep the rest with \
         `rolldock queue salvage`, or remove {} to accept the loss",
        cut(.file, .bytes, .bytes_missing, .records_missing), folder(.file),
        .file.with_extension("length").display()
    )]
    JournalCut {
        /// The journal.
        file: PathBuf,
        /// The length of its sound part in bytes.
        bytes: u64,
        /// The number of bytes that are missing.
        bytes_missing: u64,
        /// The number of records that are missing.
        records_missing: u64,
    },
    /// No partition has this name.
    #[error("unknown partition={name}")]
    UnknownPartition {
        /// The requested name.
        name: String,
    },
    /// A partition of this name exists, or another call is declaring or restoring it.
    #[error("partition={name} is there already")]
    PartitionExists {
        /// The name of the partition.
        name: String,
    },
    /// The snapshot is incomplete or damaged.
    #[error("the snapshot is not sound at offset={offset}: {reason}")]
    BadSnapshot {
        /// The offset of the damaged frame or payload.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The partition has no such task.
    #[error("partition={partition} has no task={task}; it has {tasks}")]
    UnknownTask {
        /// The partition.
        partition: String,
        /// The requested task.
        task: String,
        /// The tasks of the partition.
        tasks: String,
    },
    /// The partition has no such column.
    #[error("partition={partition} has no column={column}")]
    UnknownColumn {
        /// The partition.
        partition: String,
        /// The requested column.
        column: String,
    },
    /// The declaration of a partition or a group differs from the existing declaration, or is invalid.
    #[error("partition={name} is declared otherwise: {what}")]
    DeclaredOtherwise {
        /// The partition.
        name: String,
        /// The difference, or the expected declaration.
        what: String,
    },
    /// The type of a column differs from its earlier type. Values are never cast.
    #[error("column={column} has dtype={expected}, found dtype={found}")]
    WrongType {
        /// The column.
        column: String,
        /// The earlier type, from the declaration or the first put.
        expected: String,
        /// The type in this call.
        found: String,
    },
    /// The row already has this column.
    #[error("column={column} is there already")]
    ColumnExists {
        /// The column.
        column: String,
    },
    /// A row does not have the requested column yet.
    #[error("a row has no column={column} yet")]
    ColumnMissing {
        /// The column.
        column: String,
    },
    /// The put would give the group more rows than its declared size.
    #[error("group={group} was declared with size={size}, found rows={rows}")]
    GroupOverflow {
        /// The group.
        group: String,
        /// The declared size.
        size: usize,
        /// The size that the group would have with this put.
        rows: usize,
    },
    /// The put has more rows than the partition can ever hold.
    #[error("a put of rows={rows} never fits into capacity_rows={capacity}")]
    TooLarge {
        /// The number of rows of the put.
        rows: usize,
        /// The partition's capacity in rows.
        capacity: usize,
    },
    /// The partition is full and refuses puts.
    #[error("partition={partition} is full: capacity_rows={capacity}")]
    Full {
        /// The partition.
        partition: String,
        /// The partition's capacity in rows.
        capacity: usize,
    },
    /// The disk of the queue's directory is full. Calls that free rows still work. Puts work again when
    /// enough space is free.
    #[error(
        "the disk of the queue in dir={dir} is full ({reason}); consume or clear rows, or free space on it, and \
         put again"
    )]
    DiskFull {
        /// The directory of the queue.
        dir: PathBuf,
        /// The operation that failed, and the system's message.
        reason: String,
    },
    /// No file descriptor was left for the file. The call had no effect.
    #[error(
        "no file descriptor is left: {what} failed for {path}: {reason}; close connections, or start the process \
         with a larger limit (ulimit -n)"
    )]
    OutOfFiles {
        /// The operation.
        what: Cow<'static, str>,
        /// The file or directory.
        path: PathBuf,
        /// The system's message.
        reason: String,
    },
    /// Another row has this key: a row of the partition, or an earlier row of the put.
    #[error("key={key} belongs to a row that is there already, or to two rows of this put")]
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
    /// A row is longer than the partition's limit.
    #[error("row={row} has bytes={bytes}, at most bytes_max={bytes_max}")]
    RowTooLong {
        /// The index of the row in the batch, from 0.
        row: usize,
        /// The size of the row in bytes.
        bytes: u64,
        /// The limit in bytes.
        bytes_max: u64,
    },
    /// The put has more bytes than the partition can ever hold.
    #[error("a put of bytes={bytes} never fits into capacity_bytes={capacity_bytes}")]
    TooManyBytes {
        /// The size of the put in bytes.
        bytes: u64,
        /// The partition's capacity in bytes.
        capacity_bytes: u64,
    },
    /// A take requested a row that its task has already acked.
    #[error("task={task} is done with row slot={slot} generation={generation}")]
    RowConsumed {
        /// The task.
        task: String,
        /// The row's slot.
        slot: u32,
        /// The row's generation.
        generation: u32,
    },
    /// The group of the rows accepts no more rows: it was complete or was closed early, or rows of it were
    /// freed.
    #[error("group={group} was closed and takes no more rows")]
    GroupClosed {
        /// The group.
        group: String,
    },
    /// The sample of the rows is complete.
    #[error("sample={sample} is whole and takes no more rows")]
    SampleClosed {
        /// The sample.
        sample: String,
    },
    /// No existing group has this sample.
    #[error("partition={partition} has no sample={sample}")]
    UnknownSample {
        /// The partition.
        partition: String,
        /// The sample.
        sample: String,
    },
    /// The step exists with different contents.
    #[error("step={step} of trajectory={trajectory} is there already and differs")]
    StepDiffers {
        /// The trajectory.
        trajectory: String,
        /// The index of the step in the trajectory.
        step: u32,
    },
    /// The owner's records have reached their maximum size.
    #[error(
        "partition={partition} keeps bytes={bytes} of records, at most bytes_max={bytes_max}; forget those that are settled"
    )]
    RecordsFull {
        /// The partition.
        partition: String,
        /// The size of the stored records in bytes.
        bytes: usize,
        /// The maximum size in bytes.
        bytes_max: usize,
    },
    /// The payload was freed or moved in the meantime.
    #[error("chunk={chunk} is not there")]
    ChunkGone {
        /// The number of the chunk.
        chunk: u64,
    },
    /// A wait reached its deadline.
    #[error("there was no {what} before the deadline; partition={partition}: {state}")]
    Deadline {
        /// The event that was awaited.
        what: Cow<'static, str>,
        /// The partition.
        partition: String,
        /// The partition's rows by state.
        state: String,
    },
    /// The handle belongs to a row that was freed.
    #[error("stale handle: row slot={slot} generation={generation} was freed")]
    StaleHandle {
        /// The row's slot.
        slot: u32,
        /// The row's generation.
        generation: u32,
    },
    /// The lease has expired, or was acked or nacked before.
    #[error("lease={lease:016x} is not held any more")]
    LeaseGone {
        /// The number of the lease. The message shows the name of the lease: this number in hexadecimal
        /// digits.
        lease: u64,
    },
    /// The partition or the queue is closed and takes no more changes.
    #[error("partition={partition} takes no more puts")]
    Closed {
        /// The partition.
        partition: String,
    },
    /// A call needs at least one row, group or batch.
    #[error("expected at least one row or group")]
    Empty,
    /// The queue was opened read-only.
    #[error("the queue was opened read-only")]
    ReadOnly,
    /// The bytes of a file differ from the bytes that were written.
    #[error("{}; `rolldock queue verify {}` lists all damage", damage(.file, .offset, .reason), folder(.file))]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// The offset of the damage.
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
    /// The request is invalid.
    #[error("bad request: {reason}")]
    BadRequest {
        /// What was expected and what was found.
        reason: String,
    },
    /// The server has no such path.
    #[error("the queue's server has no path={path}")]
    UnknownPath {
        /// The path of the request.
        path: String,
    },
    /// The server has this path, but not with this method.
    #[error("path={path} has no method={method}")]
    WrongMethod {
        /// The method.
        method: String,
        /// The path.
        path: String,
    },
    /// The body of a request or response exceeds its limit.
    #[error("a body of more than bytes_max={bytes_max} bytes")]
    BodyTooLarge {
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// The bearer token is missing or wrong.
    #[error("the queue's server asks for its bearer token")]
    Unauthorized,
    /// No storage unit has this name.
    #[error("unknown storage unit={unit}")]
    UnknownUnit {
        /// The requested name.
        unit: String,
    },
    /// The storage unit does not answer.
    #[error("storage unit={unit} is away")]
    UnitAway {
        /// The name of the unit.
        unit: String,
    },
    /// The server stopped before it had a response. The call had no effect.
    #[error("the queue's server is ending")]
    Stopping,
    /// No server answers at the address, or the server there does not serve a queue.
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
