//! The stores of a queue's payload. Chunks go to storage units while at least one unit accepts rows, and
//! otherwise to the queue's own store.
//!
//! The units and the queue's own store both implement [`Store`]. Code that puts, gets or frees chunks does
//! not depend on their location.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::error::QueueError;
use crate::store::{
    ChunkId, Found, HeldBack, Live, NewChunk, Note, Reach, Resident, Source, Store, Stored, UNITS, Wanted,
};
use crate::units::Units;

/// The stores of a queue. Clones share the stores.
#[derive(Clone)]
pub(crate) struct Plane {
    own: Arc<dyn Store>,
    units: Arc<Units>,
    held_back: Arc<HeldBack>,
}

impl Plane {
    pub(crate) fn new(own: Arc<dyn Store>) -> Self {
        Self { own, units: Arc::default(), held_back: Arc::default() }
    }

    /// The queue's own store, which holds the payload that is on no unit.
    pub(crate) fn own(&self) -> &dyn Store {
        self.own.as_ref()
    }

    pub(crate) fn units(&self) -> &Units {
        &self.units
    }

    /// Whether a chunk is stored on a unit.
    pub(crate) fn is_on_unit(&self, chunk: ChunkId) -> bool {
        self.units.has_any() && self.units.has(chunk)
    }

    fn store_of(&self, chunk: ChunkId) -> &dyn Store {
        if self.is_on_unit(chunk) { self.units.as_ref() } else { self.own.as_ref() }
    }

    /// Makes a chunk part of the queue (see [`Store::keep`]). Returns whether its rows can be read.
    pub(crate) fn keep(&self, chunk: ChunkId, note: &Note) -> Result<Reach, QueueError> {
        match note.store() {
            UNITS => self.units.keep(chunk, note),
            store if store == self.own.name() => self.own.keep(chunk, note),
            store => {
                let (chunk, own) = (chunk.0, self.own.name());
                let reason =
                    format!("expected chunk={chunk} in store={own}, found a note that says store={store}");
                Err(QueueError::BadRequest { reason })
            }
        }
    }

    /// The note of a chunk that was kept; `None` if the chunk has no note.
    pub(crate) fn note(&self, chunk: ChunkId) -> Option<Note> {
        self.store_of(chunk).note(chunk)
    }

    /// The note of a chunk that is stored on a unit.
    pub(crate) fn note_on_unit(&self, chunk: ChunkId) -> Option<Note> {
        self.units.note(chunk)
    }

    /// Admits rows that a client has stored directly in a store, and returns their note.
    pub(crate) fn admit(&self, note: Note) -> Result<Note, QueueError> {
        if note.store() == UNITS { self.units.admit(note) } else { self.own.admit(note) }
    }

    /// Returns the store of a chunk as `Resident`, if the store keeps chunks as arrays in this process.
    pub(crate) fn resident(&self, chunk: ChunkId) -> Option<&dyn Resident> {
        self.own.resident().filter(|_| !self.is_on_unit(chunk))
    }

    /// Tells the store that only some rows of a chunk are still needed. Does nothing while a reader reads the
    /// chunk through the store.
    pub(crate) fn thin(&self, chunk: ChunkId, live: &Live<'_>) {
        if !self.held_back.holds(chunk) {
            self.store_of(chunk).thin(chunk, live);
        }
    }

    /// Returns a source from which a slow reader can read a chunk, even after its last row is freed. The
    /// chunk must still have rows when this is called.
    pub(crate) fn pin(&self, chunk: ChunkId, columns: &[String]) -> Source {
        let units = || -> Arc<dyn Store> { Arc::clone(&self.units) as Arc<dyn Store> };
        let store = if self.is_on_unit(chunk) { units() } else { Arc::clone(&self.own) };
        Source::of(&store, chunk, columns, &self.held_back)
    }

    /// The bytes of payload in the queue's own store.
    pub(crate) fn bytes(&self) -> u64 {
        self.own.bytes()
    }

    /// Puts chunks into units or the own store; see [`Store::put`].
    pub(crate) fn put(&self, chunks: Vec<NewChunk>) -> BoxFuture<'_, Result<Vec<Stored>, QueueError>> {
        if !self.units.has_any() {
            return self.own.put(chunks);
        }
        async move {
            match self.units.put_all(&chunks).await? {
                Some(stored) => Ok(stored),
                None => self.own.put(chunks).await,
            }
        }
        .boxed()
    }

    /// Reads rows of chunks; see [`Store::get`].
    pub(crate) fn get<'a>(
        &'a self,
        wanted: &'a [Wanted],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Vec<Result<Found, QueueError>>> {
        if !self.units.has_any() {
            return self.own.get(wanted, columns);
        }
        async move {
            let is_elsewhere: Vec<bool> = wanted.iter().map(|wanted| self.units.has(wanted.chunk)).collect();
            let those = |elsewhere: bool| -> Vec<Wanted> {
                let sorted = wanted.iter().zip(&is_elsewhere);
                sorted.filter(|(_, is)| **is == elsewhere).map(|(wanted, _)| wanted.clone()).collect()
            };
            let (there, here) = (those(true), those(false));
            let fetching = self.units.get(&there, columns);
            let reading = self.own.get(&here, columns);
            let (there, here) = futures::future::join(fetching, reading).await;
            let (mut there, mut here) = (there.into_iter(), here.into_iter());
            let found = is_elsewhere.into_iter().zip(wanted).map(|(elsewhere, wanted)| {
                let next = if elsewhere { there.next() } else { here.next() };
                next.unwrap_or(Err(QueueError::ChunkGone { chunk: wanted.chunk.0 }))
            });
            found.collect()
        }
        .boxed()
    }

    /// Frees chunks. A chunk that a reader holds is freed when the reader is done.
    pub(crate) fn free(&self, chunks: &[ChunkId]) {
        let sifted = self.held_back.sift(chunks);
        let chunks = sifted.as_deref().unwrap_or(chunks);
        // A store ignores chunks that it does not have.
        if self.units.has_any() {
            self.units.free(chunks);
        }
        self.own.free(chunks);
    }
}
