//! Reused memory into which the messages of a stream are read.
//!
//! A taken batch stays in the buffers into which it was read. Fresh pages of the kernel cost more than
//! reading into them, and allocators return large blocks to the kernel as soon as they are freed. A client
//! that takes batch after batch therefore keeps the blocks of dropped batches, up to [`KEPT_BYTES_MAX`].

use std::sync::Arc;

use arrow_buffer::Buffer;
use bytes::Bytes;
use parking_lot::Mutex;

/// The maximum size of the free blocks that a client keeps, in bytes.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// The minimum size of a block that is kept, in bytes. Shorter blocks are returned to the allocator.
const BLOCK_BYTES_MIN: usize = 64 << 10;

/// The free blocks of a client.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Blocks {
    /// Returns a free block for `length` bytes, or else a new block with this capacity.
    pub(super) fn take(&self, length: usize, capacity: usize) -> Vec<u8> {
        let mut free = self.free.lock();
        let fits = |block: &Vec<u8>| block.capacity() >= length && block.capacity() / 2 <= length;
        let found = free.iter().position(fits).map(|at| free.swap_remove(at));
        drop(free);
        found.unwrap_or_else(|| Vec::with_capacity(capacity))
    }

    /// Returns the bytes of a block as a buffer. The block becomes free when the last slice of the buffer is
    /// dropped.
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
