//! The data plane: chunks of payload by key, and the interface for other kinds of stores.
//!
//! A chunk has the rows of one put. It is immutable and has its own buffers, so that freeing it frees its
//! memory whatever batch it was a slice of. A [`Store`] stores chunks, many at a time, returns them by their
//! keys and frees them. This module has three stores: memory, segment files, and the storage units of other
//! machines. A queue can be opened with any other store
//! ([`TransferQueue::open_with`](crate::TransferQueue::open_with)).
//!
//! # A store, step by step
//! 1. [`put`](Store::put) keeps chunks, and says what became of each: [`Stored::Held`] where it is gone with
//!    the process, [`Stored::Noted`] where a [`Note`] finds it again.
//! 2. The queue writes the note down with the record of the put, and calls [`keep`](Store::keep) once both
//!    are durable. A put that fails in between calls [`free`](Store::free) instead; a process that dies in
//!    between calls nothing.
//! 3. [`get`](Store::get) reads kept chunks, and [`free`](Store::free) lets go of them.
//! 4. When the queue is opened again, [`keep`](Store::keep) is called for each chunk that the journal knows,
//!    with the note that was written down, and [`free`](Store::free) for those that a later record has freed.
//!    Then [`opened`](Store::opened) says that this was all: what else the store has of this queue was never
//!    acknowledged, or is freed, and can go.
//!
//! The other calls have defaults. A store in this process implements [`resident`](Store::resident), and the
//! queue compacts and packs its chunks. A store that can free single rows implements [`thin`](Store::thin). A
//! store that can still read what it has freed implements [`pin`](Store::pin); without it the queue delays
//! frees while a snapshot reads.
//!
//! [`conformance`](crate::edges::conformance) has the tests that a store must pass.
//!
//! # Invariants
//! - Nothing lists the chunks of a store on the hot path: the control plane knows their keys.
//! - A store does not say that a put is durable: it says what has to be written down with the put's record
//!   ([`Stored`]), and the journal makes both one fact.
//! - No call of a store but [`put`](Store::put) and [`get`](Store::get) waits for a network or a disk: the
//!   others are called under locks, or where the queue cannot wait.

mod chunk;
mod disk;
mod encoded;
mod memory;
mod note;
mod pin;
mod sizes;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{Array, RecordBatch, UInt32Array};
use arrow_buffer::ArrowNativeType;
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};
use arrow_select::take::take_record_batch;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::error::QueueError;

pub use chunk::Chunk;
use disk::DiskStore;
pub(crate) use encoded::gathered;
pub use encoded::{Encoded, decode};
use memory::MemoryStore;
pub use note::Note;
pub(crate) use pin::{HeldBack, Loaded, Loader, Source, runs};
pub use pin::{Pin, Pinned};
pub(crate) use sizes::ChunkSizes;

/// A store in memory, which [`TransferQueue::open`](crate::TransferQueue::open) uses without a directory.
pub fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::default())
}

/// A store of segment files in an existing directory, which
/// [`TransferQueue::open`](crate::TransferQueue::open) uses with a directory. A file is closed at
/// `segment_bytes`.
pub fn segments(dir: &Path, segment_bytes: u64) -> Arc<dyn Store> {
    Arc::new(Arc::new(DiskStore::new(dir, segment_bytes)))
}

/// The name of the store of segment files.
pub(crate) const SEGMENTS: &str = "segments";
/// The name of the store of the storage units.
pub(crate) const UNITS: &str = "units";

/// The name of a chunk. A queue gives each number once, except that it gives a number again after a restart
/// if its chunk was never [kept](Store::keep).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChunkId(pub u64);

/// Where a chunk lies in the segment files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkLocation {
    /// Number of the segment file.
    pub(crate) segment: u64,
    /// Offset of its first byte.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// CRC-32 of these bytes.
    pub(crate) checksum: u32,
}

/// Chunks begin at multiples of this, as arrow's buffers do within them; bytes.
pub(crate) const ALIGNMENT: u64 = 64;

/// Rows that are put into a store.
#[derive(Debug, Clone)]
pub struct NewChunk {
    /// Their key in the store.
    pub chunk: ChunkId,
    /// The rows.
    pub rows: Chunk,
    /// The group that the rows belong to; the first one if they belong to several. A store of many parts
    /// keeps groups together.
    pub group: String,
}

/// What a store has done with a chunk, and what must be written down so that the chunk is found again.
#[derive(Debug)]
pub enum Stored {
    /// The chunk exists for as long as the process lives.
    Held,
    /// The chunk exists once these bytes do, which the journal's writer hands to the store's [`Appender`].
    Unwritten(Encoded),
    /// The chunk exists, and this note finds it.
    Noted(Note),
}

impl Stored {
    pub(crate) fn is_held(&self) -> bool {
        matches!(self, Self::Held)
    }

