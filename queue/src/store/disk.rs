//! Chunks in segment files. Each chunk is an Arrow IPC stream; the journal's writer appends it, and any
//! thread may read it.
//!
//! A closed segment is deleted when all of its chunks are freed, and the newest one too if no put follows. When most of
//! a closed segment is dead, the journal's writer moves the remaining chunks to the newest segment. A few live rows
//! therefore do not keep the whole file. Large chunks are mapped, not copied: readers hold pages of the file, which the
//! kernel may drop and read again. Files are never overwritten, and only the rest of a failed write is cut off, so a
//! complete chunk stays complete.
//!
//! A segment is deleted only if a record has named a chunk in it and later records have freed all of its
//! chunks. When the queue is opened, a segment that no record names is renamed to `unnamed-...` instead. A
//! process that died between a write of payload and its record leaves one such segment. A journal that was
//! lost or exchanged leaves many.

mod emptying;
mod segment_file;
mod segments;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use parking_lot::Mutex;

use super::{
    Appender, Capabilities, Chunk, ChunkId, ChunkLocation, Encoded, Found, Live, NewChunk, Note, Pin, Reach,
    SEGMENTS, Store, Stored, Stray, Wanted, decode,
};
use crate::error::QueueError;
use crate::tasks;

pub(crate) use segment_file::is_segment;
use segment_file::{PinnedChunk, SegmentFile, segment_number, segment_path, unnamed_path};
use segments::SegmentWriter;

/// Chunks of at most this many bytes are encoded on the calling thread, which costs less than using another
/// thread.
const INLINE_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Default)]
struct Segment {
    chunks: HashSet<ChunkId>,
    /// The number of appended chunks to which no record refers yet.
    expected: usize,
    /// The open file, if a reader has it open.
    file: Weak<SegmentFile>,
    open: bool,
    /// The size of the file in bytes.
    bytes: u64,
    /// The bytes of rows that are still needed.
    live_bytes: u64,
    /// Whether the chunks were already picked for moving. A chunk that cannot be read stays in the segment.
    is_emptied: bool,
}

impl Segment {
    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.expected == 0 && !self.open
    }
}

#[derive(Debug)]
struct Held {
    location: ChunkLocation,
    /// The bytes of rows that are still needed.
    live_bytes: u64,
}

#[derive(Debug, Default)]
struct Index {
    chunks: HashMap<ChunkId, Held>,
    /// Chunks that have been appended but not settled. Their segments are kept, even if the segments are
    /// closed before the record is durable.
    appended: HashMap<ChunkId, ChunkLocation>,
    segments: BTreeMap<u64, Segment>,
    /// Segments that are worth emptying.
    sparse: BTreeSet<u64>,
    /// Segments that could not be emptied because the disk is full.
    put_off: BTreeSet<u64>,
    /// The bytes of rows that are still needed, in all chunks.
    live_bytes: u64,
    /// False while the journal is replayed: a later record may refer to a segment that still looks empty.
    deletes: bool,
}

/// The store of a queue that has a directory.
#[derive(Debug)]
pub(crate) struct DiskStore {
    dir: PathBuf,
    /// The size at which a segment is closed, in bytes.
    segment_bytes: u64,
    index: Mutex<Index>,
}

impl DiskStore {
    /// Creates a store that deletes nothing until it is [opened](Store::opened).
    pub(crate) fn new(dir: &Path, segment_bytes: u64) -> Self {
        Self { dir: dir.to_owned(), segment_bytes, index: Mutex::default() }
    }

    fn insert(
        &self,
        chunk: ChunkId,
        location: impl FnOnce() -> Result<ChunkLocation, QueueError>,
    ) -> Result<(), QueueError> {
        let mut index = self.index.lock();
        let location = match index.appended.get(&chunk) {
            Some(location) => *location,
            None => location()?,
        };
        // Several records may refer to one chunk.
        if index.chunks.insert(chunk, Held { location, live_bytes: location.length }).is_some() {
            return Ok(());
        }
        index.live_bytes += location.length;
        let segment = index.segments.entry(location.segment).or_default();
        segment.live_bytes += location.length;
        segment.chunks.insert(chunk);
        Ok(())
    }

    /// The location of a live chunk.
    fn location(&self, chunk: ChunkId) -> Option<ChunkLocation> {
        self.index.lock().chunks.get(&chunk).map(|held| held.location)
    }

    fn open(&self, segment: u64) {
        self.index.lock().segments.entry(segment).or_default().open = true;
    }

    fn expect(&self, chunk: ChunkId, location: ChunkLocation) {
        let mut index = self.index.lock();
        index.appended.insert(chunk, location);
        index.segments.entry(location.segment).or_default().expected += 1;
    }

    fn settle(&self, chunk: ChunkId) {
        let mut index = self.index.lock();
        let Some(ChunkLocation { segment, .. }) = index.appended.remove(&chunk) else { return };
        if let Some(left) = index.segments.get_mut(&segment) {
            left.expected -= 1;
        }
        self.delete_if_empty(&mut index, segment);
    }

