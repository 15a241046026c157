//! Chunks in memory.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::Schema;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::{
    Capabilities, Chunk, ChunkId, Found, NewChunk, Note, Pin, Pinned, Reach, Resident, Store, Stored, Wanted,
};
use crate::error::QueueError;
use crate::recent::Recent;

#[derive(Debug, Default)]
struct Chunks {
    by_id: HashMap<ChunkId, Chunk>,
    schemas: Recent<Schema>,
    bytes: u64,
}

/// The store of a queue that has no directory.
#[derive(Debug, Default)]
pub(crate) struct MemoryStore {
    chunks: Mutex<Chunks>,
}

impl Resident for MemoryStore {
    fn chunk(&self, chunk: ChunkId) -> Option<Chunk> {
        self.chunks.lock().by_id.get(&chunk).cloned()
    }

    fn insert(&self, chunk: ChunkId, rows: Chunk) {
        let bytes = rows.held_bytes() as u64;
        let mut chunks = self.chunks.lock();
        chunks.bytes += bytes;
        // Each stream has its own schema, which may be as large as a row, so equal schemas are shared.
        let schema = chunks.schemas.share(rows.schema(), || Arc::clone(rows.schema()));
        chunks.by_id.insert(chunk, rows.with_schema(&schema));
    }
}

impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { outlives_process: false }
    }

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
        // Drop outside the lock: freeing megabytes takes a while.
        drop(freed);
    }

    fn bytes(&self) -> u64 {
        self.chunks.lock().bytes
    }
    /// A chunk in memory has no note.
    fn keep(&self, _chunk: ChunkId, _note: &Note) -> Result<Reach, QueueError> {
        Ok(Reach::Within)
    }

    fn note(&self, _chunk: ChunkId) -> Option<Note> {
        None
    }

    fn resident(&self) -> Option<&dyn Resident> {
        Some(self)
    }

    fn pin(&self, chunk: ChunkId) -> Pin {
        match self.chunk(chunk) {
            Some(rows) => Pin::Pinned(Arc::new(rows)),
            None => Pin::Missing(QueueError::ChunkGone { chunk: chunk.0 }),
        }
    }
}

impl Pinned for Chunk {
    fn load(&self) -> Result<(Option<arrow_buffer::Buffer>, Chunk), QueueError> {
        Ok((None, self.clone()))
    }
}
