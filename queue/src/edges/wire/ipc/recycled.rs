//! Reading messages of a stream into memory that is used again.
//!
//! A batch that is taken lies in the buffers that it was read into. Fresh pages of the kernel cost more than
//! reading into them, and allocators hand large blocks back as soon as they are freed. So a client that takes
//! batch after batch keeps the blocks of batches that are gone, up to [`KEPT_BYTES_MAX`].

use std::sync::Arc;

use arrow_buffer::Buffer;
use bytes::Bytes;
use parking_lot::Mutex;

use super::bad;
use crate::QueueError;

/// What a client keeps to read into; bytes.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Blocks that are shorter are the allocator's; bytes.
const BLOCK_BYTES_MIN: usize = 64 << 10;
/// The most that is allocated for a length before its bytes have arrived; bytes.
const BELIEVED_BYTES_MAX: usize = 4 << 20;
/// The largest head of a message, which says what is in it; bytes.
const HEAD_BYTES_MAX: usize = 16 << 20;

/// Blocks that are free.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Blocks {
    fn take(&self, length: usize) -> Vec<u8> {
        let mut free = self.free.lock();
        let fits = |block: &Vec<u8>| block.capacity() >= length && block.capacity() / 2 <= length;
        let found = free.iter().position(fits).map(|at| free.swap_remove(at));
        drop(free);
        found.unwrap_or_else(|| Vec::with_capacity(length.min(BELIEVED_BYTES_MAX)))
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

/// A message; its block is free when the last buffer in it is dropped.
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

/// How far a message reaches.
#[derive(Debug, PartialEq)]
enum Extent {
    /// So many bytes of it say more.
    Unknown(usize),
    Known(usize),
}

/// The extent of a message that begins with these bytes.
fn extent(bytes: &[u8]) -> Result<Extent, QueueError> {
    let Some((marker, rest)) = bytes.split_first_chunk::<4>() else { return Ok(Extent::Unknown(8)) };
    if *marker != [0xff; 4] {
        return Err(bad("arrow stream: expected a message, found other bytes"));
    }
    let Some((length, rest)) = rest.split_first_chunk::<4>() else { return Ok(Extent::Unknown(8)) };
    let head = u32::from_le_bytes(*length) as usize;
    if head == 0 {
        return Ok(Extent::Known(8));
    }
    if head > HEAD_BYTES_MAX {
        return Err(bad(format!(
            "arrow stream: expected a head of at most bytes={HEAD_BYTES_MAX}, found {head}"
        )));
    }
    let Some(head_bytes) = rest.get(..head) else { return Ok(Extent::Unknown(8 + head)) };
    let message =
        arrow_ipc::root_as_message(head_bytes).map_err(|error| bad(format!("arrow stream: {error}")))?;
    let body = usize::try_from(message.bodyLength()).ok();
    let whole = body.and_then(|body| body.checked_add(8 + head));
    whole.map(Extent::Known).ok_or_else(|| bad("arrow stream: a message without a sensible length"))
}

/// Puts the messages of a stream together.
pub(super) struct Gather {
    blocks: Arc<Blocks>,
    /// What there is of a message that is not whole.
    begun: Vec<u8>,
    extent: Extent,
}

impl Gather {
    pub(super) fn new(blocks: Arc<Blocks>) -> Self {
        Self { blocks, begun: Vec::new(), extent: Extent::Unknown(8) }
    }

    /// Whether all messages were whole.
    pub(super) fn is_even(&self) -> bool {
        self.begun.is_empty()
    }

    /// The next whole message, if `bytes` has the rest of one: as it lies there, or put together. Takes what
    /// it needs.
    pub(super) fn next(&mut self, bytes: &mut Buffer) -> Result<Option<Buffer>, QueueError> {
        if self.begun.is_empty() {
            self.extent = extent(bytes)?;
            match self.extent {
                Extent::Known(length) if length <= bytes.len() => {
                    let whole = bytes.slice_with_length(0, length);
                    bytes.advance(length);
                    return Ok(Some(whole));
                }
                Extent::Known(length) => self.begun = self.blocks.take(length),
                Extent::Unknown(_) => {}
            }
        }
        loop {
            let (Extent::Known(goal) | Extent::Unknown(goal)) = self.extent;
            let more = bytes.len().min(goal - self.begun.len());
            self.begun.extend_from_slice(&bytes[..more]);
            bytes.advance(more);
            if self.begun.len() < goal {
                return Ok(None);
            }
            if let Extent::Known(_) = self.extent {
                let lent = Lent { block: std::mem::take(&mut self.begun), blocks: Arc::clone(&self.blocks) };
                return Ok(Some(Buffer::from(Bytes::from_owner(lent))));
            }
            self.extent = extent(&self.begun)?;
            if let Extent::Known(length) = self.extent {
                let head = std::mem::replace(&mut self.begun, self.blocks.take(length));
                self.begun.extend_from_slice(&head);
            }
        }
    }
}
