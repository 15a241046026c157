//! Chunks: the rows that need each chunk, and the memory that each chunk keeps.
//!
//! Chunks in memory are counted in bytes. A chunk is compacted when less than half of its bytes are needed.
//! It is also compacted when less than two thirds are needed and the partition keeps much more than one and a
//! half times its live bytes. Long rows therefore count more than short rows, and each byte is copied at most
//! about twice before it is freed. Other chunks are counted in rows.
//!
//! Many small chunks in memory are joined into one, since the overhead of a chunk exceeds the size of a few
//! short rows.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::{Progress, Released, RowHandle, Table};
use crate::store::{ChunkId, ChunkSizes};

/// The bytes that a partition may keep beyond one and a half times its live bytes.
const WASTE_BYTES_MAX: u64 = 16 << 20;

/// A chunk that keeps fewer bytes than this is small.
const SMALL_BYTES: u64 = 32 << 10;
/// Small chunks are joined once this many were added, if at least half of that number still exist.
const SMALL_CHUNKS: usize = if cfg!(test) { 4 } else { 64 };

/// The rows of a chunk. Freed rows are included, unless they were freed before this process started.
#[derive(Debug, Default)]
struct ChunkRows {
    rows: Vec<RowHandle>,
    live: usize,
    /// The number of rows of the chunk, including rows that were freed before this process started.
    of: usize,
    /// The bytes that the chunk keeps in memory; 0 if they are not counted.
    held_bytes: u64,
    /// The bytes that live rows need.
    live_bytes: u64,
}

impl ChunkRows {
    /// Whether less than `numerator / denominator` of the chunk is needed.
    fn is_below(&self, numerator: u64, denominator: u64) -> bool {
        let (live, all) = match self.held_bytes {
            0 => (self.live as u64, self.of as u64),
            held_bytes => (self.live_bytes, held_bytes),
        };
        self.live < self.of && live * denominator < all * numerator
    }
}

/// Rows that move from one chunk to another.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) from: ChunkId,
    pub(crate) rows: Vec<RowHandle>,
}

/// The chunks of a table.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    by_id: HashMap<ChunkId, ChunkRows>,
    /// Chunks whose storage unit does not answer.
    away: HashSet<ChunkId>,
    /// Chunks of which at least half, but less than two thirds, is needed.
    wasteful: BTreeSet<ChunkId>,
    /// Small chunks, including some that have been freed.
    small: Vec<ChunkId>,
    held_bytes: u64,
    live_bytes: u64,
}

impl Chunks {
    /// Adds a row, which needs row `place` of the chunk.
    pub(super) fn add(&mut self, chunk: ChunkId, row: RowHandle, place: u32) {
        let chunk = self.by_id.entry(chunk).or_default();
        chunk.rows.push(row);
        chunk.live += 1;
        chunk.of = chunk.of.max(place as usize + 1);
    }

    /// Removes a row from the chunk. Returns whether it was the last row.
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

    pub(super) fn is_away(&self, id: ChunkId) -> bool {
        self.away.contains(&id)
    }

    fn forget(&mut self, id: ChunkId) -> Option<ChunkRows> {
        let gone = self.by_id.remove(&id)?;
        self.wasteful.remove(&id);
        self.held_bytes -= gone.held_bytes;
        self.live_bytes -= gone.live_bytes;
        Some(gone)
    }

    /// Returns the chunks that must be compacted after rows were removed from the chunks `left`. If the
    /// partition keeps too much, this includes all wasteful chunks.
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
    /// Sets the memory that a chunk keeps, and the share of each of its rows.
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

    /// Returns small chunks to join, once there are enough.
    pub(crate) fn take_small_chunks(&mut self) -> Vec<ChunkId> {
        let Chunks { small, by_id, .. } = &mut self.chunks;
        if small.len() < SMALL_CHUNKS {
            return Vec::new();
        }
        small.retain(|id| by_id.contains_key(id));
        if small.len() * 2 < SMALL_CHUNKS { Vec::new() } else { std::mem::take(small) }
    }

