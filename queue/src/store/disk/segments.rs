//! The writing side of the segment files.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;

use super::DiskStore;
use super::segment_file::segment_path;
use crate::error::QueueError;
use crate::store::{ALIGNMENT, Appender, ChunkId, ChunkLocation, Encoded, Note, SEGMENTS};

/// Appends chunks; owned by the journal's writer.
#[derive(Debug)]
pub(super) struct SegmentWriter {
    segment: u64,
    file: Option<File>,
    length: u64,
    /// Whether the directory has a name in it that is not durable yet.
    fresh: bool,
    /// Why payload may have been lost.
    failed: Option<QueueError>,
    store: Arc<DiskStore>,
}

impl SegmentWriter {
    pub(super) fn new(first: u64, store: Arc<DiskStore>) -> Self {
        Self { segment: first, file: None, length: 0, fresh: false, failed: None, store }
    }

    /// Where a chunk lies that has been written. After an error the segment is closed, so that half a chunk
    /// is never followed by another.
    fn write(&mut self, rows: &Encoded) -> Result<ChunkLocation, QueueError> {
        if self.length > 0 && self.length + rows.len() > self.store.segment_bytes {
            self.roll();
        }
        let path = segment_path(&self.store.dir, self.segment);
        let mut file = match self.file.take() {
            Some(file) => file,
            None => {
                // Known before it exists: a search for strays must not take it for one.
                self.store.open(self.segment);
                let created = OpenOptions::new().create_new(true).write(true).open(&path);
                self.fresh = true;
                created.map_err(QueueError::io("create", &path))?
            }
        };
        let padding = self.length.next_multiple_of(ALIGNMENT) - self.length;
        let written = file.write_all(&[0; ALIGNMENT as usize][..padding as usize]);
        let written = written.and_then(|()| rows.write_to(&file));
        self.file = Some(file);
        if let Err(error) = written {
            // Half a chunk lies at the end: nothing is appended behind it.
            self.roll();
            return Err(QueueError::io("write", &path)(error));
        }
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
        self.file.as_ref().map_or(Ok(()), File::sync_data).map_err(QueueError::io("sync", path))?;
        if std::mem::take(&mut self.fresh) {
            let synced = File::open(&self.store.dir).and_then(|dir| dir.sync_all());
            synced.map_err(QueueError::io("sync", &self.store.dir))?;
        }
        Ok(())
    }

    fn roll(&mut self) {
        // What a closed segment holds must be durable before a record refers to it, and it is never synced
        // later.
        if let Some(file) = self.file.take()
            && let Err(error) = file.sync_data()
        {
            self.failed = Some(QueueError::io("sync", segment_path(&self.store.dir, self.segment))(error));
        }
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

    /// Once it has failed the state of the disk is not known, so it never succeeds again.
    fn sync(&mut self) -> Result<(), QueueError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let synced = self.sync_open_segment();
        self.failed = synced.as_ref().err().cloned();
        synced
    }

    /// Chunks of a closed segment that would give back more than it keeps; none if there is no such segment.
    fn take_sparse(&mut self) -> Vec<ChunkId> {
        self.store.take_sparse().unwrap_or_default()
    }
}
