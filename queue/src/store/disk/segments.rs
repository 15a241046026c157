//! The writing side of the segment files.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;

use rolldock_frames::descriptors;

use super::DiskStore;
use super::segment_file::segment_path;
use crate::error::QueueError;
use crate::store::{ALIGNMENT, Appender, ChunkId, ChunkLocation, Encoded, Note, SEGMENTS};

/// Appends chunks, on the thread of the journal's writer.
#[derive(Debug)]
pub(super) struct SegmentWriter {
    segment: u64,
    file: Option<File>,
    length: u64,
    /// Whether the directory has an entry that is not durable yet.
    fresh: bool,
    /// The reason why payload may have been lost.
    failed: Option<QueueError>,
    /// The directory. It stays open, so that a sync cannot fail because no file descriptor is left.
    dir: File,
    store: Arc<DiskStore>,
}

impl SegmentWriter {
    pub(super) fn new(first: u64, store: Arc<DiskStore>) -> Result<Self, QueueError> {
        let dir = File::open(&store.dir).map_err(QueueError::io("open", &store.dir))?;
        Ok(Self { segment: first, file: None, length: 0, fresh: false, failed: None, dir, store })
    }

    /// Writes a chunk and returns its location. After a failed write, the partial chunk is cut off. The
    /// segment is then closed, unless the disk was full and the cut succeeded. No chunk follows a partial
    /// chunk.
    fn write(&mut self, rows: &Encoded) -> Result<ChunkLocation, QueueError> {
        if self.length > 0 && self.length + rows.len() > self.store.segment_bytes {
            self.roll();
        }
        let path = segment_path(&self.store.dir, self.segment);
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                // Register the segment before its file exists, so that a search for strays does not report
                // it.
                self.store.open(self.segment);
                let created =
                    descriptors::open(|| OpenOptions::new().create_new(true).write(true).open(&path));
                self.fresh = true;
                created.map_err(QueueError::on_disk("create", &path))?
            }
        };
        let padding = self.length.next_multiple_of(ALIGNMENT) - self.length;
        let written = (&file).write_all(&[0; ALIGNMENT as usize][..padding as usize]);
        let written = written.and_then(|()| rows.write_to(&file));
        if let Err(error) = written {
            // A partial chunk may be at the end of the file. On a full disk, its space is needed.
            let is_removed =
                file.set_len(self.length).and_then(|()| (&file).seek(SeekFrom::Start(self.length)));
            self.file = Some(file);
            let error = QueueError::on_disk("write", &path)(error);
            if is_removed.is_err() || !matches!(error, QueueError::DiskFull { .. }) {
                self.roll();
            }
            return Err(error);
        }
        self.file = Some(file);
        let location = ChunkLocation {
            segment: self.segment,
            offset: self.length + padding,
            length: rows.len(),
            checksum: rows.checksum(),
        };
        self.length = location.offset + location.length;
        Ok(location)
    }

    fn sync_open_segment(&mut self) -> Result<(), QueueError> {
        let path = segment_path(&self.store.dir, self.segment);
        self.file.as_ref().map_or(Ok(()), File::sync_data).map_err(QueueError::unsynced(path))?;
        if std::mem::take(&mut self.fresh) {
            self.dir.sync_all().map_err(QueueError::unsynced(&self.store.dir))?;
        }
        Ok(())
    }

    fn roll(&mut self) {
        // Chunks in a closed segment must be durable before a record refers to them, and a closed segment is
        // not synced again.
        if let Some(file) = self.file.take()
            && let Err(error) = file.sync_data()
        {
            self.failed = Some(QueueError::unsynced(segment_path(&self.store.dir, self.segment))(error));
        }
        self.begin_next();
    }

    /// Hands the newest segment over to the store, which deletes it if it is empty. The next chunk begins another one.
    fn begin_next(&mut self) {
        self.store.seal(self.segment, self.length);
        self.segment += 1;
        self.length = 0;
    }
}

impl Appender for SegmentWriter {
    fn append(&mut self, chunk: ChunkId, rows: &Encoded) -> Result<Note, QueueError> {
        let location = self.write(rows)?;
        self.store.expect(chunk, location);
        Ok(Note::new(SEGMENTS, location))
    }

    fn settle(&mut self, chunk: ChunkId) {
        self.store.settle(chunk);
    }

    /// After a failure the state of the disk is unknown, so every later call fails too.
    fn sync(&mut self) -> Result<(), QueueError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let synced = self.sync_open_segment();
        self.failed = synced.as_ref().err().cloned();
        synced
    }

    /// Returns the chunks of a sparse segment, or no chunks if no segment is sparse.
    fn take_sparse(&mut self) -> Vec<ChunkId> {
        self.store.take_sparse().unwrap_or_default()
    }

    fn put_off(&mut self, chunks: &[ChunkId]) {
        self.store.put_off(chunks);
    }

    /// Closes the newest segment if most of it is dead: only closed segments are emptied and deleted.
    fn make_room(&mut self) -> bool {
        let is_mostly_dead = self.store.is_mostly_dead(self.segment, self.length);
        if is_mostly_dead {
            self.roll();
        }
        is_mostly_dead
    }

    fn is_newest_dead(&self) -> bool {
        self.file.is_some() && self.store.is_dead(self.segment, self.length)
    }

    /// The segment is not synced: nothing will read it.
    fn free_newest(&mut self) {
        self.file = None;
        self.begin_next();
    }
}
