//! Checksummed frames of append-only files.
//!
//! A file begins with the magic bytes of its [`Format`]. Frames follow one after the other:
//!
//! ```text
//!   length of the body      4 bytes, little-endian
//!   CRC-32 of the body      4 bytes, little-endian
//!   CRC-32 of these 8       4 bytes, little-endian
//!   body                    at least one byte
//! ```
//!
//! The queue's journal, its lease file, its snapshots and the orchestrator's ledger are such files. This
//! crate does not interpret the bodies.
//!
//! # Invariants
//! - A frame holds data that is made durable together, and a writer appends a frame only when the previous
//!   frame is complete. After a crash, at most the last frame is torn, and nothing in it was acknowledged.
//! - A [`Reader`] skips a torn tail and refuses any other damage. Bytes that do not match their checksum are
//!   a torn tail only if no sound frame follows them.
//! - The head has its own checksum. A reader therefore recognises a damaged length as damage, and not as the
//!   end of the file.
//!
//! # Deliberately absent
//! The crate does not write, sync or truncate files: each writer has its own rules for acknowledging data.
//! The module [`descriptors`] reserves file descriptors for files, so that connections cannot use them up.
//!
//! # Example
//! ```
//! # use std::io::Cursor;
//! # use rolldock_frames::{Format, Reader};
//! let format = Format { magic: b"EXAMPLE-1\n", body_bytes_max: 1 << 20, tail_bytes_max: 2 << 20 };
//! let mut file = format.magic.to_vec();
//! file.extend(format.frame(b"first")?);
//! file.extend(format.frame(b"second")?);
//! file.truncate(file.len() - 1);
//! let length = file.len() as u64;
//! let mut reader = Reader::new(Cursor::new(file), length, format)?;
//! assert_eq!(reader.next_frame()?.map(|frame| frame.body.to_vec()), Some(b"first".to_vec()));
//! assert!(reader.next_frame()?.is_none(), "the second frame is torn");
//! assert_eq!(reader.torn_bytes(), 17);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod descriptors;
mod pieces;
mod reader;

pub use pieces::{Piece, Pieces};
pub use reader::{Frame, ReadError, Reader};

/// The length of a frame's head, in bytes.
pub const HEAD_BYTES: usize = 12;

/// One kind of framed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// The first bytes of every file of this kind.
    pub magic: &'static [u8],
    /// The maximum size of the body of a frame, in bytes. A head that states a larger body is damaged.
    pub body_bytes_max: u32,
    /// The longest tail that a crash can leave, in bytes. Damage that begins further from the end of the file
    /// is refused.
    pub tail_bytes_max: u64,
}

/// The error for a body that is empty or too long for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame has a body of bytes={bytes}, expected at least 1 and at most bytes_max={bytes_max}")]
pub struct BodyLength {
    /// The length of the body in bytes.
    pub bytes: usize,
    /// The maximum length that the format allows, in bytes.
    pub bytes_max: u32,
}

/// The part of a frame that does not match its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The head: its length or a checksum was changed, or the format does not allow the length.
    #[error("the checksum of a frame's head does not match")]
    Head,
    /// The body.
    #[error("the checksum of a frame does not match")]
    Body,
}

/// The bytes after the last sound frame of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// No bytes, only zeros, or an incomplete frame. A crash left the tail like this, or a writer is still
    /// writing it.
    Unfinished,
    /// A complete head or frame whose bytes differ from the bytes that were written.
    Damaged(Damage),
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    length: u32,
    checksum: u32,
}

impl Head {
    /// Reads the head at the start of `bytes`. Returns `None` if the head is incomplete, does not match its
    /// checksum or has a length of 0.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (length, checksum, own) = (number(bytes, 0)?, number(bytes, 4)?, number(bytes, 8)?);
        (length > 0 && crc32fast::hash(&bytes[..8]) == own).then_some(Self { length, checksum })
    }

    /// The length of the body in bytes, at least 1.
    pub fn body_bytes(self) -> u32 {
        self.length
    }

    /// Whether `body` has the length and the checksum of the head.
    pub fn matches(self, body: &[u8]) -> bool {
        body.len() == self.length as usize && crc32fast::hash(body) == self.checksum
    }

    fn of(body: &[u8], length: u32) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..8].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
        let own = crc32fast::hash(&head[..8]);
        head[8..].copy_from_slice(&own.to_le_bytes());
        head
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The beginning of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Front {
    /// A sound frame.
    Frame,
    /// A head or a frame that is incomplete.
    Cut,
    Damaged(Damage),
}

impl Format {
    /// Makes the frame of a body.
    ///
    /// # Errors
    /// Returns [`BodyLength`] if the body is empty or has more than [`body_bytes_max`](Self::body_bytes_max)
    /// bytes.
    pub fn frame(&self, body: &[u8]) -> Result<Vec<u8>, BodyLength> {
        let length =
            u32::try_from(body.len()).ok().filter(|length| (1..=self.body_bytes_max).contains(length));
        let length = length.ok_or(BodyLength { bytes: body.len(), bytes_max: self.body_bytes_max })?;
        let mut frame = Vec::with_capacity(HEAD_BYTES + body.len());
        frame.extend_from_slice(&Head::of(body, length));
        frame.extend_from_slice(body);
        Ok(frame)
    }

    /// Classifies `rest`, which must be everything after the last sound frame of a file.
    pub fn tail(&self, rest: &[u8]) -> Tail {
        match self.front(rest) {
            // A power cut may leave zeros in place of a frame.
            Front::Damaged(damage) if rest.iter().any(|byte| *byte != 0) => Tail::Damaged(damage),
            _ => Tail::Unfinished,
        }
    }

    /// Reads the head at the start of `bytes`, if this format allows its length.
    fn head(&self, bytes: &[u8]) -> Option<Head> {
        Head::read(bytes).filter(|head| head.length <= self.body_bytes_max)
    }

    fn front(&self, bytes: &[u8]) -> Front {
        if bytes.len() < HEAD_BYTES {
            return Front::Cut;
        }
        let Some(head) = self.head(bytes) else { return Front::Damaged(Damage::Head) };
        match bytes.get(HEAD_BYTES..HEAD_BYTES + head.length as usize) {
            None => Front::Cut,
            Some(body) if head.matches(body) => Front::Frame,
            Some(_) => Front::Damaged(Damage::Body),
        }
    }

    /// Whether a sound frame begins anywhere in `bytes`.
    fn has_sound_frame(&self, bytes: &[u8]) -> bool {
        (0..bytes.len()).any(|at| self.front(&bytes[at..]) == Front::Frame)
    }
}

#[cfg(test)]
mod tests;
