//! Moving rows to another chunk: because most of their chunk is dead, because their chunk is one of many
//! small chunks, or because a store must give the chunk up.
//!
//! The needed rows are copied to a new chunk, and then the table is switched to the new chunk. A call that
//! read the table before the switch and reads the payload after it gets [`QueueError::ChunkGone`], and reads
//! the table again. Handles, leases and acks are not affected.

use std::slice::from_ref;
use std::sync::Arc;

use super::table::Move;
use super::write::Written;
use super::{Partition, Shared, Table};
use crate::error::QueueError;
use crate::journal::{Body, Entry, Facts, Notes, Payload};
use crate::record::{PayloadRecord, Record};
use crate::store::{Chunk, ChunkId, Encoded, Live, Note, Resident, runs};

/// The rows that still need a chunk, and the chunk to which they move.
struct Moving {
    what: Move,
    to: ChunkId,
    /// The indices of the rows in the old chunk.
    places: Vec<u32>,
    columns: Vec<String>,
}

impl Moving {
    fn record(&self, partition: &str, note: Option<Note>) -> Record {
        let columns = self.columns.clone();
        let Move { from, rows } = &self.what;
        let payload = PayloadRecord { chunk: self.to, note, columns, chunk_rows: Vec::new() };
        Record::Moved { partition: partition.to_owned(), from: *from, rows: rows.clone(), payload }
    }
}

impl Table {
    /// The names of a chunk's columns, if any row needs the chunk.
    fn chunk_columns(&self, chunk: ChunkId) -> Option<Vec<String>> {
        let (first, _) = self.chunk_rows(chunk).into_iter().next()?;
        let part = self.row(first).ok()?.parts.iter().find(|part| part.chunk == chunk)?;
        Some(part.columns.to_vec())
    }
}

impl Shared {
    fn moving(&self, from: ChunkId) -> Option<Moving> {
        let table = self.table.lock();
        let columns = table.chunk_columns(from)?;
        let (rows, places) = table.chunk_rows(from).into_iter().unzip();
        Some(Moving { what: Move { from, rows }, to: self.new_chunk(), places, columns })
    }

    /// Switches the rows to the copy, and frees the old chunks.
    fn finish_move(&self, moves: &[Move], to: ChunkId, note: Option<&Note>, held_bytes: u64) {
        let needed = {
            let mut table = self.table.lock();
            table.move_chunks(moves, to, held_bytes);
            self.keep(&mut table, to, note);
            table.needs(to)
        };
        if !needed {
            // All rows were freed while the copy was made.
            self.plane.free(&[to]);
        }
        self.plane.free(&moves.iter().map(|one| one.from).collect::<Vec<_>>());
    }

    /// Frees the space of dead rows in chunks that are mostly dead.
    pub(super) fn shrink(&self, sparse: &[ChunkId]) {
        for chunk in sparse {
            match self.plane.resident(*chunk) {
                Some(store) => self.compact(store, *chunk),
                None => self.thin(*chunk),
            }
        }
    }

    /// Tells the store of a chunk which rows are still needed.
    pub(crate) fn thin(&self, chunk: ChunkId) {
        let (live, of) = self.table.lock().live_share(chunk);
        let places = || self.table.lock().chunk_rows(chunk).iter().map(|(_, place)| *place).collect();
        self.plane.thin(chunk, &Live::new(live, of, &places));
    }

    /// Copies the needed rows of a chunk. If most rows of the copy were freed in the meantime, copies them
    /// again.
    fn compact(&self, store: &dyn Resident, chunk: ChunkId) {
        let mut next = Some(chunk);
        while let Some(chunk) = next.take() {
            let Some(sparse) = store.chunk(chunk) else { return };
            let Some(moving) = self.moving(chunk) else { return };
            match sparse.select(&moving.places) {
                Ok(copy) => {
                    let held_bytes = copy.held_bytes() as u64;
                    store.insert(moving.to, copy);
                    self.finish_move(from_ref(&moving.what), moving.to, None, held_bytes);
                }
                Err(error) => {
                    tracing::warn!(partition = %self.name, %error, "cannot compact a chunk; it stays as it is");
                    return;
                }
            }
            next = Some(moving.to).filter(|copy| self.table.lock().is_sparse(*copy));
        }
    }

