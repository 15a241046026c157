//! The messages of a stream, put together from its bytes as they arrive.
//!
//! A message is a head, which says what is in it, and a body with its buffers. A body that arrives whole stays
//! where it is; otherwise it is copied once, into an allocation of its own.

use std::sync::Arc;

use arrow_buffer::Buffer;

use super::recycled::Blocks;
use super::{bad, check};
use crate::QueueError;

/// The bytes before a length. Streams of before Arrow 0.15 lack them.
const MARKER: [u8; 4] = [0xff; 4];
/// The most that is allocated for a length before its bytes have arrived; bytes.
const BELIEVED_BYTES_MAX: usize = 4 << 20;
/// How many times the bytes that have arrived are allocated for a part at most. Every step copies what has
/// arrived, because allocators do not grow a large block in its place; pages that no byte has reached cost nothing.
const GROWTH: usize = 8;
/// The largest head of a message, which contains the record of a put; bytes.
const HEAD_BYTES_MAX: usize = 512 << 20;

/// A whole message.
pub(super) struct Message {
    /// The flatbuffer that says what is in the body.
    pub(super) head: Buffer,
    pub(super) body: Buffer,
}

/// What the next bytes of a stream are.
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

/// Puts the messages of a stream together.
pub(super) struct Messages {
    expected: Expected,
    /// The bytes of the expected part that have arrived, unless it arrives whole.
    begun: Vec<u8>,
    blocks: Option<Arc<Blocks>>,
}

impl Messages {
    /// With `blocks`, bodies that do not arrive whole lie in blocks of memory that are used again.
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

    /// The next message, if `bytes` has the rest of one. Takes the bytes that it needs.
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

    /// The next `length` bytes, as they lie there or put together.
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

/// Makes room for `more` bytes of `length` in all. The capacity grows in steps until it is the length, so that a
/// length whose bytes do not come costs little, and the whole takes no more than it needs.
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
