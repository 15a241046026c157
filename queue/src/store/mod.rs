//! The data plane: chunks of payload by key, and the interface that every kind of store implements.
//!
//! A chunk holds the rows of one put; the queue may later join small chunks. A chunk is immutable and has its
//! own buffers, so freeing a chunk frees its memory, even if the put's batch was a slice of a larger batch. A
//! [`Store`] stores many chunks at a time, returns them by key and frees them. This module has two stores:
//! memory and segment files. A third store keeps chunks in the storage units of other machines. A queue can
//! be opened with any other store ([`TransferQueue::open_with`](crate::TransferQueue::open_with)).
//!
//! # A store, step by step
//! 1. [`put`](Store::put) stores chunks and returns the result for each. The result is [`Stored::Held`] if
//!    the chunk is lost when the process ends, and [`Stored::Noted`] if a [`Note`] is needed to find the
//!    chunk again.
//! 2. The queue writes the note with the record of the put, and calls [`keep`](Store::keep) once both are
//!    durable. If the put fails before that, the queue calls [`free`](Store::free) instead. If the process
//!    dies before that, the store gets no call.
//! 3. [`get`](Store::get) reads kept chunks, and [`free`](Store::free) frees them.
//! 4. When the queue is opened again, it calls [`keep`](Store::keep) with the written note for each chunk in
//!    the journal, and [`free`](Store::free) for each chunk that a later record has freed. Then it calls
//!    [`opened`](Store::opened). Any other chunk of this queue in the store was never acknowledged or is
//!    already freed, so the store can delete it. Segment files are set aside instead, because the journal may
//!    not belong to these chunks.
//!
//! The other calls have defaults. A store in this process implements [`resident`](Store::resident); the queue
//! then compacts and joins its chunks. A store that can free single rows implements [`thin`](Store::thin). A
//! store that can still read freed chunks implements [`pin`](Store::pin); without it, the queue delays frees
//! while a snapshot reads.
//!
//! [`conformance`](crate::edges::conformance) has the tests that a store must pass.
//!
//! # Invariants
//! - No call on the hot path lists the chunks of a store: the control plane has their keys.
//! - A store does not report that a put is durable. It reports what must be written with the record of the
//!   put ([`Stored`]). Payload that the journal's writer writes becomes durable together with the record; other
//!   payload is already durable when the store reports it.
//! - Only [`put`](Store::put) and [`get`](Store::get) may wait for a network or a disk. The other calls are
//!   made under locks, or where the queue cannot wait.

mod appender;
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

pub use appender::Appender;
pub use chunk::Chunk;
use disk::DiskStore;
pub(crate) use disk::is_segment;
pub(crate) use encoded::gathered;
pub use encoded::{Encoded, decode};
use memory::MemoryStore;
pub use note::Note;
pub(crate) use pin::{HeldBack, Loaded, Loader, Source, runs};
pub use pin::{Pin, Pinned};
pub(crate) use sizes::ChunkSizes;

/// Creates a store in memory, which [`TransferQueue::open`](crate::TransferQueue::open) uses without a
/// directory.
pub fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::default())
}

/// Creates a store of segment files in an existing directory, which
/// [`TransferQueue::open`](crate::TransferQueue::open) uses with a directory. A segment file is closed when
/// it reaches `segment_bytes`.
pub fn segments(dir: &Path, segment_bytes: u64) -> Arc<dyn Store> {
    Arc::new(Arc::new(DiskStore::new(dir, segment_bytes)))
}

/// The name of the store of segment files.
pub(crate) const SEGMENTS: &str = "segments";
/// The name of the store that uses storage units.
pub(crate) const UNITS: &str = "units";

/// The key of a chunk. A queue uses each number once. After a restart it may reuse the number of a chunk that
/// was never [kept](Store::keep).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChunkId(pub u64);

/// The location of a chunk in the segment files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkLocation {
    /// The number of the segment file.
    pub(crate) segment: u64,
    /// The offset of the first byte of the chunk in the file.
    pub(crate) offset: u64,
    /// The length of the chunk in bytes.
    pub(crate) length: u64,
    /// The CRC-32 of these bytes.
    pub(crate) checksum: u32,
}

/// The alignment of chunks in a segment file, in bytes. Arrow uses the same alignment for the buffers
/// within a chunk.
pub(crate) const ALIGNMENT: u64 = 64;

/// A chunk that is put into a store.
#[derive(Debug, Clone)]
pub struct NewChunk {
    /// The key of the chunk in the store.
    pub chunk: ChunkId,
    /// The rows.
    pub rows: Chunk,
    /// The group of the rows, or the first group if they belong to several. A store with several units keeps
    /// the rows of a group together.
    pub group: String,
}

