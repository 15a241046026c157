//! Chunks that are held for a slow reader, such as a snapshot or an inspection of the queue.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow_buffer::Buffer;
use parking_lot::Mutex;

use super::{Chunk, ChunkId, Encoded, Store, Wanted};
use crate::error::{ErrorClass, QueueError};

/// The number of attempts to read a chunk for a slow reader: one network failure must not end a whole
/// snapshot.
const READS_MAX: usize = 8;
/// The pause between two attempts.
const READ_PAUSE: Duration = Duration::from_millis(100);

/// A chunk that its store holds until this value is dropped.
pub trait Pinned: Debug + Send + Sync {
    /// Reads all rows, and returns their [`Encoded`] bytes too if they are available without encoding.
    /// Blocks.
    fn load(&self) -> Result<(Option<Buffer>, Chunk), QueueError>;
}

/// The result of a request to hold a chunk.
#[derive(Debug)]
pub enum Pin {
    /// The store holds the chunk.
    Pinned(Arc<dyn Pinned>),
    /// The store cannot hold chunks. The queue frees the chunk later, and reads it as usual.
    Unpinned,
    /// The chunk does not exist or cannot be opened.
    Missing(QueueError),
}

/// Chunks whose free is delayed, because a reader needs them and their store cannot hold them.
#[derive(Debug, Default)]
pub(crate) struct HeldBack {
    /// The number of held chunks. If it is 0, frees take no lock.
    count: AtomicUsize,
    chunks: Mutex<HashMap<ChunkId, Held>>,
}

#[derive(Debug, Default)]
struct Held {
    readers: usize,
    is_freed: bool,
}

impl HeldBack {
    /// Returns the chunks that may be freed immediately, or `None` if all chunks may be freed. The other
    /// chunks are freed when their last reader is done.
    pub(crate) fn sift(&self, chunks: &[ChunkId]) -> Option<Vec<ChunkId>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut held = self.chunks.lock();
        let mut is_free = |chunk: &&ChunkId| match held.get_mut(chunk) {
            Some(held) => {
                held.is_freed = true;
                false
            }
            None => true,
        };
        Some(chunks.iter().filter(&mut is_free).copied().collect())
    }

    pub(crate) fn holds(&self, chunk: ChunkId) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.chunks.lock().contains_key(&chunk)
    }

    fn hold(&self, chunk: ChunkId) {
        let mut chunks = self.chunks.lock();
        chunks.entry(chunk).or_default().readers += 1;
        self.count.store(chunks.len(), Ordering::Release);
    }

    /// Removes one reader, and returns whether the chunk must be freed now.
    fn release(&self, chunk: ChunkId) -> bool {
        let mut chunks = self.chunks.lock();
        let Entry::Occupied(mut held) = chunks.entry(chunk) else { return false };
        held.get_mut().readers -= 1;
        if held.get().readers > 0 {
            return false;
        }
        let is_freed = held.remove().is_freed;
        self.count.store(chunks.len(), Ordering::Release);
        is_freed
    }
}

/// A chunk that is read through its store and is freed only after this value is dropped.
pub(crate) struct HeldChunk {
    store: Arc<dyn Store>,
    chunk: ChunkId,
    columns: Arc<[String]>,
    back: Arc<HeldBack>,
}

impl Debug for HeldChunk {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("HeldChunk").field(&self.chunk).finish()
    }
}

impl Drop for HeldChunk {
    fn drop(&mut self) {
        if self.back.release(self.chunk) {
            self.store.free(&[self.chunk]);
        }
    }
}

impl HeldChunk {
    /// Reads the given rows. Blocks; must be called in a tokio runtime, on a thread that may block.
    fn rows(&self, rows: &[u32]) -> Result<Chunk, QueueError> {
        let wanted = runs(self.chunk, rows, &self.columns);
        let runtime = tokio::runtime::Handle::try_current();
        let runtime = runtime.map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
        runtime.block_on(async {
            for _ in 1..READS_MAX {
                match self.read(&wanted).await {
                    Err(error) if error.class() == ErrorClass::Retryable => {
                        tracing::debug!(chunk = self.chunk.0, %error, "a chunk is read again");
                        tokio::time::sleep(READ_PAUSE).await;
                    }
                    outcome => return outcome,
                }
            }
            self.read(&wanted).await
        })
    }