    /// The bytes that are written before the put's record, and the note in the record.
    pub(crate) fn into_parts(self) -> (Option<Encoded>, Option<Note>) {
        match self {
            Self::Held => (None, None),
            Self::Unwritten(encoded) => (Some(encoded), None),
            Self::Noted(note) => (None, Some(note)),
        }
    }
}

/// Whether rows can be read now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// They can be read.
    Within,
    /// The unit with the rows does not answer: the rows are not given to consumers until it does.
    Away,
}

/// Rows of a chunk that a reader wants.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The chunk.
    pub chunk: ChunkId,
    /// The first row.
    pub first: usize,
    /// The number of rows, which follow each other.
    pub rows: usize,
    /// The columns that the chunk has.
    pub columns: Arc<[String]>,
}

/// The rows that a reader wants: they begin at row `first` of a chunk, which may have other rows too.
#[derive(Debug, Clone)]
pub struct Found {
    /// A batch with at least the requested columns.
    pub chunk: Chunk,
    /// The first of the requested rows in the batch.
    pub first: usize,
}

/// The rows of a chunk that are still needed.
pub struct Live<'a> {
    /// The number of needed rows.
    pub rows: usize,
    /// The number of rows that were written.
    pub of: usize,
    places: &'a dyn Fn() -> Vec<u32>,
}

impl<'a> Live<'a> {
    pub(crate) fn new(rows: usize, of: usize, places: &'a dyn Fn() -> Vec<u32>) -> Self {
        Self { rows, of, places }
    }

    /// The places of the needed rows in the chunk: O(rows).
    pub fn places(&self) -> Vec<u32> {
        (self.places)()
    }
}

impl std::fmt::Debug for Live<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Live").field("rows", &self.rows).field("of", &self.of).finish_non_exhaustive()
    }
}

/// The capabilities of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether a chunk whose note was written down exists after the process has died and the store is opened
    /// again. Only such a store can serve a queue with a directory.
    pub outlives_process: bool,
    /// Whether chunks are read without a network: [`verify`](crate::TransferQueue::verify) then reads each of
    /// them.
    pub is_local: bool,
}

/// A file without chunks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stray {
    /// The file.
    pub file: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// A store of chunks by key; the [module](self) describes the order of the calls. Calls that wait take many
/// chunks, so that a store behind a network needs one round trip.
pub trait Store: Send + Sync + 'static {
    /// The name with which its notes are written down: a word that no other store of the queue has. It never
    /// changes.
    fn name(&self) -> &'static str;

    /// The capabilities of the store.
    fn capabilities(&self) -> Capabilities;

    /// Stores chunks, and returns what became of each, in their order. After an error no chunk is stored, and
    /// what is left behind is freed sooner or later. An error that is
    /// [`Retryable`](crate::ErrorClass::Retryable) is passed to the producer, which puts again.
    ///
    /// Cancel-safe: after a dropped call what is left behind is freed too.
    fn put(&self, chunks: Vec<NewChunk>) -> BoxFuture<'_, Result<Vec<Stored>, QueueError>>;

    /// Reads rows of chunks, of which only `columns` are needed (all if absent), in the order of the request.
    /// The error is [`QueueError::ChunkGone`] if a chunk was freed or has moved, [`QueueError::Corrupt`] if
    /// its bytes differ from what was written (then its rows are lost), and one that is
    /// [`Retryable`](crate::ErrorClass::Retryable) if the rows may be read later: the consumer gets the
    /// error, and its rows are given again.
    ///
    /// Cancel-safe.
    fn get<'a>(
        &'a self,
        wanted: &'a [Wanted],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Vec<Result<Found, QueueError>>>;

    /// Frees chunks. Freeing an unknown chunk has no effect. Must not wait: long work continues in the
    /// background.
    fn free(&self, chunks: &[ChunkId]);

    /// Bytes of payload that this process holds for live chunks, in memory or on disk; 0 for payload on other
    /// machines.
    fn bytes(&self) -> u64;

    /// Makes a chunk part of the queue: the record with its note is durable, or was read back. Returns
    /// whether the rows can be read. Must not wait.
    fn keep(&self, chunk: ChunkId, note: &Note) -> Result<Reach, QueueError>;

    /// The note of a kept chunk, for a journal that is rewritten; `None` if the chunk is unknown.
    fn note(&self, chunk: ChunkId) -> Option<Note>;

    /// Called once when every chunk that the journal knows was kept, before the first put; not called when
    /// the queue is only read. Returns the part of the store that the journal's writer drives, if it has one.
    fn opened(&self) -> Result<Option<Box<dyn Appender>>, QueueError> {
        Ok(None)
    }

    /// Tells the store that only some rows of a chunk are still needed. Must not wait.
    fn thin(&self, _chunk: ChunkId, _live: &Live<'_>) {}

    /// Its chunks as arrays in this process: the queue compacts chunks that are mostly dead, and joins many
    /// small ones.
    fn resident(&self) -> Option<&dyn Resident> {
        None
    }

    /// Holds a chunk for a slow reader: the chunk can be read until the pin is dropped, even if it is freed
    /// or moved. Must not wait for a network. If the store answers [`Pin::Unpinned`], the queue delays frees
    /// while the reader reads.
    fn pin(&self, _chunk: ChunkId) -> Pin {
        Pin::Unpinned
    }

    /// Admits rows that a client has stored here by itself: returns the note that the store would have made,
    /// or an error if the store takes no such rows.
    fn admit(&self, _note: Note) -> Result<Note, QueueError> {
        Err(QueueError::BadRequest {
            reason: format!("store={} takes rows from the queue alone", self.name()),
        })
    }

    /// Files of the store without chunks, which [`opened`](Self::opened) would delete. A file may be among
    /// them because it is just being filled. Blocks.
    fn strays(&self) -> Result<Vec<Stray>, QueueError> {
        Ok(Vec::new())
    }
}

