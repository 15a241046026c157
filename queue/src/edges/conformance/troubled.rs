//! A slow store whose calls sometimes fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::Subject;
use crate::error::QueueError;
use crate::store::{
    Appender, Capabilities, ChunkId, Found, Live, NewChunk, Note, Pin, Reach, Resident, Store, Stored, Stray,
    Wanted,
};

/// The latency and the failures of a simulated network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trouble {
    /// The latency of each put and each get.
    pub latency: Duration,
    /// One in this many puts and gets fails. The failures alternate: one before the call reaches the store,
    /// the next one afterwards.
    pub fails_one_in: u64,
}

impl Default for Trouble {
    /// A latency of 5 ms, and failures of one call in five.
    fn default() -> Self {
        Self { latency: Duration::from_millis(5), fails_one_in: 5 }
    }
}

/// A store behind a simulated network with latency and failures.
pub struct Troubled {
    store: Arc<dyn Store>,
    trouble: Trouble,
    calls: AtomicU64,
}

impl Troubled {
    /// Puts a simulated network in front of `store`.
    pub fn new(store: Arc<dyn Store>, trouble: Trouble) -> Self {
        Self { store, trouble, calls: AtomicU64::new(0) }
    }

    /// Waits for the latency. Returns whether the request fails, and whether the response fails.
    async fn call(&self) -> (bool, bool) {
        tokio::time::sleep(self.trouble.latency).await;
        let call = self.calls.fetch_add(1, Ordering::Relaxed) % (2 * self.trouble.fails_one_in);
        (call == 1, call == 1 + self.trouble.fails_one_in)
    }
}

fn failed() -> QueueError {
    QueueError::Unreachable { url: "store".to_owned(), reason: "a failure that a test injects".to_owned() }
}

/// A subject whose store is behind a simulated network.
pub(super) struct Under<'a> {
    pub(super) subject: &'a dyn Subject,
    pub(super) trouble: Trouble,
}

impl Subject for Under<'_> {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(Troubled::new(self.subject.open(), self.trouble))
    }
}

impl Store for Troubled {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn put(&self, chunks: Vec<NewChunk>) -> BoxFuture<'_, Result<Vec<Stored>, QueueError>> {
        async move {
            let ids: Vec<ChunkId> = chunks.iter().map(|new| new.chunk).collect();
            let (fails_there, fails_back) = self.call().await;
            if fails_there {
                return Err(failed());
            }
            let stored = self.store.put(chunks).await?;
            if fails_back {
                // The caller does not know that the chunks were stored, and will not free them.
                self.store.free(&ids);
                return Err(failed());
            }
            Ok(stored)
        }
        .boxed()
    }

    fn get<'a>(
        &'a self,
        wanted: &'a [Wanted],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Vec<Result<Found, QueueError>>> {
        async move {
            let (fails_there, fails_back) = self.call().await;
            if fails_there || fails_back {
                return wanted.iter().map(|_| Err(failed())).collect();
            }
            self.store.get(wanted, columns).await
        }
        .boxed()
    }

    fn free(&self, chunks: &[ChunkId]) {
        self.store.free(chunks);
    }

    fn bytes(&self) -> u64 {
        self.store.bytes()
    }

    fn keep(&self, chunk: ChunkId, note: &Note) -> Result<Reach, QueueError> {
        self.store.keep(chunk, note)
    }

    fn note(&self, chunk: ChunkId) -> Option<Note> {
        self.store.note(chunk)
    }

    fn opened(&self) -> Result<Option<Box<dyn Appender>>, QueueError> {
        self.store.opened()
    }

    fn thin(&self, chunk: ChunkId, live: &Live<'_>) {
        self.store.thin(chunk, live);
    }

    fn resident(&self) -> Option<&dyn Resident> {
        self.store.resident()
    }

    fn pin(&self, chunk: ChunkId) -> Pin {
        self.store.pin(chunk)
    }

    fn admit(&self, note: Note) -> Result<Note, QueueError> {
        self.store.admit(note)
    }

    fn strays(&self) -> Result<Vec<Stray>, QueueError> {
        self.store.strays()
    }

    fn newest_file(&self) -> Option<u64> {
        self.store.newest_file()
    }

    fn keep_file(&self, file: u64) {
        self.store.keep_file(file);
    }

    fn unnamed_newest(&self) -> Result<Option<Stray>, QueueError> {
        self.store.unnamed_newest()
    }
}