/// The result of storing a chunk, with the data that must be written so that the chunk can be found again.
#[derive(Debug)]
pub enum Stored {
    /// The chunk exists for as long as the process lives.
    Held,
    /// The chunk exists once these bytes are written. The journal's writer passes them to the store's
    /// [`Appender`].
    Unwritten(Encoded),
    /// The chunk exists, and this note is needed to find it again.
    Noted(Note),
}

impl Stored {
    pub(crate) fn is_held(&self) -> bool {
        matches!(self, Self::Held)
    }

    /// Returns the bytes to write before the record of the put, and the note for the record.
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
    /// The rows can be read.
    Within,
    /// The unit that holds the rows does not answer. Consumers do not get these rows until the unit answers.
    Away,
}

/// Rows of a chunk that a reader wants.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The chunk.
    pub chunk: ChunkId,
    /// The first row.
    pub first: usize,
    /// The number of consecutive rows.
    pub rows: usize,
    /// The columns of the chunk that the reader may need. The values of the other columns were replaced.
    pub columns: Arc<[String]>,
}

/// The rows that a reader wants. They begin at row `first` of a chunk, which may also hold other rows.
#[derive(Debug, Clone)]
pub struct Found {
    /// A chunk with at least the requested columns.
    pub chunk: Chunk,
    /// The index of the first requested row in the chunk.
    pub first: usize,
}

/// The rows of a chunk that are still needed.
pub struct Live<'a> {
    /// The number of needed rows.
    pub rows: usize,
    /// The number of rows in the chunk as it was written.
    pub of: usize,
    places: &'a dyn Fn() -> Vec<u32>,
}

impl<'a> Live<'a> {
    pub(crate) fn new(rows: usize, of: usize, places: &'a dyn Fn() -> Vec<u32>) -> Self {
        Self { rows, of, places }
    }

    /// Returns the indices of the needed rows in the chunk, in O(rows).
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
    /// Whether a chunk whose note was written still exists when the store is opened again after the process
    /// has died. Only such a store can serve a queue with a directory.
    pub outlives_process: bool,
}

/// A file of a store that holds no chunk of the queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stray {
    /// The path of the file.
    pub file: PathBuf,
    /// The size of the file.
    pub bytes: u64,
}

/// A store of chunks by key; the [module](self) describes the order of the calls. The calls that may wait
/// take many chunks, so a store behind a network needs one round trip.
pub trait Store: Send + Sync + 'static {
    /// The name of the store in its notes. No other store of the queue may have this name, and it must never
    /// change.
    fn name(&self) -> &'static str;

    /// The capabilities of the store.
    fn capabilities(&self) -> Capabilities;

    /// Stores chunks and returns the result for each, in their order. After an error no chunk is stored, and
    /// the store eventually frees anything left behind. A [`Retryable`](crate::ErrorClass::Retryable) error
    /// is passed to the producer, which puts the rows again.
    ///
    /// Cancel-safe: if the call is dropped, the store frees anything left behind too.
    fn put(&self, chunks: Vec<NewChunk>) -> BoxFuture<'_, Result<Vec<Stored>, QueueError>>;

    /// Reads rows of chunks, in the order of the request. Only `columns` are needed, or all columns if
    /// `columns` is absent.
    ///
    /// The error is [`QueueError::ChunkGone`] if a chunk was freed or has moved. It is
    /// [`QueueError::Corrupt`] if the bytes differ from the bytes that were written; the rows are then lost.
    /// It is [`Retryable`](crate::ErrorClass::Retryable) if the rows may be read later: the consumer gets the
    /// error, and its rows are delivered again.
    ///
    /// Cancel-safe.
    fn get<'a>(
        &'a self,
        wanted: &'a [Wanted],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Vec<Result<Found, QueueError>>>;

    /// Frees chunks. Freeing an unknown chunk has no effect. This call must not wait: long work continues in
    /// the background.
    fn free(&self, chunks: &[ChunkId]);

    /// The bytes of payload of the rows that exist, in memory or on disk. A store may also count rows of a
    /// chunk that were freed: until less than half of the chunk is needed, or without [`thin`](Self::thin) until
    /// the whole chunk is freed. Payload on other machines counts
    /// as 0.
    fn bytes(&self) -> u64;

    /// Makes a chunk part of the queue, after the record with its note became durable or was read back.
    /// Returns whether the rows can be read. This call must not wait.
    fn keep(&self, chunk: ChunkId, note: &Note) -> Result<Reach, QueueError>;

    /// The note of a kept chunk, which the queue writes again when it rewrites the journal. `None` if the
    /// chunk is unknown.
    fn note(&self, chunk: ChunkId) -> Option<Note>;

    /// Called once, before the first put, when every chunk in the journal has been kept. It is not called
    /// when the queue is opened for reading only. Returns the part of the store that the journal's writer
    /// drives, if there is one.
    fn opened(&self) -> Result<Option<Box<dyn Appender>>, QueueError> {
        Ok(None)
    }

    /// Tells the store that only some rows of a chunk are still needed. This call must not wait.
    fn thin(&self, _chunk: ChunkId, _live: &Live<'_>) {}

    /// Access to the chunks as arrays in this process, if the store keeps them there. The queue compacts such
    /// chunks when most of their rows are dead, and joins small chunks.
    fn resident(&self) -> Option<&dyn Resident> {
        None
    }

    /// Holds a chunk for a slow reader: the chunk can be read until the pin is dropped, even if it is freed
    /// or moved. This call must not wait for a network. If the store returns [`Pin::Unpinned`], the queue
    /// delays frees while the reader reads.
    fn pin(&self, _chunk: ChunkId) -> Pin {
        Pin::Unpinned
    }

    /// Admits rows that a client has stored directly in this store. Returns the note that the store would
    /// have made, or an error if the store accepts no such rows.
    fn admit(&self, _note: Note) -> Result<Note, QueueError> {
        Err(QueueError::BadRequest {
            reason: format!("store={} accepts rows only from the queue", self.name()),
        })
    }

    /// The files of the store that hold no chunk, which [`opened`](Self::opened) would delete or set aside.
    /// The result may include a file that is just being filled. This call blocks.
    fn strays(&self) -> Result<Vec<Stray>, QueueError> {
        Ok(Vec::new())
    }

    /// The number of the newest file that has or had chunks of the queue. A rewritten journal names this file, because
    /// its other records name only files with live rows, and the process may die before it puts the next row.
    fn newest_file(&self) -> Option<u64> {
        None
    }

    /// Learns while the journal is replayed that a record names the file with this number.
    fn keep_file(&self, _file: u64) {}

    /// The newest file of the store, if no record has ever named it. [`strays`](Self::strays) leaves it out where
    /// another process may be filling it, so the caller has to know that no process does. This call blocks.
    fn unnamed_newest(&self) -> Result<Option<Stray>, QueueError> {
        Ok(None)
    }
}

