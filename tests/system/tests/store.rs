//! Tests a store that is not part of the queue's crate. It uses only the public API of the queue, and keeps
//! its chunks in a map of bytes that represents a key-value server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rolldock_queue::QueueError;
use rolldock_queue::conformance::{Subject, conforms};
use rolldock_queue::store::{
    Capabilities, ChunkId, Encoded, Found, NewChunk, Note, Reach, Store, Stored, Wanted, decode,
};

const NAME: &str = "key-value";

/// The values of the key-value server, which outlive the queue.
type Server = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// The client of a key-value server.
struct KeyValue {
    server: Server,
    /// The key of each chunk that the queue has decided to keep.
    keys: Mutex<HashMap<ChunkId, String>>,
    /// The key of each chunk that was put and is not kept yet.
    put: Mutex<HashMap<ChunkId, String>>,
}

impl KeyValue {
    fn read(&self, wanted: &Wanted) -> Result<Found, QueueError> {
        let gone = || QueueError::ChunkGone { chunk: wanted.chunk.0 };
        let key = self.keys.lock().get(&wanted.chunk).cloned().ok_or_else(gone)?;
        let bytes = self.server.lock().get(&key).cloned().ok_or_else(gone)?;
        Ok(Found { chunk: decode(bytes.into())?, first: wanted.first })
    }
}

impl Store for KeyValue {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { outlives_process: true, is_local: false }
    }

    fn put(&self, chunks: Vec<NewChunk>) -> BoxFuture<'_, Result<Vec<Stored>, QueueError>> {
        async move {
            let mut stored = Vec::with_capacity(chunks.len());
            for NewChunk { chunk, rows, .. } in chunks {
                // The queue may use the number of a chunk again after a restart, so keys have a random part.
                let key = format!("chunk-{}-{:016x}", chunk.0, rand::random::<u64>());
                let bytes = Encoded::of(&rows)?.into_buffer().to_vec();
                self.server.lock().insert(key.clone(), bytes);
                self.put.lock().insert(chunk, key.clone());
                stored.push(Stored::Noted(Note::new(NAME, key)));
            }
            Ok(stored)
        }
        .boxed()
    }

    fn get<'a>(
        &'a self,
        wanted: &'a [Wanted],
        _columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Vec<Result<Found, QueueError>>> {
        async move { wanted.iter().map(|wanted| self.read(wanted)).collect() }.boxed()
    }

    fn free(&self, chunks: &[ChunkId]) {
        for chunk in chunks {
            let keys = [self.put.lock().remove(chunk), self.keys.lock().remove(chunk)];
            keys.into_iter().flatten().for_each(|key| drop(self.server.lock().remove(&key)));
        }
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn keep(&self, chunk: ChunkId, note: &Note) -> Result<Reach, QueueError> {
        self.put.lock().remove(&chunk);
        self.keys.lock().insert(chunk, note.content::<String>()?.as_ref().clone());
        Ok(Reach::Within)
    }

    fn note(&self, chunk: ChunkId) -> Option<Note> {
        self.keys.lock().get(&chunk).map(|key| Note::new(NAME, key.clone()))
    }

    fn opened(&self) -> Result<Option<Box<dyn rolldock_queue::store::Appender>>, QueueError> {
        let known: Vec<String> = self.keys.lock().values().cloned().collect();
        self.server.lock().retain(|key, _| known.contains(key));
        Ok(None)
    }
}

struct Subjected {
    server: Server,
}

impl Subject for Subjected {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(KeyValue { server: Arc::clone(&self.server), keys: Mutex::default(), put: Mutex::default() })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_another_crate_conforms() {
    let journals = tempfile::tempdir().unwrap();
    let server = Server::default();
    conforms(&Subjected { server: Arc::clone(&server) }, journals.path()).await.unwrap();
    // The server has deleted the values that the queue freed.
    assert!(server.lock().len() < 300, "{} values are left", server.lock().len());
}
