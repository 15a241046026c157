//! The bytes of chunks on their way to where they last: what lies in arrays stays there until it is written.

use std::io::{self, Write};

use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamEncoder;

use super::{ALIGNMENT, Chunk};
use crate::QueueError;

/// Shorter buffers are copied together, so that they are not written one by one; bytes.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// A stretch of encoded bytes that is a chunk of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Within {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) checksum: u32,
}

/// One chunk or several as Arrow IPC streams, each at a multiple of 64 bytes, as arrow's buffers lie within them.
#[derive(Debug, Default, Clone)]
pub struct Encoded {
    pieces: Vec<Buffer>,
    length: u64,
    hasher: crc32fast::Hasher,
}

impl Encoded {
    /// A chunk. Its payload is read, for the checksum, and not copied.
    pub(crate) fn of(chunk: &Chunk) -> Result<Self, QueueError> {
        let mut encoder = StreamEncoder::try_new(chunk.schema())?;
        let mut buffers = Vec::new();
        for batch in chunk.pieces() {
            buffers.extend(encoder.encode(batch)?);
        }
        buffers.extend(encoder.finish()?);
        Ok(Self::from(gathered(buffers)))
    }

    /// Appends chunks; says where they lie.
    pub(crate) fn append(&mut self, other: Self) -> Within {
        let padding = self.length.next_multiple_of(ALIGNMENT) - self.length;
        if padding > 0 {
            self.push(Buffer::from(&[0; ALIGNMENT as usize][..padding as usize]));
        }
        let within = Within { offset: self.length, length: other.length, checksum: other.checksum() };
        self.hasher.combine(&other.hasher);
        self.length += other.length;
        self.pieces.extend(other.pieces);
        within
    }

    /// Bytes.
    pub(crate) fn len(&self) -> u64 {
        self.length
    }

    /// CRC-32 of all bytes.
    pub(crate) fn checksum(&self) -> u32 {
        self.hasher.clone().finalize()
    }

    pub(crate) fn write_to(&self, mut file: impl Write) -> io::Result<()> {
        self.pieces.iter().try_for_each(|piece| file.write_all(piece))
    }

    /// The bytes in one buffer; copied where they lie in several.
    pub(crate) fn into_buffer(mut self) -> Buffer {
        if self.pieces.len() == 1
            && let Some(only) = self.pieces.pop()
        {
            return only;
        }
        let mut bytes = Vec::with_capacity(self.length as usize);
        self.pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        Buffer::from_vec(bytes)
    }

    fn push(&mut self, piece: Buffer) {
        self.hasher.update(&piece);
        self.length += piece.len() as u64;
        self.pieces.push(piece);
    }
}

impl From<Vec<Buffer>> for Encoded {
    fn from(pieces: Vec<Buffer>) -> Self {
        let mut encoded = Self::default();
        pieces.into_iter().for_each(|piece| encoded.push(piece));
        encoded
    }
}

/// Buffers in order, those that are short and follow each other copied together.
pub(crate) fn gathered(buffers: Vec<Buffer>) -> Vec<Buffer> {
    let mut gathered = Vec::new();
    let mut short: Vec<u8> = Vec::new();
    for buffer in buffers {
        if buffer.len() <= COPIED_BYTES_MAX {
            short.extend_from_slice(&buffer);
            continue;
        }
        if !short.is_empty() {
            gathered.push(Buffer::from_vec(std::mem::take(&mut short)));
        }
        gathered.push(buffer);
    }
    if !short.is_empty() {
        gathered.push(Buffer::from_vec(short));
    }
    gathered
}

/// The rows of a chunk's bytes, which are not copied if they lie at a multiple of [`ALIGNMENT`].
pub(crate) fn decode(mut bytes: Buffer) -> Result<Chunk, QueueError> {
    let mut decoder = StreamDecoder::new();
    let mut pieces = Vec::new();
    while let Some(piece) = decoder.decode(&mut bytes)? {
        pieces.push(piece);
    }
    Chunk::new(pieces)
}
