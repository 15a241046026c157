//! Chunks in memory.

use std::collections::HashMap;

use arrow::array::RecordBatch;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::{ChunkId, Store, held_bytes};
use crate::QueueError;

#[derive(Debug, Default)]
struct Chunks {
    by_id: HashMap<ChunkId, RecordBatch>,
    bytes: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct MemoryStore {
    chunks: Mutex<Chunks>,
}

impl MemoryStore {
    pub(crate) fn get(&self, chunk: ChunkId) -> Option<RecordBatch> {
        self.chunks.lock().by_id.get(&chunk).cloned()
    }

    pub(crate) fn insert(&self, chunk: ChunkId, batch: RecordBatch) {
        let bytes = held_bytes(&batch) as u64;
        let mut chunks = self.chunks.lock();
        chunks.bytes += bytes;
        chunks.by_id.insert(chunk, batch);
    }
}

impl Store for MemoryStore {
    fn read(&self, chunk: ChunkId) -> BoxFuture<'_, Result<RecordBatch, QueueError>> {
        let found = self.get(chunk);
        let missing = || QueueError::ChunkGone { chunk: chunk.0 };
        futures::future::ready(found.ok_or_else(missing)).boxed()
    }

    fn free(&self, chunk: ChunkId) {
        let freed = {
            let mut chunks = self.chunks.lock();
            let freed = chunks.by_id.remove(&chunk);
            let bytes = freed.as_ref().map_or(0, |batch| held_bytes(batch) as u64);
            chunks.bytes -= bytes;
            freed
        };
        // Outside the lock: giving megabytes back takes a while.
        drop(freed);
    }

    fn bytes(&self) -> u64 {
        self.chunks.lock().bytes
    }
}
