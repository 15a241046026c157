//! Checksummed frames of append-only files.
//!
//! A file begins with the magic bytes of its [`Format`]. Frames follow, one behind the other:
//!
//! ```text
//!   length of the body      4 bytes, little-endian
//!   CRC-32 of the body      4 bytes, little-endian
//!   CRC-32 of these 8       4 bytes, little-endian
//!   body                    at least one byte
//! ```
//!
//! The queue's journal, its file of leases, its snapshots and the orchestrator's ledger are such files. This
//! crate knows nothing of what the bodies mean.
//!
//! # Invariants
//! - A frame holds what is made durable together, and a writer appends the next frame only when the one
//!   before it is whole. So after a crash at most the last frame is torn, and nothing in it was acknowledged.
//! - A reader passes over a torn tail and refuses any other damage: bytes that do not fit their checksum are
//!   a torn tail only if no sound frame follows them.
//! - The head has a checksum of its own. So a reader recognises a damaged length as damage, and never takes
//!   it for the end of the file.
//!
//! # Deliberately absent
//! The crate does not write, sync or truncate files: each writer has its own rules for what it acknowledges,
//! and when.
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

mod reader;

pub use reader::{Frame, ReadError, Reader};

/// Bytes of a frame's head.
pub const HEAD_BYTES: usize = 12;

/// One kind of framed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// The first bytes of every file of this kind.
    pub magic: &'static [u8],
    /// The largest body of a frame, in bytes. A head that states a larger body is damaged.
    pub body_bytes_max: u32,
    /// The longest tail that a crash can leave, in bytes. Damage that begins further from the end of the file
    /// is refused.
    pub tail_bytes_max: u64,
}

/// A body that fits in no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame has a body of bytes={bytes}, expected at least 1 and at most bytes_max={bytes_max}")]
pub struct BodyLength {
    /// Bytes of the body.
    pub bytes: usize,
    /// What the format allows.
    pub bytes_max: u32,
}

/// Which part of a frame does not fit its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The head: the length or a checksum was changed, or the length is not one that the format allows.
    #[error("the checksum of a frame's head does not match")]
    Head,
    /// The body.
    #[error("the checksum of a frame does not match")]
    Body,
}

/// What lies behind the last sound frame of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// No bytes, zeros only, or a frame that is cut off. A crash left the tail like this, or a writer is at
    /// work on it.
    Unfinished,
    /// A whole head or frame that is not what was written.
    Damaged(Damage),
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    length: u32,
    checksum: u32,
}

impl Head {
    /// Reads the head at the front of `bytes`; `None` if it is not whole, or does not match its checksum.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (length, checksum, own) = (number(bytes, 0)?, number(bytes, 4)?, number(bytes, 8)?);
        (length > 0 && crc32fast::hash(&bytes[..8]) == own).then_some(Self { length, checksum })
    }

    /// Bytes of the body; at least 1.
    pub fn body_bytes(self) -> u32 {
        self.length
    }

    /// Whether `body` is the body that the head was made for.
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

/// What stands at the front of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Front {
    /// A sound frame.
    Frame,
    /// A frame, or a head, that does not end within the bytes.
    Cut,
    Damaged(Damage),
}

impl Format {
    /// The frame of a body.
    ///
    /// # Errors
    /// [`BodyLength`] for an empty body, and for one of more than [`body_bytes_max`](Self::body_bytes_max)
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

    /// Classifies `rest`, which must be all that lies behind the last sound frame of a file.
    pub fn tail(&self, rest: &[u8]) -> Tail {
        match self.front(rest) {
            // A power cut may leave zeros in the place of a frame.
            Front::Damaged(damage) if rest.iter().any(|byte| *byte != 0) => Tail::Damaged(damage),
            _ => Tail::Unfinished,
        }
    }

    /// The head at the front of `bytes`, if this format allows it.
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
