//! Tests a store that is not part of the queue's crate. It uses only the public API of the queue, and keeps
//! its chunks in a map of bytes that represents a key-value server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rolldock_queue::QueueError;
use rolldock_queue::conformance::{Subject, conforms};
use rolldock_queue::store::{
    Capabilities, Chunk, ChunkId, Encoded, Found, NewChunk, Note, Reach, Store, Stored, Wanted, decode,
};

const NAME: &str = "key-value";

/// The values of the key-value server, which outlive the queue.
type Server = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// The key of a chunk's value, and the value's checksum.
type Place = (String, u32);

/// The client of a key-value server.
struct KeyValue {
    server: Server,
    /// The place of each chunk that the queue has decided to keep.
    kept: Mutex<HashMap<ChunkId, Place>>,
    /// The place of each chunk that was put and is not kept yet.
    put: Mutex<HashMap<ChunkId, Place>>,
    /// Whether the queue has named all chunks that it keeps. Before that, no value is deleted.
    is_opened: AtomicBool,
}

impl KeyValue {
    fn new(server: &Server) -> Self {
        let (kept, put, is_opened) = Default::default();
        Self { server: Arc::clone(server), kept, put, is_opened }
    }

    fn read(&self, wanted: &Wanted) -> Result<Found, QueueError> {
        let gone = || QueueError::ChunkGone { chunk: wanted.chunk.0 };
        let (key, checksum) = self.kept.lock().get(&wanted.chunk).cloned().ok_or_else(gone)?;
        let corrupt = |reason: &str| QueueError::Corrupt {
            file: key.clone().into(),
            offset: 0,
            reason: reason.to_owned(),
        };
        let value = self.server.lock().get(&key).cloned().ok_or_else(|| corrupt("the value is missing"))?;
        let encoded = Encoded::from(vec![value.into()]);
        if encoded.checksum() != checksum {
            return Err(corrupt("the checksum of the value differs"));
        }
        Ok(Found { chunk: decode(encoded.into_buffer())?, first: wanted.first })
    }
}

impl Store for KeyValue {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { outlives_process: true }
    }

    fn put(&self, chunks: Vec<NewChunk>) -> BoxFuture<'_, Result<Vec<Stored>, QueueError>> {
        async move {
            let mut stored = Vec::with_capacity(chunks.len());
            for NewChunk { chunk, rows, .. } in chunks {
                // The queue may use the number of a chunk again after a restart, so keys have a random part.
                let key = format!("chunk-{}-{:016x}", chunk.0, rand::random::<u64>());
                let encoded = Encoded::of(&rows)?;
                let place = (key.clone(), encoded.checksum());
                self.server.lock().insert(key, encoded.into_buffer().to_vec());
                self.put.lock().insert(chunk, place.clone());
                stored.push(Stored::Noted(Note::new(NAME, place)));
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
            let places = [self.put.lock().remove(chunk), self.kept.lock().remove(chunk)];
            if self.is_opened.load(Ordering::Relaxed) {
                places.into_iter().flatten().for_each(|(key, _)| drop(self.server.lock().remove(&key)));
            }
        }
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn keep(&self, chunk: ChunkId, note: &Note) -> Result<Reach, QueueError> {
        self.put.lock().remove(&chunk);
        self.kept.lock().insert(chunk, note.content::<Place>()?.as_ref().clone());
        Ok(Reach::Within)
    }

    fn note(&self, chunk: ChunkId) -> Option<Note> {
        self.kept.lock().get(&chunk).map(|place| Note::new(NAME, place.clone()))
    }

    fn opened(&self) -> Result<Option<Box<dyn rolldock_queue::store::Appender>>, QueueError> {
        self.is_opened.store(true, Ordering::Relaxed);
        let known: HashSet<String> = self.kept.lock().values().map(|(key, _)| key.clone()).collect();
        self.server.lock().retain(|key, _| known.contains(key));
        Ok(None)
    }
}

struct Subjected {
    server: Server,
}

impl Subject for Subjected {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(KeyValue::new(&self.server))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_another_crate_conforms() {
    let journals = tempfile::tempdir().unwrap();
    let server = Server::default();
    conforms(&Subjected { server: Arc::clone(&server) }, journals.path()).await.unwrap();
    assert!(
        server.lock().len() < 10,
        "the queue freed all rows, but {} values are left",
        server.lock().len()
    );
}

/// The suite does not check this: a store that never deletes what a dead process left behind passes it too.
#[tokio::test]
async fn opening_deletes_the_values_that_no_keep_has_named_and_damage_is_reported() {
    let server = Server::default();
    let before = KeyValue::new(&server);
    before.opened().unwrap();
    let new = |chunk| {
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let rows = Chunk::new(vec![RecordBatch::try_from_iter([("id", ids)]).unwrap()]).unwrap();
        NewChunk { chunk: ChunkId(chunk), rows, group: "group".to_owned() }
    };
    let stored = before.put(vec![new(1), new(2), new(3)]).await.unwrap();
    let notes: Vec<&Note> =
        stored.iter().filter_map(|s| if let Stored::Noted(note) = s { Some(note) } else { None }).collect();
    drop(before);

    let after = KeyValue::new(&server);
    after.keep(ChunkId(1), notes[0]).unwrap();
    after.keep(ChunkId(2), notes[1]).unwrap();
    after.free(&[ChunkId(2)]);
    assert_eq!(server.lock().len(), 3, "a store that is not opened deletes nothing");
    after.opened().unwrap();
    assert_eq!(server.lock().len(), 1, "only the value of chunk 1 is kept");
    let wanted = Wanted { chunk: ChunkId(1), first: 0, rows: 3, columns: ["id".to_owned()].into() };
    assert_eq!(after.read(&wanted).unwrap().chunk.rows(), 3);
    server.lock().values_mut().for_each(|value| value[100] ^= 1);
    assert!(matches!(after.read(&wanted), Err(QueueError::Corrupt { .. })), "a damaged value was read");
    server.lock().clear();
    assert!(matches!(after.read(&wanted), Err(QueueError::Corrupt { .. })), "a missing value was read");
}
