//! The data plane: chunks of payload by key.
//!
//! A chunk is the rows of one put: immutable, with buffers of its own, so that freeing it frees its memory whatever
//! batch it was cut from. A [`Store`] takes chunks, many at a time, gives them back by their keys and frees them. There are
//! three: memory, segment files, and the storage units of other machines
//! ([`Units`](crate::units::Units)); [`Plane`](crate::plane::Plane) is all that a queue has, as one.
//!
//! # Invariants
//! - Nothing lists the chunks of a store on the hot path: the control plane knows their keys.
//! - A store does not say that a put is durable: it says what has to be written down with the put's record
//!   ([`Stored`]), and the journal makes both one fact.

mod chunk;
mod disk;
mod encoded;
mod memory;
mod sizes;

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Array, RecordBatch, UInt32Array};
use arrow_buffer::ArrowNativeType;
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};
use arrow_select::take::take_record_batch;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::QueueError;
use crate::units::Place;

pub use chunk::Chunk;
pub(crate) use disk::{DiskStore, SegmentFile, SegmentWriter};
pub use encoded::Encoded;
pub(crate) use encoded::{Within, decode, gathered};
pub(crate) use memory::MemoryStore;
pub(crate) use sizes::ChunkSizes;

/// Names a chunk for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChunkId(pub u64);

/// Where a chunk lies on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkLocation {
    /// Number of the segment file.
    pub segment: u64,
    /// Of its first byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// CRC-32 of them.
    pub checksum: u32,
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
    /// The group that they belong to, the first one if they are of several: a store of many parts keeps groups together.
    pub group: String,
}

/// What a store has done with a chunk, and what has to be written down for it to be found again.
#[derive(Debug)]
pub enum Stored {
    /// It is there for as long as the process lives.
    Held,
    /// It is there once these bytes are, which are written with the put's record.
    Unwritten(Encoded),
    /// It lies elsewhere; the put's record says where.
    Placed(Place),
}

impl Stored {
    pub(crate) fn is_held(&self) -> bool {
        matches!(self, Self::Held)
    }

    /// What is written with the put's record, and what the record says of the place.
    pub(crate) fn into_parts(self) -> (Option<Encoded>, Option<Place>) {
        match self {
            Self::Held => (None, None),
            Self::Unwritten(encoded) => (Some(encoded), None),
            Self::Placed(place) => (None, Some(place)),
        }
    }
}

/// Rows of a chunk that somebody wants.
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

/// Chunks by key: memory, segment files, or storage units on other machines. Every call is about many of them, so that what
/// lies behind a network costs one way there and back; nothing lists them. A store does not say that a put is durable: it
/// says what has to be written down with the put's record, and the journal makes both one fact.
pub trait Store: Send + Sync + 'static {
    /// Takes chunks in: what became of each, in their order; or none of them, with what is left behind freed sooner or later.
    /// Cancel-safe in the same sense.
    fn put(&self, chunks: Vec<NewChunk>) -> BoxFuture<'_, Result<Vec<Stored>, QueueError>>;

    /// Rows of chunks, of which only `columns` are needed (all if absent), in the order in which they are wanted. Where they
    /// are not there, or not what was written, it is an error: [`QueueError::ChunkGone`] if the chunk was freed or has
    /// moved. Cancel-safe.
    fn get<'a>(
        &'a self,
        wanted: &'a [Wanted],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Vec<Result<Found, QueueError>>>;

    /// Frees chunks. Freeing one that is not there is nothing.
    fn free(&self, chunks: &[ChunkId]);

    /// Bytes of payload that are held here for live chunks, in memory or on disk.
    fn bytes(&self) -> u64;
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

/// Bytes that an array's own rows take. A cut of a list keeps all values of the list that it was cut from, and arrow
/// counts them as its own.
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