    fn seal(&self, segment: u64, bytes: u64) {
        let mut index = self.index.lock();
        if let Some(sealed) = index.segments.get_mut(&segment) {
            (sealed.open, sealed.bytes) = (false, bytes);
        }
        index.look_at(segment);
        self.delete_if_empty(&mut index, segment);
    }

    fn delete_if_empty(&self, index: &mut Index, segment: u64) {
        if !index.deletes || !index.segments.get(&segment).is_some_and(Segment::is_empty) {
            return;
        }
        index.segments.remove(&segment);
        index.sparse.remove(&segment);
        let path = segment_path(&self.dir, segment);
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "cannot delete an empty segment");
        }
        index.resume_emptying();
    }

    /// Runs after replay: deletes the segments whose chunks were all freed, and sets aside the segments that
    /// no record names. Returns the number for the next segment.
    fn clean(&self) -> Result<u64, QueueError> {
        self.index.lock().deletes = true;
        let mut next = 0;
        for (segment, path) in self.files()? {
            next = next.max(segment + 1);
            if !self.index.lock().segments.contains_key(&segment) {
                self.set_aside(segment, &path);
                continue;
            }
            let bytes = path.metadata().map_err(QueueError::io("read", &path))?.len();
            let mut index = self.index.lock();
            index.segments.entry(segment).or_default().bytes = bytes;
            index.look_at(segment);
            self.delete_if_empty(&mut index, segment);
        }
        Ok(next)
    }

    /// Renames a segment that no record names. It is kept, because the journal may have lost its records.
    fn set_aside(&self, segment: u64, path: &Path) {
        let to = unnamed_path(&self.dir, segment);
        match std::fs::rename(path, &to) {
            Ok(()) => tracing::warn!(
                file = %to.display(),
                "a segment that the journal does not name is set aside; delete it if no row is missing"
            ),
            Err(error) => tracing::warn!(
                file = %path.display(), %error,
                "a segment that the journal does not name stays; it cannot be renamed"
            ),
        }
    }

    /// Reads a chunk. Blocks.
    fn load(&self, chunk: ChunkId) -> Result<Chunk, QueueError> {
        let PinnedChunk { file, location } = self.open_for(chunk)?;
        decode(file.read(&location)?)
    }

    /// Opens the segment of a live chunk, or shares the file if another reader has it open. The chunk can be
    /// read while the file is open, even after the file is deleted.
    fn open_for(&self, chunk: ChunkId) -> Result<PinnedChunk, QueueError> {
        let gone = || QueueError::ChunkGone { chunk: chunk.0 };
        let (location, open) = {
            let index = self.index.lock();
            let location = index.chunks.get(&chunk).ok_or_else(gone)?.location;
            let open = index.segments.get(&location.segment).and_then(|segment| segment.file.upgrade());
            (location, open)
        };
        if let Some(file) = open {
            return Ok(PinnedChunk { file, location });
        }
        match SegmentFile::open(&self.dir, &location) {
            Ok(file) => Ok(PinnedChunk { file: Arc::new(file), location }),
            // The chunk was moved or freed after its location was read, and its segment was deleted. No data
            // is missing.
            Err(_) if self.location(chunk) != Some(location) => Err(gone()),
            Err(error) => Err(error),
        }
    }

    fn files(&self) -> Result<Vec<(u64, PathBuf)>, QueueError> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(QueueError::io("list", &self.dir))? {
            let path = entry.map_err(QueueError::io("list", &self.dir))?.path();
            files.extend(segment_number(&path).map(|segment| (segment, path)));
        }
        Ok(files)
    }
}

/// Runs work on a thread that may block. The work may read from disk or compute checksums of megabytes.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, QueueError> {
    let working = tasks::blocking("segment files", work);
    working.await.map_err(|error| QueueError::Arrow { reason: error.to_string() })
}

