//! The data plane: chunks of payload by key.
//!
//! A chunk is the rows of one put: immutable, with buffers of its own, so that freeing it frees its memory whatever
//! batch it was cut from.

mod disk;
mod memory;

use arrow::array::{Array, RecordBatch, UInt32Array};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::QueueError;

pub(crate) use disk::{DiskStore, SegmentWriter, encode};
pub(crate) use memory::MemoryStore;

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
    fn read(&self, chunk: ChunkId) -> BoxFuture<'_, Result<RecordBatch, QueueError>>;

    /// Frees a chunk. Freeing one that is not there is nothing.
    fn free(&self, chunk: ChunkId);

    /// Bytes of payload that are held for live chunks, in memory or on disk.
    fn bytes(&self) -> u64;
}

/// Gives a batch buffers of its own where it is a cut of a larger one.
pub(crate) fn own_buffers(batch: RecordBatch) -> Result<RecordBatch, QueueError> {
    let held: usize = batch.columns().iter().map(|column| column.get_buffer_memory_size()).sum();
    let data: usize = batch
        .columns()
        .iter()
        .map(|column| column.to_data().get_slice_memory_size())
        .sum::<Result<usize, _>>()?;
    // Builders leave some slack; a cut of a larger batch holds far more.
    if held <= data + data / 2 + 4096 {
        return Ok(batch);
    }
    let rows =
        u32::try_from(batch.num_rows()).map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
    Ok(arrow::compute::take_record_batch(&batch, &UInt32Array::from_iter_values(0..rows))?)
}
