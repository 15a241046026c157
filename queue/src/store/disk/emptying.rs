//! The segments that are mostly dead, and the chunks that have to leave them; and the newest segment, once it is dead.

use super::{DiskStore, Index, Segment};
use crate::store::ChunkId;

/// A closed segment is worth emptying if this number times its live bytes is less than its size.
const SPARSE: u64 = 2;
/// The newest segment is deleted before the next put if it has at least this many bytes. A smaller one stays until it
/// is closed, so that a queue of small rows does not make a file for every few of them.
const DELETED_BYTES_MIN: u64 = 64 << 10;

impl Segment {
    fn is_sparse(&self) -> bool {
        !self.open && !self.is_emptied && !self.chunks.is_empty() && self.live_bytes * SPARSE < self.bytes
    }
}

impl Index {
    /// Adds a segment to the sparse segments if it is worth emptying.
    pub(super) fn look_at(&mut self, segment: u64) {
        if self.segments.get(&segment).is_some_and(Segment::is_sparse) {
            self.sparse.insert(segment);
        }
    }

    /// Resumes the emptying of segments that were put off because the disk was full.
    pub(super) fn resume_emptying(&mut self) {
        for segment in std::mem::take(&mut self.put_off) {
            if let Some(kept) = self.segments.get_mut(&segment) {
                kept.is_emptied = false;
            }
            self.look_at(segment);
        }
    }
}

impl DiskStore {
    /// Returns the chunks of a sparse segment, in no particular order. Each segment is returned once.
    pub(super) fn take_sparse(&self) -> Option<Vec<ChunkId>> {
        let mut index = self.index.lock();
        let sparse = index.sparse.pop_first()?;
        let segment = index.segments.get_mut(&sparse)?;
        segment.is_emptied = true;
        Some(segment.chunks.iter().copied().collect())
    }

    /// Marks the segments of chunks that could not be moved. They are emptied after another segment was
    /// deleted.
    pub(super) fn put_off(&self, chunks: &[ChunkId]) {
        let mut index = self.index.lock();
        let segments = chunks.iter().filter_map(|chunk| index.chunks.get(chunk));
        let segments: Vec<u64> = segments.map(|held| held.location.segment).collect();
        index.put_off.extend(segments);
    }

    /// Whether most of the open segment, which has `bytes`, is dead.
    pub(super) fn is_mostly_dead(&self, segment: u64, bytes: u64) -> bool {
        let index = self.index.lock();
        let live_bytes = index.segments.get(&segment).map_or(0, |open| open.live_bytes);
        live_bytes * SPARSE < bytes
    }

    /// Whether the open segment, which has `bytes`, is worth deleting: no record refers to its chunks any more, and
    /// none will. The journal's writer alone adds chunks to it, and calls this between two batches.
    pub(super) fn is_dead(&self, segment: u64, bytes: u64) -> bool {
        let index = self.index.lock();
        let open = index.segments.get(&segment);
        bytes >= DELETED_BYTES_MIN && open.is_some_and(|open| open.chunks.is_empty() && open.expected == 0)
    }
}