    /// Whether less than half of a chunk in memory is needed.
    pub(crate) fn is_sparse(&self, id: ChunkId) -> bool {
        self.chunks.by_id.get(&id).is_some_and(|chunk| chunk.held_bytes > 0 && chunk.is_below(1, 2))
    }

    /// Sets whether the payload of a chunk can be read. While the payload cannot be read, the rows of the
    /// chunk are not delivered.
    pub(crate) fn set_away(&mut self, chunk: ChunkId, is_away: bool) {
        let is_change = match is_away {
            true => self.needs(chunk) && self.chunks.away.insert(chunk),
            false => self.chunks.away.remove(&chunk),
        };
        if !is_change {
            return;
        }
        for (handle, _) in self.chunk_rows(chunk) {
            self.count_away(handle, is_away);
        }
    }

    /// Raises or lowers by one the number of parts of a row that cannot be read.
    pub(super) fn count_away(&mut self, handle: RowHandle, is_away: bool) {
        let Ok(row) = self.row_mut(handle) else { return };
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

    /// All rows of the groups that need any of these chunks. Values that were replaced are not needed.
    pub(crate) fn rows_of_groups_in(&self, chunks: &[ChunkId]) -> Vec<RowHandle> {
        let needs = |handle: RowHandle, chunk: ChunkId| {
            self.row(handle).is_ok_and(|row| row.current().any(|part| part.chunk == chunk))
        };
        let in_chunk = |chunk: &ChunkId| {
            let chunk = *chunk;
            let rows = self.chunk_rows(chunk).into_iter().map(|(handle, _)| handle);
            rows.filter(move |handle| needs(*handle, chunk))
        };
        let rows: Vec<RowHandle> = chunks.iter().flat_map(in_chunk).collect();
        self.rows_of_groups_of(&rows)
    }

    /// All rows of the groups to which these rows belong.
    pub(crate) fn rows_of_groups_of(&self, rows: &[RowHandle]) -> Vec<RowHandle> {
        let groups: BTreeSet<u64> =
            rows.iter().filter_map(|handle| self.row(*handle).ok()).map(|row| row.group).collect();
        groups.iter().filter_map(|id| self.groups.get(id)).flat_map(|group| group.rows.clone()).collect()
    }

    /// The rows that still need a chunk, with their indices in the chunk.
    pub(crate) fn chunk_rows(&self, chunk: ChunkId) -> Vec<(RowHandle, u32)> {
        let place = |handle: &RowHandle| {
            let part = self.row(*handle).ok()?.parts.iter().find(|part| part.chunk == chunk)?;
            Some((*handle, part.row))
        };
        let rows = self.chunks.by_id.get(&chunk);
        rows.map_or_else(Vec::new, |rows| rows.rows.iter().filter_map(place).collect())
    }

    /// The number of rows that still need a chunk, and the number of all of its rows.
    pub(crate) fn live_share(&self, chunk: ChunkId) -> (usize, usize) {
        self.chunks.by_id.get(&chunk).map_or((0, 0), |rows| (rows.live, rows.of))
    }

    /// Moves rows from their chunks to the chunk `to`. The rows of `moves` are copied to `to` in order,
    /// starting at row 0. Freed rows are skipped.
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

    /// The chunks that rows need.
    pub(crate) fn chunk_ids(&self) -> Vec<ChunkId> {
        self.chunks.by_id.keys().copied().collect()
    }

    /// The counted number of rows that need the chunk.
    pub(super) fn live_in(&self, chunk: ChunkId) -> usize {
        self.chunks.by_id.get(&chunk).map_or(0, |chunk| chunk.live)
    }

    /// Finds the chunks to compact after rows were removed from the chunks `left`.
    pub(super) fn leave_chunks(&mut self, left: BTreeSet<ChunkId>, released: &mut Released) {
        released.sparse = self.chunks.sparse(left);
    }
}
