//! Rows that get another place: their chunk is mostly dead, or one of many small ones, or lies where it cannot stay.
//!
//! The rows of chunks that are still needed are copied to a chunk of their own, and from one moment on the table finds
//! them there. Who read the table before that moment and the payload after it is told that the chunk is gone, and asks
//! again. Handles, leases and acks know nothing of it.

use std::slice::from_ref;
use std::sync::Arc;

use super::table::Move;
use super::write::Written;
use super::{Partition, RowHandle, Shared, Table};
use crate::journal::{Entry, Facts, PayloadRecord, Record};
use crate::plane::OwnStore;
use crate::snapshot::Source;
use crate::store::{Chunk, DiskStore, Encoded, MemoryStore, Store};
use crate::units::{BLOBS, Place};
use crate::{ChunkId, ChunkLocation, Queue, QueueError};

/// The rows that still need a chunk, on their way to another one.
struct Moving {
    what: Move,
    to: ChunkId,
    /// Theirs in the old chunk.
    places: Vec<u32>,
    columns: Vec<String>,
}

impl Moving {
    fn record(&self, partition: &str, unit: Option<Place>) -> Record {
        let columns = self.columns.clone();
        let Move { from, rows } = &self.what;
        let payload = PayloadRecord { chunk: self.to, location: None, unit, columns, chunk_rows: Vec::new() };
        Record::Moved { partition: partition.to_owned(), from: *from, rows: rows.clone(), payload }
    }
}

impl Table {
    /// The names of a chunk's columns, if any row needs it.
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

    /// The copy is there: from here on rows are found in it.
    fn finish_move(&self, moves: &[Move], to: ChunkId, unit: Option<Place>, held_bytes: u64) {
        let needed = {
            let mut table = self.table.lock();
            table.move_chunks(moves, to, held_bytes);
            self.learn_place(&mut table, to, unit);
            table.needs(to)
        };
        if !needed {
            // Every row was freed while the copy was made.
            self.plane.free(&[to]);
        }
        self.plane.free(&moves.iter().map(|one| one.from).collect::<Vec<_>>());
    }

    /// Most rows of these chunks are gone: the others are made to give up the bytes of those that are.
    pub(super) fn shrink(&self, sparse: &[ChunkId]) {
        for chunk in sparse {
            match &self.plane.own {
                _ if self.plane.place(*chunk).is_some() => {
                    let live: Vec<u32> =
                        self.table.lock().chunk_rows(*chunk).iter().map(|(_, place)| *place).collect();
                    self.plane.units.thin(*chunk, &live);
                }
                OwnStore::Memory(store) => self.compact(store, *chunk),
                OwnStore::Disk { store, .. } => {
                    let (live, rows) = self.table.lock().live_share(*chunk);
                    store.thin(*chunk, live, rows);
                }
                OwnStore::ReadOnly(_) => {}
            }
        }
    }

    /// Copies what is needed of a chunk, and of the copy again if most of it has gone meanwhile.
    fn compact(&self, store: &MemoryStore, chunk: ChunkId) {
        let mut next = Some(chunk);
        while let Some(chunk) = next.take() {
            let Some(sparse) = store.get(chunk) else { return };
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

    /// Makes one chunk of small ones with the same columns.
    pub(super) fn pack(&self, small: &[ChunkId]) {
        let OwnStore::Memory(store) = &self.plane.own else { return };
        let mut kinds: Vec<Vec<(ChunkId, Chunk)>> = Vec::new();
        for id in small {
            let Some(chunk) = store.get(*id) else { continue };
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
                    let (rows, there): (_, Vec<u32>) = table.chunk_rows(*from).into_iter().unzip();
                    moves.push(Move { from: *from, rows });
                    places.extend(there.into_iter().map(|place| before + place));
                    before += chunk.rows() as u32;
                }
            }
            match Chunk::joined(kind.iter().map(|(_, chunk)| chunk)).select(&places) {
                Ok(copy) => {
                    let (to, held_bytes) = (self.new_chunk(), copy.held_bytes() as u64);
                    store.insert(to, copy);
                    self.finish_move(&moves, to, None, held_bytes);
                    // Where most rows went meanwhile.
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

    /// What moves a chunk to the newest segment; `None` where it is not of this partition, or cannot be read: then whoever
    /// takes its rows is told.
    pub(crate) fn relocation(self: &Arc<Self>, chunk: ChunkId, store: &Arc<DiskStore>) -> Option<Entry> {
        let moving = self.moving(chunk)?;
        let pinned = store.pin(chunk).map(|(file, location)| Source::Disk(Arc::new(file), location));
        let payload = match pinned.and_then(|source| source.bytes_of(&moving.places)) {
            Ok(payload) => Encoded::from(vec![payload]),
            // Freed meanwhile: there is nothing to move.
            Err(QueueError::ChunkGone { .. }) => return None,
            Err(error) => {
                tracing::error!(partition = %self.name, %error, "a chunk stays in its segment: it cannot be read");
                return None;
            }
        };
        let (standing, record) = (self.standing(), moving.record(&self.name, None));
        let facts: Facts = Box::new(move |location| standing().map(|()| vec![record.at(location)]));
        let (shared, store) = (Arc::clone(self), Arc::clone(store));
        let done = Box::new(move |durable: Result<Option<ChunkLocation>, QueueError>| match durable {
            Ok(location) => {
                if let Some(location) = location {
                    store.insert(moving.to, location);
                }
                shared.finish_move(from_ref(&moving.what), moving.to, None, 0);
            }
            Err(error) => {
                tracing::warn!(partition = %shared.name, %error, "a chunk stays in its segment");
            }
        });
        Some(Entry { payload: Some(payload), facts, durability: self.durability, done })
    }
}

impl Partition {
    /// Moves a chunk from its unit to another one, or here where there is none. Says whether it was of this partition.
    ///
    /// Cancel-safe: it happens whole or not at all.
    pub(crate) async fn move_off(&self, chunk: ChunkId) -> Result<bool, QueueError> {
        let Some(moving) = self.shared.moving(chunk) else { return Ok(false) };
        let Some(place) = self.shared.plane.place(chunk) else { return Ok(true) };
        let there: Vec<RowHandle> =
            moving.places.iter().filter_map(|at| place.rows.get(*at as usize)).copied().collect();
        let client = self.shared.plane.units.client_of(&place.unit)?;
        let rows = match client.get(BLOBS, &there, None).await {
            Ok(batches) => Chunk::new(batches)?,
            // Freed meanwhile: what is left moves at the next turn.
            Err(QueueError::StaleHandle { .. }) => return Ok(true),
            Err(error) => return Err(error),
        };
        let group = self.shared.table.lock().group_of(moving.what.rows[0]);
        let (payload, unit) = self.store_one(moving.to, &rows, &group).await?.into_parts();
        let record = moving.record(&self.shared.name, unit.clone());
        let (shared, to) = (Arc::clone(&self.shared), moving.to);
        let publish = move |durable: Result<(), QueueError>| {
            durable.map(|()| shared.finish_move(from_ref(&moving.what), moving.to, unit, 0))
        };
        self.write(payload, vec![Written { chunk: to, record, within: None }], publish).await?;
        Ok(true)
    }
}