/// Chunks that are arrays in this process.
pub trait Resident {
    /// A chunk, if it exists.
    fn chunk(&self, chunk: ChunkId) -> Option<Chunk>;

    /// Adds a chunk that the queue has made from others.
    fn insert(&self, chunk: ChunkId, rows: Chunk);
}

/// The writing part of a store whose payload the journal's writer writes, before the records that refer to
/// it: a batch of puts costs one sync of payload and one of records. Called on the writer's thread; blocks.
pub trait Appender: Send {
    /// Appends a chunk. It is not part of the queue before it is [kept](Store::keep).
    fn append(&mut self, chunk: ChunkId, rows: &Encoded) -> Result<Note, QueueError>;

    /// The put of an appended chunk has ended: the chunk is kept by now, or is not wanted.
    fn settle(&mut self, chunk: ChunkId);

    /// Makes durable what was appended. After one failure it never succeeds again.
    fn sync(&mut self) -> Result<(), QueueError>;

    /// Chunks that the store wants to have written again, so that it can free the segments in which they lie.
    fn take_sparse(&mut self) -> Vec<ChunkId>;
}

/// Slack that builders may leave in the buffers of a batch; bytes.
const SLACK_BYTES: usize = 1024;

/// Gives a batch buffers of its own where it is a cut of a larger one.
pub(crate) fn own_buffers(batch: RecordBatch) -> Result<RecordBatch, QueueError> {
    let held = held_bytes(&batch);
    let needed = payload_bytes(&batch)?;
    // Builders leave some slack; a cut of a larger batch holds far more.
    if held <= needed + needed / 2 + SLACK_BYTES {
        return Ok(batch);
    }
    let rows =
        u32::try_from(batch.num_rows()).map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
    Ok(take_record_batch(&batch, &UInt32Array::from_iter_values(0..rows))?)
}

/// Bytes that a batch's own rows take.
pub(crate) fn payload_bytes(batch: &RecordBatch) -> Result<usize, ArrowError> {
    batch.columns().iter().map(|column| needed_bytes(&column.to_data())).sum()
}

/// Bytes of the allocations that a batch keeps alive; one that several columns are cuts of counts once.
pub(crate) fn held_bytes(batch: &RecordBatch) -> usize {
    fn visit(data: &ArrayData, seen: &mut HashMap<*const u8, usize>) {
        let nulls = data.nulls().map(|nulls| nulls.buffer());
        for buffer in data.buffers().iter().chain(nulls) {
            seen.insert(buffer.data_ptr().as_ptr().cast_const(), buffer.capacity());
        }
        data.child_data().iter().for_each(|child| visit(child, seen));
    }
    let mut seen = HashMap::new();
    batch.columns().iter().for_each(|column| visit(&column.to_data(), &mut seen));
    seen.values().sum()
}

/// Bytes that an array's own rows take. A cut of a list keeps all values of the list that it was cut from,
/// and arrow counts them as its own.
pub(crate) fn needed_bytes(data: &ArrayData) -> Result<usize, ArrowError> {
    let ends = match data.data_type() {
        DataType::List(_) | DataType::Map(..) => list_ends::<i32>(data),
        DataType::LargeList(_) => list_ends::<i64>(data),
        DataType::Struct(_) | DataType::FixedSizeList(..) => {
            return data.child_data().iter().map(needed_bytes).sum();
        }
        _ => return data.get_slice_memory_size(),
    };
    let (Some((first, last)), [values]) = (ends, data.child_data()) else { return Ok(0) };
    Ok(data.len() * size_of::<i32>() + needed_bytes(&values.slice(first, last - first))?)
}

/// First and last place of a list's rows among its values.
fn list_ends<Offset: ArrowNativeType>(data: &ArrayData) -> Option<(usize, usize)> {
    let offsets = data.buffers().first()?.typed_data::<Offset>();
    let ends = offsets.get(data.offset()..=data.offset() + data.len())?;
    Some((ends.first()?.as_usize(), ends.last()?.as_usize()))
}
