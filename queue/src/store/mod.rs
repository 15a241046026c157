//! The data plane: chunks of payload by key.
//!
//! A chunk is the rows of one put: immutable, with buffers of its own, so that freeing it frees its memory whatever
//! batch it was cut from.

mod chunk;
mod disk;
mod memory;
mod sizes;

use std::collections::HashMap;

use arrow::array::{Array, ArrayData, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{ArrowNativeType, DataType};
use arrow::error::ArrowError;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::QueueError;

pub use chunk::Chunk;
pub(crate) use disk::{ALIGNMENT, DiskStore, SegmentFile, SegmentWriter, decode, encode};
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

/// Chunks by key. Nothing on the hot path lists them.
pub trait Store: Send + Sync + 'static {
    /// A chunk's rows; an error when it is not there or not what was written. Cancel-safe.
    fn read(&self, chunk: ChunkId) -> BoxFuture<'_, Result<Chunk, QueueError>>;

    /// Frees a chunk. Freeing one that is not there is nothing.
    fn free(&self, chunk: ChunkId);

    /// Bytes of payload that are held for live chunks, in memory or on disk.
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
