//! Chunks in memory.

use std::collections::HashMap;

use std::sync::Arc;

use arrow_schema::Schema;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::{Chunk, ChunkId, Found, NewChunk, Store, Stored, Wanted};
use crate::QueueError;
use crate::recent::Recent;

#[derive(Debug, Default)]
struct Chunks {
    by_id: HashMap<ChunkId, Chunk>,
    schemas: Recent<Schema>,
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
        // Each stream brings a schema of its own, which may be as large as a row.
        let schema = chunks.schemas.share(rows.schema(), || Arc::clone(rows.schema()));
        chunks.by_id.insert(chunk, rows.with_schema(&schema));
    }
}

impl Store for MemoryStore {
    fn put(&self, chunks: Vec<NewChunk>) -> BoxFuture<'_, Result<Vec<Stored>, QueueError>> {
        async move {
            let keep = |new: NewChunk| {
                self.insert(new.chunk, new.rows);
                Stored::Held
            };
            Ok(chunks.into_iter().map(keep).collect())
        }
        .boxed()
    }

    fn get<'a>(
        &'a self,
        wanted: &'a [Wanted],
        _columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Vec<Result<Found, QueueError>>> {
        let chunks = self.chunks.lock();
        let find = |wanted: &Wanted| {
            let found = chunks.by_id.get(&wanted.chunk).cloned();
            let chunk = found.ok_or(QueueError::ChunkGone { chunk: wanted.chunk.0 })?;
            Ok(Found { chunk, first: wanted.first })
        };
        let found = wanted.iter().map(find).collect();
        drop(chunks);
        futures::future::ready(found).boxed()
    }

    fn free(&self, chunks: &[ChunkId]) {
        let freed: Vec<Chunk> = {
            let mut held = self.chunks.lock();
            let freed: Vec<Chunk> = chunks.iter().filter_map(|chunk| held.by_id.remove(chunk)).collect();
            held.bytes -= freed.iter().map(|rows| rows.held_bytes() as u64).sum::<u64>();
            freed
        };
        // Outside the lock: giving megabytes back takes a while.
        drop(freed);
    }

    fn bytes(&self) -> u64 {
        self.chunks.lock().bytes
    }
}
