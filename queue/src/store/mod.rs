//! The data plane: chunks of payload by key, and the seam for stores of other kinds.
//!
//! A chunk is the rows of one put: immutable, with buffers of its own, so that freeing it frees its memory
//! whatever batch it was cut from. A [`Store`] takes chunks, many at a time, gives them back by their keys
//! and frees them. There are three here: memory, segment files, and the storage units of other machines. A
//! queue can be opened with any other ([`TransferQueue::open_with`](crate::TransferQueue::open_with)).
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
//! Everything else has a default. A store in this process gives [`resident`](Store::resident), and the queue
//! compacts and packs its chunks; a store with places to give back takes [`thin`](Store::thin); one that
//! reads at leisure what it has freed gives [`pin`](Store::pin), else the queue holds frees back while a
//! snapshot reads.
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

/// A store of a queue in memory: what [`TransferQueue::open`](crate::TransferQueue::open) takes without a
/// directory.
pub fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::default())
}

/// A store of segment files in a directory that is there: what
/// [`TransferQueue::open`](crate::TransferQueue::open) takes with one. A file is closed when it has so many
/// bytes.
pub fn segments(dir: &Path, segment_bytes: u64) -> Arc<dyn Store> {
    Arc::new(Arc::new(DiskStore::new(dir, segment_bytes)))
}

/// The name of the store of segment files.
pub(crate) const SEGMENTS: &str = "segments";
/// The name of the store of the storage units.
pub(crate) const UNITS: &str = "units";

/// Names a chunk. A queue gives each number once; but a number whose chunk was never [kept](Store::keep) is
/// given again after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChunkId(pub u64);

/// Where a chunk lies in the segment files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkLocation {
    /// Number of the segment file.
    pub(crate) segment: u64,
    /// Of its first byte.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// CRC-32 of them.
    pub(crate) checksum: u32,
}

/// Chunks begin at multiples of this, as arrow's buffers do within them; bytes.
pub(crate) const ALIGNMENT: u64 = 64;

/// Rows on their way to a store.
#[derive(Debug, Clone)]
pub struct NewChunk {
    /// Their key.
    pub chunk: ChunkId,
    /// The rows.
    pub rows: Chunk,
    /// The group that they belong to, the first one if they are of several: a store of many parts keeps
    /// groups together.
    pub group: String,
}

/// What a store has done with a chunk, and what has to be written down for it to be found again.
#[derive(Debug)]
pub enum Stored {
    /// It is there for as long as the process lives.
    Held,
    /// It is there once these bytes are, which the journal's writer hands to the store's [`Appender`].
    Unwritten(Encoded),
    /// It is there, and this note finds it.
    Noted(Note),
}

impl Stored {
    pub(crate) fn is_held(&self) -> bool {
        matches!(self, Self::Held)
    }

    /// What is written in front of the put's record, and what the record says of the place.
    pub(crate) fn into_parts(self) -> (Option<Encoded>, Option<Note>) {
        match self {
            Self::Held => (None, None),
            Self::Unwritten(encoded) => (Some(encoded), None),
            Self::Noted(note) => (None, Some(note)),
        }
    }
}

/// Whether rows can be read at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// They can.
    Within,
    /// What has them does not answer: they are not given out until it does.
    Away,
}

/// Rows of a chunk that a reader wants.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Their chunk.
    pub chunk: ChunkId,
    /// The first of them there.
    pub first: usize,
    /// How many follow each other.
    pub rows: usize,
    /// The columns that the chunk has.
    pub columns: Arc<[String]>,
}

/// Rows that were wanted: they begin at row `first` of a chunk, which may have others too.
#[derive(Debug, Clone)]
pub struct Found {
    /// With at least the columns that were asked for.
    pub chunk: Chunk,
    /// Where they begin.
    pub first: usize,
}

/// The rows of a chunk that are still needed.
pub struct Live<'a> {
    /// How many.
    pub rows: usize,
    /// How many it was written with.
    pub of: usize,
    places: &'a dyn Fn() -> Vec<u32>,
}

impl<'a> Live<'a> {
    pub(crate) fn new(rows: usize, of: usize, places: &'a dyn Fn() -> Vec<u32>) -> Self {
        Self { rows, of, places }
    }

    /// Their places in the chunk: O(rows).
    pub fn places(&self) -> Vec<u32> {
        (self.places)()
    }
}

impl std::fmt::Debug for Live<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Live").field("rows", &self.rows).field("of", &self.of).finish_non_exhaustive()
    }
}

/// What a queue may expect of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// A chunk whose note was written down is there when the process has died and the store is opened anew:
    /// only such a store is a queue's with a directory.
    pub outlives_process: bool,
    /// Its chunks are read without a network: [`verify`](crate::TransferQueue::verify) reads each of them.
    pub is_local: bool,
}