/// Chunks that are arrays in this process.
pub trait Resident {
    /// Returns a chunk, if it exists.
    fn chunk(&self, chunk: ChunkId) -> Option<Chunk>;

    /// Adds a chunk that the queue has made from other chunks.
    fn insert(&self, chunk: ChunkId, rows: Chunk);
}

/// Unused bytes that builders may leave in the buffers of a batch.
const SLACK_BYTES: usize = 1024;

/// Copies a batch into its own buffers if it is a slice of a much larger batch.
pub(crate) fn own_buffers(batch: RecordBatch) -> Result<RecordBatch, QueueError> {
    let held = held_bytes(&batch);
    let needed = payload_bytes(&batch)?;
    // Builders leave some unused bytes; a slice of a larger batch keeps far more.
    if held <= needed + needed / 2 + SLACK_BYTES {
        return Ok(batch);
    }
    let rows =
        u32::try_from(batch.num_rows()).map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
    Ok(take_record_batch(&batch, &UInt32Array::from_iter_values(0..rows))?)
}

/// The number of bytes that the rows of a batch need.
pub(crate) fn payload_bytes(batch: &RecordBatch) -> Result<usize, ArrowError> {
    batch.columns().iter().map(|column| needed_bytes(&column.to_data())).sum()
}

/// The number of bytes in the allocations that a batch keeps alive. An allocation that several columns share
/// counts once.
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

/// The number of bytes that the rows of an array need. A slice of a list keeps all values of the original
/// list, and arrow counts all of them; this function counts only the values of the slice.
pub(crate) fn needed_bytes(data: &ArrayData) -> Result<usize, ArrowError> {
    let (ends, offset_bytes) = match data.data_type() {
        DataType::List(_) | DataType::Map(..) => (list_ends::<i32>(data), size_of::<i32>()),
        DataType::LargeList(_) => (list_ends::<i64>(data), size_of::<i64>()),
        DataType::Struct(_) | DataType::FixedSizeList(..) => {
            return data.child_data().iter().map(needed_bytes).sum();
        }
        _ => return data.get_slice_memory_size(),
    };
    let (Some((first, last)), [values]) = (ends, data.child_data()) else { return Ok(0) };
    Ok(data.len() * offset_bytes + needed_bytes(&values.slice(first, last - first))?)
}

/// The range of a list array's rows in its values array: the first index, and the index after the last.
fn list_ends<Offset: ArrowNativeType>(data: &ArrayData) -> Option<(usize, usize)> {
    let offsets = data.buffers().first()?.typed_data::<Offset>();
    let ends = offsets.get(data.offset()..=data.offset() + data.len())?;
    Some((ends.first()?.as_usize(), ends.last()?.as_usize()))
}
