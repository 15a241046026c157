//! The messages of a stream, which are assembled from its bytes as they arrive.
//!
//! A message has a head, which describes it, and a body with its buffers. A body that arrives whole stays
//! where it is. A body that arrives in pieces is copied once, into a separate allocation.

use std::sync::Arc;

use arrow_buffer::Buffer;

use super::recycled::Blocks;
use super::{bad, check};
use crate::QueueError;

/// The bytes before a length. Streams of versions before Arrow 0.15 lack them.
const MARKER: [u8; 4] = [0xff; 4];
/// The maximum number of bytes that are allocated for a stated length before its bytes have arrived.
const BELIEVED_BYTES_MAX: usize = 4 << 20;
/// The maximum ratio of the bytes that are allocated for a part to the bytes that have arrived. Every step
/// copies the bytes that have arrived, because allocators do not grow a large block in place. Pages that no
/// byte has reached cost nothing.
const GROWTH: usize = 8;
/// The maximum size of the head of a message, in bytes. The head contains the record of a put.
const HEAD_BYTES_MAX: usize = 512 << 20;

/// A whole message.
pub(super) struct Message {
    /// The flatbuffer that describes the body.
    pub(super) head: Buffer,
    pub(super) body: Buffer,
}

/// The kind of the next bytes of a stream.
#[derive(Debug)]
enum Expected {
    /// A marker or the length of a head.
    Start,
    /// The length of a head, after its marker.
    Length,
    Head(usize),
    Body {
        head: Buffer,
        length: usize,
    },
    /// Nothing: the stream has ended.
    Nothing,
}

/// Assembles the messages of a stream.
pub(super) struct Messages {
    expected: Expected,
    /// The bytes of the expected part that have arrived, unless it arrives whole.
    begun: Vec<u8>,
    blocks: Option<Arc<Blocks>>,
}

impl Messages {
    /// With `blocks`, bodies that do not arrive whole are put into blocks of memory that are reused.
    pub(super) fn new(blocks: Option<Arc<Blocks>>) -> Self {
        Self { expected: Expected::Start, begun: Vec::new(), blocks }
    }

    /// Whether the stream may end here.
    pub(super) fn is_even(&self) -> bool {
        self.begun.is_empty() && matches!(self.expected, Expected::Start | Expected::Nothing)
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.begun.capacity()
    }

    /// Returns the next message, if `bytes` has the rest of it. Consumes the bytes of the message.
    pub(super) fn next(&mut self, bytes: &mut Buffer) -> Result<Option<Message>, QueueError> {
        loop {
            match &self.expected {
                Expected::Start | Expected::Length => {
                    let Some(word) = self.word(bytes) else { return Ok(None) };
                    self.expected = match (&self.expected, word) {
                        (Expected::Start, MARKER) => Expected::Length,
                        (_, word) => after_length(u32::from_le_bytes(word) as usize)?,
                    };
                }
                Expected::Head(length) => {
                    let length = *length;
                    let Some(head) = self.part(bytes, length, None) else { return Ok(None) };
                    let length = check::body_bytes(&check::message(&head)?)?;
                    self.expected = Expected::Body { head, length };
                }
                Expected::Body { head, length } => {
                    let (head, length) = (head.clone(), *length);
                    let blocks = self.blocks.clone();
                    let Some(body) = self.part(bytes, length, blocks) else { return Ok(None) };
                    self.expected = Expected::Start;
                    return Ok(Some(Message { head, body }));
                }
                Expected::Nothing if bytes.is_empty() => return Ok(None),
                Expected::Nothing => {
                    return Err(bad("arrow stream: expected no bytes after its end, found some"));
                }
            }
        }
    }

    fn word(&mut self, bytes: &mut Buffer) -> Option<[u8; 4]> {
        let word = self.part(bytes, 4, None)?;
        word.as_slice().first_chunk().copied()
    }

    /// Returns the next `length` bytes: a slice of `bytes`, or a copy that was assembled from several calls.
    fn part(&mut self, bytes: &mut Buffer, length: usize, blocks: Option<Arc<Blocks>>) -> Option<Buffer> {
        if self.begun.is_empty() && bytes.len() >= length {
            let whole = bytes.slice_with_length(0, length);
            bytes.advance(length);
            return Some(whole);
        }
        if bytes.is_empty() {
            return None;
        }
        if self.begun.capacity() == 0 {
            let believed = length.min(BELIEVED_BYTES_MAX);
            self.begun = match &blocks {
                Some(blocks) => blocks.take(length, believed),
                None => Vec::with_capacity(believed),
            };
        }
        let more = bytes.len().min(length - self.begun.len());
        reserve(&mut self.begun, more, length);
        self.begun.extend_from_slice(&bytes[..more]);
        bytes.advance(more);
        if self.begun.len() < length {
            return None;
        }
        let whole = std::mem::take(&mut self.begun);
        Some(match blocks {
            Some(blocks) => blocks.lend(whole),
            None => Buffer::from_vec(whole),
        })
    }
}

/// Makes room for `more` bytes of a part that has `length` bytes in all. The capacity grows in steps up to
/// `length`. A length whose bytes never arrive therefore costs little, and a complete part has no unused
/// capacity.
fn reserve(begun: &mut Vec<u8>, more: usize, length: usize) {
    let needed = begun.len() + more;
    if begun.capacity() < needed {
        let goal = needed.max(begun.capacity().saturating_mul(GROWTH)).min(length);
        begun.reserve_exact(goal - begun.len());
    }
}

fn after_length(length: usize) -> Result<Expected, QueueError> {
    match length {
        0 => Ok(Expected::Nothing),
        _ if length > HEAD_BYTES_MAX => Err(bad(format!(
            "arrow stream: expected a head of at most bytes={HEAD_BYTES_MAX}, found {length}"
        ))),
        _ => Ok(Expected::Head(length)),
    }
}
