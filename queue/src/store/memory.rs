//! Chunks in memory.

use std::collections::HashMap;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::{Chunk, ChunkId, Store};
use crate::QueueError;

#[derive(Debug, Default)]
struct Chunks {
    by_id: HashMap<ChunkId, Chunk>,
    bytes: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct MemoryStore {
    chunks: Mutex<Chunks>,
}

impl MemoryStore {
    pub(crate) fn get(&self, chunk: ChunkId) -> Option<Chunk> {
        self.chunks.lock().by_id.get(&chunk).cloned()
    }

    pub(crate) fn insert(&self, chunk: ChunkId, rows: Chunk) {
        let bytes = rows.held_bytes() as u64;
        let mut chunks = self.chunks.lock();
        chunks.bytes += bytes;
        chunks.by_id.insert(chunk, rows);
    }
}

impl Store for MemoryStore {
    fn read(&self, chunk: ChunkId) -> BoxFuture<'_, Result<Chunk, QueueError>> {
        let found = self.get(chunk);
        let missing = || QueueError::ChunkGone { chunk: chunk.0 };
        futures::future::ready(found.ok_or_else(missing)).boxed()
    }

    fn free(&self, chunk: ChunkId) {
        let freed = {
            let mut chunks = self.chunks.lock();
            let freed = chunks.by_id.remove(&chunk);
            let bytes = freed.as_ref().map_or(0, |rows| rows.held_bytes() as u64);
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