    /// Joins small chunks with the same columns.
    pub(super) fn pack(&self, small: &[ChunkId]) {
        let Some(store) = self.plane.own().resident() else { return };
        let mut kinds: Vec<Vec<(ChunkId, Chunk)>> = Vec::new();
        for id in small {
            let Some(chunk) = store.chunk(*id) else { continue };
            match kinds.iter_mut().find(|kind| kind[0].1.schema() == chunk.schema()) {
                Some(kind) => kind.push((*id, chunk)),
                None => kinds.push(vec![(*id, chunk)]),
            }
        }
        kinds.retain(|kind| kind.len() > 1);
        for kind in kinds {
            let (mut moves, mut places, mut before) = (Vec::with_capacity(kind.len()), Vec::new(), 0);
            {
                let table = self.table.lock();
                for (from, chunk) in &kind {
                    // A chunk has a row at most once, so replaced values are not joined with the new values.
                    if !table.has_superseded(*from) {
                        let (rows, there): (_, Vec<u32>) = table.chunk_rows(*from).into_iter().unzip();
                        moves.push(Move { from: *from, rows });
                        places.extend(there.into_iter().map(|place| before + place));
                    }
                    before += chunk.rows() as u32;
                }
            }
            match Chunk::joined(kind.iter().map(|(_, chunk)| chunk)).select(&places) {
                Ok(copy) => {
                    let (to, held_bytes) = (self.new_chunk(), copy.held_bytes() as u64);
                    store.insert(to, copy);
                    self.finish_move(&moves, to, None, held_bytes);
                    // Most rows may have been freed in the meantime.
                    if self.table.lock().is_sparse(to) {
                        self.compact(store, to);
                    }
                }
                Err(error) => {
                    tracing::warn!(partition = %self.name, %error, "cannot pack small chunks; they stay as they are");
                }
            }
        }
    }

    /// Makes an entry that writes a chunk again. Returns `None` if the chunk does not belong to this
    /// partition or cannot be read. If it cannot be read, consumers of its rows get the error.
    pub(crate) fn relocation(self: &Arc<Self>, chunk: ChunkId) -> Option<Entry> {
        let moving = self.moving(chunk)?;
        let payload = match self.plane.pin(chunk, &moving.columns).bytes_of(&moving.places) {
            Ok(payload) => Encoded::from(vec![payload]),
            // The chunk was freed in the meantime: nothing is left to move.
            Err(QueueError::ChunkGone { .. }) => return None,
            Err(error) => {
                tracing::error!(partition = %self.name, %error, "a chunk stays in its segment: it cannot be read");
                return None;
            }
        };
        let (standing, record) = (self.standing(), moving.record(&self.name, None));
        let facts: Facts = Box::new(move |notes, body: &mut Body| {
            standing()?;
            body.push(&record.at(notes.first().cloned()))
        });
        let (shared, to) = (Arc::clone(self), moving.to);
        let done = Box::new(move |durable: Result<Notes, QueueError>| {
            // If the copy could not be written, the chunk stays in its segment. The writer says so.
            if let Ok(notes) = durable {
                shared.finish_move(from_ref(&moving.what), to, notes.first(), 0);
            }
        });
        let payload = Payload::from_iter([(to, payload)]);
        Some(Entry { adds: true, payload, facts, durability: self.durability, done })
    }
}

impl Partition {
    /// Moves a chunk from its storage unit to another unit, or to the queue's own store if no unit accepts
    /// it. Returns whether the chunk belongs to this partition.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub(crate) async fn move_off(&self, chunk: ChunkId) -> Result<bool, QueueError> {
        let Some(moving) = self.shared.moving(chunk) else { return Ok(false) };
        if !self.shared.plane.is_on_unit(chunk) {
            return Ok(true);
        }
        let wanted = runs(chunk, &moving.places, &moving.columns.clone().into());
        let mut pieces = Vec::new();
        for (wanted, found) in wanted.iter().zip(self.shared.plane.get(&wanted, None).await) {
            match found {
                Ok(found) => {
                    let rows = found.chunk.slice(found.first, wanted.rows)?;
                    pieces.extend(rows.pieces().iter().cloned());
                }
                // The chunk or some of its rows were freed in the meantime. The next call moves the remaining
                // rows.
                Err(QueueError::StaleHandle { .. } | QueueError::ChunkGone { .. }) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        let group = self.shared.table.lock().group_of(moving.what.rows[0]);
        let (payload, note) = self.store_one(moving.to, &Chunk::new(pieces)?, &group).await?.into_parts();
        let record = moving.record(&self.shared.name, note.clone());
        let (shared, to) = (Arc::clone(&self.shared), moving.to);
        let publish = move |durable: Result<(), QueueError>| {
            durable.map(|()| shared.finish_move(from_ref(&moving.what), to, note.as_ref(), 0))
        };
        self.write(Vec::new(), vec![Written { chunk: to, record, payload }], publish).await?;
        Ok(true)
    }
}