/// A file that no chunk lies in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stray {
    /// The file.
    pub file: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// Chunks by key: see the [module](self) for the order of the calls. Calls that wait are about many chunks,
/// so that what lies behind a network costs one way there and back.
pub trait Store: Send + Sync + 'static {
    /// The name that its notes are written down with: a word that no other store of the queue has. It never
    /// changes.
    fn name(&self) -> &'static str;

    /// What a queue may expect of it.
    fn capabilities(&self) -> Capabilities;

    /// Takes chunks in: what became of each, in their order; or none of them, with what is left behind freed
    /// sooner or later. An error that is [`Retryable`](crate::ErrorClass::Retryable) is passed to the
    /// producer, who puts again.
    ///
    /// Cancel-safe in the same sense.
    fn put(&self, chunks: Vec<NewChunk>) -> BoxFuture<'_, Result<Vec<Stored>, QueueError>>;

    /// Rows of chunks, of which only `columns` are needed (all if absent), in the order in which they are
    /// wanted. Where they are not there, or not what was written, it is an error: [`QueueError::ChunkGone`]
    /// if the chunk was freed or has moved, [`QueueError::Corrupt`] if its bytes are not what was written
    /// (its rows are lost then), and one that is [`Retryable`](crate::ErrorClass::Retryable) if they may be
    /// read later: the consumer is told, and its rows are given again.
    ///
    /// Cancel-safe.
    fn get<'a>(
        &'a self,
        wanted: &'a [Wanted],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Vec<Result<Found, QueueError>>>;

    /// Frees chunks. Freeing one that is not there is nothing. Must not wait: what takes long goes on beside
    /// it.
    fn free(&self, chunks: &[ChunkId]);

    /// Bytes of payload that are held here for live chunks, in memory or on disk; 0 for what lies on other
    /// machines.
    fn bytes(&self) -> u64;

    /// A chunk is part of the queue: what is written down about it is durable, or was read back. Says whether
    /// its rows are within reach. Must not wait.
    fn keep(&self, chunk: ChunkId, note: &Note) -> Result<Reach, QueueError>;

    /// The note of a chunk that was kept, for a journal that is rewritten; `None` where it is not there.
    fn note(&self, chunk: ChunkId) -> Option<Note>;

    /// Every chunk that the journal knows was kept. Gives the side of the store that the journal's writer
    /// drives, if it has one. Called once, before the first put; not where the queue is only looked at.
    fn opened(&self) -> Result<Option<Box<dyn Appender>>, QueueError> {
        Ok(None)
    }

    /// Only some rows of a chunk are still needed. Must not wait.
    fn thin(&self, _chunk: ChunkId, _live: &Live<'_>) {}

    /// Its chunks as arrays in this process: the queue copies what is needed of chunks that are mostly dead,
    /// and makes one of many small ones.
    fn resident(&self) -> Option<&dyn Resident> {
        None
    }

    /// Holds a chunk for a reader that takes its time: it can be read until the pin is dropped, also when it
    /// is freed or moved. Must not wait for a network. Not asked of a store that answers [`Pin::Unpinned`]:
    /// there the queue holds back frees while the reader reads.
    fn pin(&self, _chunk: ChunkId) -> Pin {
        Pin::Unpinned
    }

    /// Rows that a client has brought here by itself: the note as the store would have made it, or an error
    /// where it takes none there.
    fn admit(&self, _note: Note) -> Result<Note, QueueError> {
        Err(QueueError::BadRequest {
            reason: format!("store={} takes rows from the queue alone", self.name()),
        })
    }

    /// Files of its own that no chunk lies in and that [`opened`](Self::opened) would delete; a file may be
    /// there because it is just being filled. Blocks.
    fn strays(&self) -> Result<Vec<Stray>, QueueError> {
        Ok(Vec::new())
    }
}

/// Chunks that are arrays in this process.
pub trait Resident {
    /// A chunk that is there.
    fn chunk(&self, chunk: ChunkId) -> Option<Chunk>;

    /// Takes a chunk that the queue has made of others.
    fn insert(&self, chunk: ChunkId, rows: Chunk);
}

/// The writing side of a store whose payload the journal's writer writes, in front of the records that speak
/// of it: a batch of puts costs one sync of payload and one of records. On the writer's thread; blocks.
pub trait Appender: Send {
    /// Appends a chunk. It is not part of the queue before it is [kept](Store::keep).
    fn append(&mut self, chunk: ChunkId, rows: &Encoded) -> Result<Note, QueueError>;

    /// What an appended chunk came with is over: by now it is kept, or nobody wants it.
    fn settle(&mut self, chunk: ChunkId);

    /// Makes durable what was appended. Once that has failed it never succeeds again.
    fn sync(&mut self) -> Result<(), QueueError>;

    /// Chunks that the store wants to have written anew, so that it can give up what lies beside them.
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