impl Store for Arc<DiskStore> {
    fn name(&self) -> &'static str {
        SEGMENTS
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { outlives_process: true }
    }

    fn put(&self, chunks: Vec<NewChunk>) -> BoxFuture<'_, Result<Vec<Stored>, QueueError>> {
        let bytes: usize = chunks.iter().map(|new| new.rows.held_bytes()).sum();
        let encode = move || {
            let encoded = chunks.iter().map(|new| Encoded::of(&new.rows).map(Stored::Unwritten));
            encoded.collect::<Result<Vec<_>, _>>()
        };
        if bytes <= INLINE_BYTES_MAX {
            ready(encode()).boxed()
        } else {
            async move { blocking(encode).await? }.boxed()
        }
    }

    fn get<'a>(
        &'a self,
        wanted: &'a [Wanted],
        _columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Vec<Result<Found, QueueError>>> {
        let store = Self::clone(self);
        let chunks: Vec<ChunkId> = wanted.iter().map(|wanted| wanted.chunk).collect();
        let load = move || {
            // Wanted rows of one chunk are consecutive in the request, so the last chunk is reused.
            let mut last: Option<(ChunkId, Result<Chunk, QueueError>)> = None;
            let mut load = |chunk| match &last {
                Some((loaded, rows)) if *loaded == chunk => rows.clone(),
                _ => {
                    let rows = store.load(chunk);
                    last = Some((chunk, rows.clone()));
                    rows
                }
            };
            chunks.into_iter().map(&mut load).collect::<Vec<_>>()
        };
        async move {
            match blocking(load).await {
                Ok(chunks) => {
                    let found = |(chunk, wanted): (Result<Chunk, QueueError>, &Wanted)| {
                        chunk.map(|chunk| Found { chunk, first: wanted.first })
                    };
                    chunks.into_iter().zip(wanted).map(found).collect()
                }
                Err(error) => wanted.iter().map(|_| Err(error.clone())).collect(),
            }
        }
        .boxed()
    }

    fn free(&self, chunks: &[ChunkId]) {
        for chunk in chunks {
            // Take the lock for one chunk at a time: deleting a file takes a while, and readers wait for the
            // lock.
            let mut index = self.index.lock();
            let Some(Held { location, live_bytes }) = index.chunks.remove(chunk) else { continue };
            index.live_bytes -= live_bytes;
            if let Some(left) = index.segments.get_mut(&location.segment) {
                left.chunks.remove(chunk);
                left.live_bytes -= live_bytes;
            }
            index.look_at(location.segment);
            self.delete_if_empty(&mut index, location.segment);
        }
    }

    fn bytes(&self) -> u64 {
        self.index.lock().live_bytes
    }
    fn keep(&self, chunk: ChunkId, note: &Note) -> Result<Reach, QueueError> {
        self.insert(chunk, || note.content().map(|location| *location))?;
        Ok(Reach::Within)
    }

    fn note(&self, chunk: ChunkId) -> Option<Note> {
        self.location(chunk).map(|location| Note::new(SEGMENTS, location))
    }

    fn opened(&self) -> Result<Option<Box<dyn Appender>>, QueueError> {
        let next = self.clean()?;
        Ok(Some(Box::new(SegmentWriter::new(next, Self::clone(self))?)))
    }

    fn thin(&self, chunk: ChunkId, live: &Live<'_>) {
        let mut index = self.index.lock();
        let Some(held) = index.chunks.get_mut(&chunk) else { return };
        let ChunkLocation { segment, length, .. } = held.location;
        let share = (length * live.rows as u64).div_ceil(live.of.max(1) as u64);
        let live_bytes = share.min(held.live_bytes);
        let less = std::mem::replace(&mut held.live_bytes, live_bytes) - live_bytes;
        if let Some(segment) = index.segments.get_mut(&segment) {
            segment.live_bytes -= less;
        }
        index.live_bytes -= less;
        index.look_at(segment);
    }

    fn pin(&self, chunk: ChunkId) -> Pin {
        let pinned = match self.open_for(chunk) {
            Ok(pinned) => pinned,
            Err(error) => return Pin::Missing(error),
        };
        // Chunks of a segment share its open file.
        if let Some(segment) = self.index.lock().segments.get_mut(&pinned.location.segment) {
            segment.file = Arc::downgrade(&pinned.file);
        }
        Pin::Pinned(Arc::new(pinned))
    }

    fn strays(&self) -> Result<Vec<Stray>, QueueError> {
        let files = self.files()?;
        // If another process owns the directory, that process may have just begun the newest segment.
        let newest =
            if self.index.lock().deletes { None } else { files.iter().map(|(segment, _)| *segment).max() };
        let mut strays = Vec::new();
        for (segment, file) in files.into_iter().filter(|(segment, _)| Some(*segment) != newest) {
            let known = self.index.lock().segments.get(&segment).is_some_and(|known| !known.is_empty());
            // If the file has no metadata, it was deleted in the meantime.
            if let (false, Ok(metadata)) = (known, file.metadata()) {
                strays.push(Stray { file, bytes: metadata.len() });
            }
        }
        strays.sort();
        Ok(strays)
    }

    fn newest_file(&self) -> Option<u64> {
        // Segments that were deleted before the queue was opened may be in the index, without contents.
        self.index.lock().segments.iter().rev().find(|(_, segment)| !segment.is_empty()).map(|found| *found.0)
    }

    fn keep_file(&self, file: u64) {
        self.index.lock().segments.entry(file).or_default();
    }

    fn unnamed_newest(&self) -> Result<Option<Stray>, QueueError> {
        let Some((segment, file)) = self.files()?.into_iter().max() else { return Ok(None) };
        if self.index.lock().segments.contains_key(&segment) {
            return Ok(None);
        }
        let bytes = file.metadata().map_err(QueueError::io("read", &file))?.len();
        Ok(Some(Stray { file, bytes }))
    }
}
