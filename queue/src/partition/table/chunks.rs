//! Chunks: which rows need which chunk, and how much a chunk keeps for them.
//!
//! Chunks in memory are counted in bytes. A chunk gives up the bytes that no live row needs when these are
//! more than half of it, or more than a third while the partition keeps more than one and a half times its
//! live bytes. So few long rows count by their length, and each byte is copied at most about twice before it
//! is freed. Chunks elsewhere are counted in rows.
//!
//! Many small chunks in memory are joined into one, since the overhead of a chunk is larger than a few short
//! rows.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::{Progress, Released, RowHandle, Table};
use crate::store::{ChunkId, ChunkSizes};

/// Bytes that a partition may keep beyond one and a half times its live bytes.
const WASTE_BYTES_MAX: u64 = 16 << 20;

/// A chunk that keeps less memory than this is small; bytes.
const SMALL_BYTES: u64 = 8 << 10;
/// Number of small chunks that are joined; at least half of them must still exist.
const SMALL_CHUNKS: usize = if cfg!(test) { 4 } else { 64 };

/// The rows with which a chunk was written, freed ones included as far as they are remembered.
#[derive(Debug, Default)]
struct ChunkRows {
    rows: Vec<RowHandle>,
    live: usize,
    /// Number of its rows: more than are remembered if some were freed before the process began.
    of: usize,
    /// Bytes that it keeps in memory; 0 where they are not counted.
    held_bytes: u64,
    /// Number of these bytes that live rows need.
    live_bytes: u64,
}

impl ChunkRows {
    /// Whether less than `numerator / denominator` of it is needed.
    fn is_below(&self, numerator: u64, denominator: u64) -> bool {
        let (live, all) = match self.held_bytes {
            0 => (self.live as u64, self.of as u64),
            held_bytes => (self.live_bytes, held_bytes),
        };
        self.live < self.of && live * denominator < all * numerator
    }
}

/// Rows that leave a chunk for another one.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) from: ChunkId,
    pub(crate) rows: Vec<RowHandle>,
}

/// The chunks of a table.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    by_id: HashMap<ChunkId, ChunkRows>,
    /// Chunks that are out of reach.
    away: HashSet<ChunkId>,
    /// Chunks that would free more than a third of their bytes, but less than half.
    wasteful: BTreeSet<ChunkId>,
    /// Small chunks, including some that are freed by now.
    small: Vec<ChunkId>,
    held_bytes: u64,
    live_bytes: u64,
}

impl Chunks {
    /// Notes that a row needs a place of the chunk.
    pub(super) fn add(&mut self, chunk: ChunkId, row: RowHandle, place: u32) {
        let chunk = self.by_id.entry(chunk).or_default();
        chunk.rows.push(row);
        chunk.live += 1;
        chunk.of = chunk.of.max(place as usize + 1);
    }

    /// Notes that a row does not need the chunk any more; returns whether it was the last row.
    pub(super) fn leave(&mut self, id: ChunkId, bytes: u32) -> bool {
        let Some(chunk) = self.by_id.get_mut(&id) else { return false };
        chunk.live -= 1;
        chunk.live_bytes -= u64::from(bytes);
        self.live_bytes -= u64::from(bytes);
        let is_last = chunk.live == 0;
        if is_last {
            self.forget(id);
            self.away.remove(&id);
        }
        is_last
    }

    fn forget(&mut self, id: ChunkId) -> Option<ChunkRows> {
        let gone = self.by_id.remove(&id)?;
        self.wasteful.remove(&id);
        self.held_bytes -= gone.held_bytes;
        self.live_bytes -= gone.live_bytes;
        Some(gone)
    }

    /// Which of the chunks that rows have left are to give up the bytes that no live row needs, and others
    /// with them where too much is kept.
    pub(super) fn sparse(&mut self, left: impl IntoIterator<Item = ChunkId>) -> Vec<ChunkId> {
        let mut sparse = Vec::new();
        for id in left {
            let Some(chunk) = self.by_id.get(&id) else { continue };
            if chunk.is_below(1, 2) {
                sparse.push(id);
                self.wasteful.remove(&id);
            } else if chunk.held_bytes > 0 && chunk.is_below(2, 3) {
                self.wasteful.insert(id);
            }
        }
        if self.held_bytes * 2 > self.live_bytes * 3 + WASTE_BYTES_MAX * 2 {
            sparse.extend(std::mem::take(&mut self.wasteful));
        }
        sparse
    }

    pub(super) fn shrink(&mut self) {
        super::leaving::shrink_map(&mut self.by_id);
    }
}

impl Table {
    /// Notes the memory that a chunk keeps, and the share of each of its rows.
    pub(crate) fn size_chunk(&mut self, id: ChunkId, sizes: &ChunkSizes) {
        let Some(chunk) = self.chunks.by_id.get_mut(&id) else { return };
        let mut live_bytes = 0;
        for handle in &chunk.rows {
            let row = self.slots.row_mut(*handle);
            let part = row.and_then(|row| row.parts.iter_mut().find(|part| part.chunk == id));
            if let Some(part) = part {
                part.bytes = sizes.rows.get(part.row as usize).copied().unwrap_or(0);
                live_bytes += u64::from(part.bytes);
            }
        }
        (chunk.held_bytes, chunk.live_bytes) = (sizes.held_bytes, live_bytes);
        self.chunks.held_bytes += sizes.held_bytes;
        self.chunks.live_bytes += live_bytes;
        if sizes.held_bytes < SMALL_BYTES {
            self.chunks.small.push(id);
        }
    }

