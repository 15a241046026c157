//! Memory that messages of a stream are read into and that is used again.
//!
//! A batch that is taken lies in the buffers that it was read into. Fresh pages of the kernel cost more than
//! reading into them, and allocators hand large blocks back as soon as they are freed. So a client that takes
//! batch after batch keeps the blocks of batches that are gone, up to [`KEPT_BYTES_MAX`].

use std::sync::Arc;

use arrow_buffer::Buffer;
use bytes::Bytes;
use parking_lot::Mutex;

/// What a client keeps to read into; bytes.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Blocks that are shorter are the allocator's; bytes.
const BLOCK_BYTES_MIN: usize = 64 << 10;

/// Blocks that are free.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Blocks {
    /// A free block for `length` bytes, or else a new one with this capacity.
    pub(super) fn take(&self, length: usize, capacity: usize) -> Vec<u8> {
        let mut free = self.free.lock();
        let fits = |block: &Vec<u8>| block.capacity() >= length && block.capacity() / 2 <= length;
        let found = free.iter().position(fits).map(|at| free.swap_remove(at));
        drop(free);
        found.unwrap_or_else(|| Vec::with_capacity(capacity))
    }

    /// The bytes of a block, which is free again when the last part of them is dropped.
    pub(super) fn lend(self: Arc<Self>, block: Vec<u8>) -> Buffer {
        Buffer::from(Bytes::from_owner(Lent { block, blocks: self }))
    }

    fn give_back(&self, mut block: Vec<u8>) {
        if block.capacity() < BLOCK_BYTES_MIN {
            return;
        }
        block.clear();
        let mut free = self.free.lock();
        let kept: usize = free.iter().map(Vec::capacity).sum();
        if kept + block.capacity() <= KEPT_BYTES_MAX {
            free.push(block);
        }
    }
}

/// A block in use.
struct Lent {
    block: Vec<u8>,
    blocks: Arc<Blocks>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.block
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.blocks.give_back(std::mem::take(&mut self.block));
    }
}
