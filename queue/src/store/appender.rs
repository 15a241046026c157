//! The interface through which the journal's writer writes payload.

use super::{ChunkId, Encoded, Note};
use crate::error::QueueError;

/// The writing part of a store whose payload is written by the journal's writer, before the records that
/// refer to it. A batch of puts then costs one sync of the payload and one sync of the records. The calls are
/// made on the writer's thread and block.
pub trait Appender: Send {
    /// Appends a chunk. The chunk is part of the queue only after it is [kept](super::Store::keep).
    fn append(&mut self, chunk: ChunkId, rows: &Encoded) -> Result<Note, QueueError>;

    /// Called when the put, the write of columns or the move that appended a chunk has ended: either the chunk
    /// has already been kept, or it is not needed.
    fn settle(&mut self, chunk: ChunkId);

    /// Makes all appended chunks durable. After a failure every later call of `sync` fails too.
    fn sync(&mut self) -> Result<(), QueueError>;

    /// Returns chunks that should be written again, so that the store can free their segments.
    fn take_sparse(&mut self) -> Vec<ChunkId>;

    /// Called when chunks from [`take_sparse`](Self::take_sparse) could not be written again, because the
    /// disk is full. The store returns them again when it has freed space.
    fn put_off(&mut self, _chunks: &[ChunkId]) {}

    /// Called when the disk is full. Lets the store free the space of dead chunks sooner, for example by closing
    /// a segment that is mostly dead. Returns whether the store did so; the caller then tries its write again.
    fn make_room(&mut self) -> bool {
        false
    }

    /// Whether the newest segment has no live row and takes enough space to be worth freeing before the next put.
    fn is_newest_dead(&self) -> bool {
        false
    }

    /// Called when [`is_newest_dead`](Self::is_newest_dead) is true, no put is under way, and the records that freed
    /// the rows are durable. Frees the newest segment.
    fn free_newest(&mut self) {}
}