    /// Small chunks that are worth joining, once there are enough.
    pub(crate) fn take_small_chunks(&mut self) -> Vec<ChunkId> {
        let Chunks { small, by_id, .. } = &mut self.chunks;
        if small.len() < SMALL_CHUNKS {
            return Vec::new();
        }
        small.retain(|id| by_id.contains_key(id));
        if small.len() * 2 < SMALL_CHUNKS { Vec::new() } else { std::mem::take(small) }
    }

    /// Whether a chunk is worth making smaller.
    pub(crate) fn is_sparse(&self, id: ChunkId) -> bool {
        self.chunks.by_id.get(&id).is_some_and(|chunk| chunk.held_bytes > 0 && chunk.is_below(1, 2))
    }

    /// Notes that the payload of a chunk is out of reach, or within reach again. Until it is, its rows are
    /// not given.
    pub(crate) fn set_away(&mut self, chunk: ChunkId, is_away: bool) {
        let is_change = match is_away {
            true => self.needs(chunk) && self.chunks.away.insert(chunk),
            false => self.chunks.away.remove(&chunk),
        };
        if !is_change {
            return;
        }
        for (handle, _) in self.chunk_rows(chunk) {
            let Ok(row) = self.row_mut(handle) else { continue };
            row.away = if is_away { row.away + 1 } else { row.away.saturating_sub(1) };
            let is_here = row.away == 0;
            for task in 0..self.spec.tasks.len() {
                let progress = self.row(handle).map(|row| row.progress[task]);
                match progress {
                    Ok(Progress::Ready) if !is_here => self.set(handle, task, Progress::Away),
                    Ok(Progress::Away) if is_here => self.set(handle, task, Progress::Ready),
                    _ => {}
                }
            }
        }
    }

    /// All rows of the groups that need any of these chunks.
    pub(crate) fn rows_of_groups_in(&self, chunks: &[ChunkId]) -> Vec<RowHandle> {
        let rows: Vec<RowHandle> =
            chunks.iter().flat_map(|chunk| self.chunk_rows(*chunk)).map(|(handle, _)| handle).collect();
        self.rows_of_groups_of(&rows)
    }

    /// All rows of the groups that these belong to.
    pub(crate) fn rows_of_groups_of(&self, rows: &[RowHandle]) -> Vec<RowHandle> {
        let groups: BTreeSet<u64> =
            rows.iter().filter_map(|handle| self.row(*handle).ok()).map(|row| row.group).collect();
        groups.iter().filter_map(|id| self.groups.get(id)).flat_map(|group| group.rows.clone()).collect()
    }

    /// The rows that still need a chunk, with their places in it.
    pub(crate) fn chunk_rows(&self, chunk: ChunkId) -> Vec<(RowHandle, u32)> {
        let place = |handle: &RowHandle| {
            let part = self.row(*handle).ok()?.parts.iter().find(|part| part.chunk == chunk)?;
            Some((*handle, part.row))
        };
        let rows = self.chunks.by_id.get(&chunk);
        rows.map_or_else(Vec::new, |rows| rows.rows.iter().filter_map(place).collect())
    }

    /// Number of rows that still need a chunk, and the number of all its rows.
    pub(crate) fn live_share(&self, chunk: ChunkId) -> (usize, usize) {
        self.chunks.by_id.get(&chunk).map_or((0, 0), |rows| (rows.live, rows.of))
    }

    /// Lets the rows that still need these chunks find their columns in `to`, where the copy of the first of
    /// all rows is row 0. Rows that are gone by now are left out.
    pub(crate) fn move_chunks(&mut self, moves: &[Move], to: ChunkId, held_bytes: u64) {
        let mut moved = ChunkRows { held_bytes, ..ChunkRows::default() };
        let mut was_away = false;
        let mut at = 0;
        for Move { from, rows } in moves {
            self.chunks.forget(*from);
            was_away |= self.chunks.away.remove(from);
            for handle in rows {
                at += 1;
                let Ok(row) = self.row_mut(*handle) else { continue };
                let Some(part) = row.parts.iter_mut().find(|part| part.chunk == *from) else { continue };
                part.chunk = to;
                part.row = at - 1;
                moved.live_bytes += u64::from(part.bytes);
                moved.rows.push(*handle);
                moved.live += 1;
                moved.of = at as usize;
            }
        }
        if moved.live > 0 {
            self.chunks.held_bytes += moved.held_bytes;
            self.chunks.live_bytes += moved.live_bytes;
            self.chunks.by_id.insert(to, moved);
            if was_away {
                self.chunks.away.insert(to);
            }
        }
    }

    /// Whether any row needs the chunk.
    pub(crate) fn needs(&self, chunk: ChunkId) -> bool {
        self.chunks.by_id.contains_key(&chunk)
    }

    /// Chunks that rows need.
    pub(crate) fn chunk_ids(&self) -> Vec<ChunkId> {
        self.chunks.by_id.keys().copied().collect()
    }

    /// Rows that are said to need each chunk.
    pub(super) fn live_in(&self, chunk: ChunkId) -> usize {
        self.chunks.by_id.get(&chunk).map_or(0, |chunk| chunk.live)
    }

    /// Frees what an earlier row of many needed.
    pub(super) fn leave_chunks(&mut self, left: BTreeSet<ChunkId>, released: &mut Released) {
        released.sparse = self.chunks.sparse(left);
    }
}
