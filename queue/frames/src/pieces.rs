//! Reading the sound frames of a damaged file.

use super::{Format, Frame, Front, HEAD_BYTES, Tail};

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A sound frame.
    Frame(Frame<'a>),
    /// Bytes that belong to no sound frame.
    Damaged {
        /// The offset from the start of the file, in bytes.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// The rest of a file whose last write was not finished.
    Unfinished {
        /// The offset from the start of the file, in bytes.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
    },
}

/// The parts of a file, from its start to its end.
#[derive(Debug, Clone)]
pub struct Pieces<'a> {
    format: Format,
    bytes: &'a [u8],
    /// The offset of the next part.
    at: usize,
}

impl Format {
    /// Returns the parts of a file: its sound frames, including frames after damage, and the bytes between
    /// them.
    ///
    /// A frame after damage is found by its two checksums. These have 64 bits together, so other bytes match
    /// them only with a probability of 2^-64. The search costs a checksum of 8 bytes for each damaged byte.
    pub fn pieces<'a>(&self, bytes: &'a [u8]) -> Pieces<'a> {
        let at = if bytes.starts_with(self.magic) { self.magic.len() } else { 0 };
        Pieces { format: *self, bytes, at }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty())?;
        let offset = self.at as u64;
        if let Some(body) = self.format.sound_body(rest) {
            self.at += HEAD_BYTES + body.len();
            return Some(Piece::Frame(Frame { offset, body }));
        }
        let is_frame = |at: &usize| self.format.sound_body(&rest[*at..]).is_some();
        let next = (1..rest.len()).find(is_frame);
        let bytes = next.unwrap_or(rest.len());
        self.at += bytes;
        let bytes = bytes as u64;
        let is_unfinished = next.is_none() && self.format.tail(rest) == Tail::Unfinished;
        Some(match is_unfinished {
            true => Piece::Unfinished { offset, bytes },
            false => Piece::Damaged { offset, bytes },
        })
    }
}

impl Format {
    /// The body of the sound frame at the start of `bytes`, if there is one.
    fn sound_body<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        match self.front(bytes) {
            Front::Frame => bytes.get(HEAD_BYTES..HEAD_BYTES + self.head(bytes)?.length as usize),
            _ => None,
        }
    }
}
