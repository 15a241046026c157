//! Rewriting the journal so that it contains only the live data. The rewritten journal is a checkpoint.

use std::fs::File;
use std::io::Write;

use serde::Serialize;

use super::Writer;
use crate::error::QueueError;
use crate::journal::frame::{Body, MAGIC};
use crate::journal::length::Extent;

/// The approximate size of the frames of a rewritten journal, in bytes. Verification holds one of them.
const FRAME_BYTES: usize = 256 << 10;

/// Receives records one after the other, until a record cannot be written.
pub(crate) struct Sink<'a> {
    body: Body,
    /// The number of records that were written.
    written: u64,
    write: &'a mut dyn FnMut(&[u8]) -> Result<(), QueueError>,
}

impl Sink<'_> {
    /// Adds the next record.
    pub(crate) fn push(&mut self, record: &impl Serialize) -> Result<(), QueueError> {
        self.body.push(record)?;
        if self.body.len() > FRAME_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), QueueError> {
        let body = std::mem::take(&mut self.body);
        self.written += body.records();
        (self.write)(&body.into_frame()?)
    }
}

/// Pushes all live data as the records of a rewritten journal. The number tells how often the journal was
/// rewritten. The function runs on the writer's thread, so the data does not change in between.
pub(crate) type LiveRecords = Box<dyn Fn(&mut Sink<'_>, u64) -> Result<(), QueueError> + Send>;

impl Writer {
    /// Replaces the journal with the live data, in one rename.
    pub(super) fn rewrite(&mut self) -> Result<(), QueueError> {
        self.compacted_bytes = self.length;
        let mut file = self.reserve.take_next()?;
        let Extent { bytes, records } = match self.write_live(&mut file) {
            Ok(written) => written,
            Err(error) => {
                self.reserve.was_left();
                return Err(error);
            }
        };
        tracing::debug!(from_bytes = self.length, to_bytes = bytes, "the journal was rewritten");
        // The name now belongs to the new file, so nothing may be appended to the old file. The old file is
        // closed, so that the reserve can use its blocks.
        (self.file, self.length, self.records) = (file, bytes, records);
        self.compacted_bytes = bytes;
        self.rewrite_at = self.journal_bytes.max(4 * bytes);
        self.reserve.was_replaced();
        // If the reserve is not whole, the next change that adds data to the queue gets the error.
        let _ = self.hold_reserve();
        if let Err(error) = self.sync_dir() {
            // After a power cut the name may belong to the old file.
            self.failed = Some(error.clone());
            return Err(error);
        }
        self.synced = self.extent();
        self.noted.rewritten(self.synced);
        Ok(())
    }

    /// Writes the live data into `file`, and gives it the journal's name.
    fn write_live(&self, file: &mut File) -> Result<Extent, QueueError> {
        let temporary = self.reserve.next_path();
        let mut bytes = 0;
        let mut write = |part: &[u8]| {
            bytes += part.len() as u64;
            file.write_all(part).map_err(QueueError::on_disk("write", temporary))
        };
        write(MAGIC)?;
        let mut sink = Sink { body: Body::default(), written: 0, write: &mut write };
        (self.live)(&mut sink, self.noted.rewrites() + 1)?;
        sink.flush()?;
        let records = sink.written;
        file.sync_all().map_err(QueueError::unsynced(temporary))?;
        std::fs::rename(temporary, &self.path).map_err(QueueError::on_disk("rename", temporary))?;
        Ok(Extent { bytes, records })
    }
}
