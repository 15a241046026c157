//! The bytes of chunks on their way to where they last: what lies in arrays stays there until it is written.

use std::io::{self, Write};

use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamEncoder;

use super::Chunk;
use crate::error::QueueError;

/// Shorter buffers are copied together, so that they are not written one by one; bytes.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// A chunk as an Arrow IPC stream.
#[derive(Debug, Default, Clone)]
pub struct Encoded {
    pieces: Vec<Buffer>,
    length: u64,
    hasher: crc32fast::Hasher,
}

impl Encoded {
    /// A chunk. Its payload is read, for the checksum, and not copied.
    pub fn of(chunk: &Chunk) -> Result<Self, QueueError> {
        let mut encoder = StreamEncoder::try_new(chunk.schema())?;
        let mut buffers = Vec::new();
        for batch in chunk.pieces() {
            buffers.extend(encoder.encode(batch)?);
        }
        buffers.extend(encoder.finish()?);
        Ok(Self::from(gathered(buffers)))
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "a chunk has rows")]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// CRC-32 of all bytes.
    pub fn checksum(&self) -> u32 {
        self.hasher.clone().finalize()
    }

    /// Writes all bytes.
    pub fn write_to(&self, mut file: impl Write) -> io::Result<()> {
        self.pieces.iter().try_for_each(|piece| file.write_all(piece))
    }

    /// The bytes in one buffer; copied where they lie in several.
    pub fn into_buffer(mut self) -> Buffer {
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

/// The rows of a chunk's bytes, which are not copied if they lie at a multiple of 64 bytes.
pub fn decode(mut bytes: Buffer) -> Result<Chunk, QueueError> {
    let mut decoder = StreamDecoder::new();
    let mut pieces = Vec::new();
    while let Some(piece) = decoder.decode(&mut bytes)? {
        pieces.push(piece);
    }
    Chunk::new(pieces)
}
