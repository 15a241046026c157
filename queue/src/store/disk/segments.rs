//! The writing side of the segment files.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{DiskStore, segment_path};
use crate::QueueError;
use crate::store::{ALIGNMENT, ChunkId, ChunkLocation, Encoded};

/// Appends chunks; owned by the journal's writer.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    dir: PathBuf,
    segment: u64,
    file: Option<File>,
    length: u64,
    length_max: u64,
    /// Whether the directory has a name in it that is not durable yet.
    fresh: bool,
    /// Why payload may have been lost.
    failed: Option<QueueError>,
    store: Arc<DiskStore>,
}

impl SegmentWriter {
    pub(crate) fn new(dir: &Path, first: u64, length_max: u64, store: Arc<DiskStore>) -> Self {
        Self {
            dir: dir.to_owned(),
            segment: first,
            file: None,
            length: 0,
            length_max,
            fresh: false,
            failed: None,
            store,
        }
    }

    /// Appends chunks. After an error the segment is closed, so that half a chunk is never followed by another.
    pub(crate) fn append(&mut self, chunks: &Encoded) -> Result<ChunkLocation, QueueError> {
        if self.length > 0 && self.length + chunks.len() > self.length_max {
            self.roll();
        }
        let path = segment_path(&self.dir, self.segment);
        let mut file = match self.file.take() {
            Some(file) => file,
            None => {
                // Known before it is there: who looks around meanwhile must not take it for a stray.
                self.store.open(self.segment);
                let created = OpenOptions::new().create_new(true).write(true).open(&path);
                self.fresh = true;
                created.map_err(QueueError::io("create", &path))?
            }
        };
        let padding = self.length.next_multiple_of(ALIGNMENT) - self.length;
        let written = file.write_all(&[0; ALIGNMENT as usize][..padding as usize]);
        let written = written.and_then(|()| chunks.write_to(&file));
        self.file = Some(file);
        if let Err(error) = written {
            // Half a chunk lies at the end: nothing is appended behind it.
            self.roll();
            return Err(QueueError::io("write", &path)(error));
        }
        self.store.expect(self.segment);
        let location = ChunkLocation {
            segment: self.segment,
            offset: self.length + padding,
            length: chunks.len(),
            checksum: chunks.checksum(),
        };
        self.length = location.offset + location.length;
        Ok(location)
    }

    /// The entry that an appended chunk came with is over: by now the store knows the chunk, or nobody wants it.
    pub(crate) fn settle(&self, location: ChunkLocation) {
        self.store.leave(location.segment);
    }

    /// Makes what was appended durable. Once that has failed nobody knows what the disk holds, so it never succeeds
    /// again.
    pub(crate) fn sync(&mut self) -> Result<(), QueueError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let synced = self.sync_open_segment();
        self.failed = synced.as_ref().err().cloned();
        synced
    }

    fn sync_open_segment(&mut self) -> Result<(), QueueError> {
        let path = segment_path(&self.dir, self.segment);
        self.file.as_ref().map_or(Ok(()), File::sync_data).map_err(QueueError::io("sync", path))?;
        if std::mem::take(&mut self.fresh) {
            let synced = File::open(&self.dir).and_then(|dir| dir.sync_all());
            synced.map_err(QueueError::io("sync", &self.dir))?;
        }
        Ok(())
    }

    /// Chunks of a closed segment that would give back more than it keeps; none if there is no such segment.
    pub(crate) fn take_sparse(&self) -> Vec<ChunkId> {
        self.store.take_sparse().unwrap_or_default()
    }

    fn roll(&mut self) {
        // What a closed segment holds must be durable before a record refers to it, and nobody syncs it later.
        if let Some(file) = self.file.take()
            && let Err(error) = file.sync_data()
        {
            self.failed = Some(QueueError::io("sync", segment_path(&self.dir, self.segment))(error));
        }
        self.store.seal(self.segment, self.length);
        self.segment += 1;
        self.length = 0;
    }
}
