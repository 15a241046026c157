//! Reading chunks from a segment file and checking their checksums.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_buffer::Buffer;
use rolldock_frames::descriptors;

use crate::error::QueueError;
use crate::mapped;
use crate::store::{Chunk, ChunkLocation, Pinned, decode};

/// Chunks of at least this many bytes are mapped. Reading shorter chunks costs less than mapping them.
const MAPPED_BYTES_MIN: u64 = 64 << 10;

pub(super) fn segment_path(dir: &Path, segment: u64) -> PathBuf {
    dir.join(format!("segment-{segment:08}.arrow"))
}

/// A free path for a segment that is set aside.
pub(super) fn unnamed_path(dir: &Path, segment: u64) -> PathBuf {
    let first = dir.join(format!("unnamed-{segment:08}.arrow"));
    // A number may be used again after its segment was set aside.
    let others = (1..).map(|copy| dir.join(format!("unnamed-{segment:08}-{copy}.arrow")));
    std::iter::once(first.clone()).chain(others).find(|path| !path.exists()).unwrap_or(first)
}

/// Whether a path has the name of a segment file.
pub(crate) fn is_segment(path: &Path) -> bool {
    segment_number(path).is_some()
}

pub(super) fn segment_number(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("segment-")?.strip_suffix(".arrow")?.parse().ok()
}

/// An open segment file. It can be read even after it is deleted.
#[derive(Debug)]
pub(super) struct SegmentFile {
    path: PathBuf,
    file: File,
}

impl SegmentFile {
    pub(super) fn open(dir: &Path, location: &ChunkLocation) -> Result<Self, QueueError> {
        let path = segment_path(dir, location.segment);
        match descriptors::open(|| File::open(&path)) {
            Ok(file) => Ok(Self { path, file }),
            Err(error) => Err(unreadable(&path, location, error)),
        }
    }

    /// Reads the bytes of a chunk and checks them. Blocks.
    pub(super) fn read(&self, location: &ChunkLocation) -> Result<Buffer, QueueError> {
        let bytes = self.bytes(location).map_err(|error| unreadable(&self.path, location, error))?;
        if crc32fast::hash(&bytes) != location.checksum {
            let reason = "the checksum of a chunk does not match".to_owned();
            return Err(QueueError::Corrupt { file: self.path.clone(), offset: location.offset, reason });
        }
        Ok(bytes)
    }

    fn bytes(&self, location: &ChunkLocation) -> io::Result<Buffer> {
        let length = location.length as usize;
        if location.length >= MAPPED_BYTES_MIN
            && let Some(mapped) = mapped::stretch(&self.file, location.offset, length)?
        {
            return Ok(mapped);
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, location.offset)?;
        Ok(Buffer::from_vec(bytes))
    }
}

/// A chunk whose segment file is open.
#[derive(Debug)]
pub(super) struct PinnedChunk {
    pub(super) file: Arc<SegmentFile>,
    pub(super) location: ChunkLocation,
}

impl Pinned for PinnedChunk {
    fn load(&self) -> Result<(Option<Buffer>, Chunk), QueueError> {
        let bytes = self.file.read(&self.location)?;
        Ok((Some(bytes.clone()), decode(bytes)?))
    }
}

fn unreadable(path: &Path, location: &ChunkLocation, error: io::Error) -> QueueError {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::UnexpectedEof => QueueError::Corrupt {
            file: path.to_owned(),
            offset: location.offset,
            reason: format!("{} bytes of payload are missing: {error}", location.length),
        },
        _ => QueueError::io("read", path)(error),
    }
}