    async fn read(&self, wanted: &[Wanted]) -> Result<Chunk, QueueError> {
        let mut pieces = Vec::new();
        for (wanted, found) in wanted.iter().zip(self.store.get(wanted, None).await) {
            let found = found?;
            pieces.extend(found.chunk.slice(found.first, wanted.rows)?.pieces().iter().cloned());
        }
        Chunk::new(pieces)
    }
}

/// Groups rows of a chunk into runs of consecutive rows.
pub(crate) fn runs(chunk: ChunkId, rows: &[u32], columns: &Arc<[String]>) -> Vec<Wanted> {
    let stretches = rows.chunk_by(|left, right| left + 1 == *right);
    let wanted = |rows: &[u32]| Wanted {
        chunk,
        first: rows[0] as usize,
        rows: rows.len(),
        columns: Arc::clone(columns),
    };
    stretches.map(wanted).collect()
}

/// The source from which a chunk is read. The chunk stays readable even if its rows are freed in the
/// meantime.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    Pinned(Arc<dyn Pinned>),
    Held(Arc<HeldChunk>),
    Missing(QueueError),
}

impl Source {
    /// Holds a chunk of `store` for reading, even when no row needs the chunk any more.
    pub(crate) fn of(
        store: &Arc<dyn Store>,
        chunk: ChunkId,
        columns: &[String],
        back: &Arc<HeldBack>,
    ) -> Self {
        match store.pin(chunk) {
            Pin::Pinned(pinned) => Self::Pinned(pinned),
            Pin::Missing(error) => Self::Missing(error),
            Pin::Unpinned => {
                back.hold(chunk);
                let (store, back) = (Arc::clone(store), Arc::clone(back));
                Self::Held(Arc::new(HeldChunk { store, chunk, columns: columns.into(), back }))
            }
        }
    }

    /// Reads all rows, and their bytes if available. Blocks. Returns `None` if the store cannot hold chunks;
    /// such a chunk can be read only with `Loader`.
    pub(crate) fn load(&self) -> Option<Result<(Option<Buffer>, Chunk), QueueError>> {
        match self {
            Self::Pinned(pinned) => Some(pinned.load()),
            Self::Held(_) => None,
            Self::Missing(error) => Some(Err(error.clone())),
        }
    }

    /// Returns the given rows, encoded as a separate chunk. Blocks.
    pub(crate) fn bytes_of(&self, rows: &[u32]) -> Result<Buffer, QueueError> {
        Loader::default().rows_of(ChunkId(0), self, rows)?.into_bytes()
    }
}

/// Rows of a chunk, as a separate chunk.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) rows: Chunk,
    /// The encoded bytes, if available.
    bytes: Option<Buffer>,
}

impl Loaded {
    pub(crate) fn into_bytes(self) -> Result<Buffer, QueueError> {
        self.bytes.map_or_else(|| Encoded::of(&self.rows).map(Encoded::into_buffer), Ok)
    }
}

/// Reads chunks. It caches the last chunk, because consecutive records mostly refer to rows of the same
/// chunk.
#[derive(Debug, Default)]
pub(crate) struct Loader {
    last: Option<(ChunkId, Loaded)>,
}

impl Loader {
    /// Reads the given rows of a chunk. Blocks.
    pub(crate) fn rows_of(
        &mut self,
        id: ChunkId,
        source: &Source,
        rows: &[u32],
    ) -> Result<Loaded, QueueError> {
        let whole = match (self.last.take(), source) {
            (_, Source::Held(held)) => return Ok(Loaded { rows: held.rows(rows)?, bytes: None }),
            (_, Source::Missing(error)) => return Err(error.clone()),
            (Some((last, whole)), _) if last == id => whole,
            (_, Source::Pinned(pinned)) => {
                let (bytes, rows) = pinned.load()?;
                Loaded { rows, bytes }
            }
        };
        let is_whole = rows.len() == whole.rows.rows() && rows.iter().zip(0..).all(|(row, at)| *row == at);
        if is_whole {
            return Ok(whole);
        }
        let cut = Loaded { rows: whole.rows.select(rows)?, bytes: None };
        self.last = Some((id, whole));
        Ok(cut)
    }
}
