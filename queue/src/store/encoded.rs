//! Chunks as bytes to be written. Large buffers are not copied.

use std::io::{self, Write};

use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamEncoder;

use super::Chunk;
use crate::error::QueueError;

/// Buffers of at most this many bytes are copied together, so that they are not written one by one.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// A chunk as the bytes of an Arrow IPC stream.
#[derive(Debug, Default, Clone)]
pub struct Encoded {
    pieces: Vec<Buffer>,
    length: u64,
    hasher: crc32fast::Hasher,
}

impl Encoded {
    /// Encodes a chunk. The payload is read for the checksum; only short buffers are copied.
    pub fn of(chunk: &Chunk) -> Result<Self, QueueError> {
        let mut encoder = StreamEncoder::try_new(chunk.schema())?;
        let mut buffers = Vec::new();
        for batch in chunk.pieces() {
            buffers.extend(encoder.encode(batch)?);
        }
        buffers.extend(encoder.finish()?);
        Ok(Self::from(gathered(buffers)))
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a chunk has rows")]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// The CRC-32 of all bytes.
    pub fn checksum(&self) -> u32 {
        self.hasher.clone().finalize()
    }

    /// Writes all bytes.
    pub fn write_to(&self, mut file: impl Write) -> io::Result<()> {
        self.pieces.iter().try_for_each(|piece| file.write_all(piece))
    }

    /// Returns the bytes as one buffer. The bytes are copied if they are in several buffers.
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

/// Returns the buffers in order, with consecutive short buffers copied together.
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

/// Decodes a chunk. The payload is not copied if the bytes begin at a multiple of 64.
pub fn decode(mut bytes: Buffer) -> Result<Chunk, QueueError> {
    let mut decoder = StreamDecoder::new();
    let mut pieces = Vec::new();
    while let Some(piece) = decoder.decode(&mut bytes)? {
        pieces.push(piece);
    }
    decoder.finish()?;
    Chunk::new(pieces)
}
