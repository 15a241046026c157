//! Moving chunks out of segments that are mostly dead.

use std::sync::mpsc::channel;

use super::{Entry, Notes, Writer};
use crate::error::QueueError;
use crate::store::ChunkId;

/// The bytes of payload that are moved at a time.
const MOVED_BYTES_MAX: u64 = 4 << 20;

impl Writer {
    /// Moves some live chunks out of segments that are mostly dead. The amount is limited, so that no call
    /// waits long.
    pub(super) fn move_some(&mut self) {
        if self.leaving.is_empty()
            && let Some(appender) = &mut self.appender
        {
            self.leaving = appender.take_sparse();
        }
        let (mut batch, mut moved, mut bytes) = (Vec::new(), Vec::new(), 0);
        let (failed, failures) = channel();
        while bytes < MOVED_BYTES_MAX
            && self.failed.is_none()
            && let Some(chunk) = self.leaving.pop()
        {
            if let Some(entry) = (self.relocate)(chunk) {
                bytes += entry.payload.iter().map(|(_, rows)| rows.len()).sum::<u64>();
                let failed = failed.clone();
                let done = Box::new(move |durable: Result<Notes, QueueError>| {
                    // The receiver outlives the commit.
                    let _ = durable.as_ref().map_err(|error| failed.send(error.clone()));
                    (entry.done)(durable);
                });
                batch.push(Entry { done, ..entry });
                moved.push(chunk);
            }
        }
        if !batch.is_empty() {
            self.commit(batch);
        }
        // A full disk would give one message for each chunk.
        let mut failures = failures.try_iter();
        if let Some(error) = failures.next() {
            let chunks = 1 + failures.count();
            tracing::warn!(dir = %self.dir.display(), chunks, %error, "chunks stay in their segments");
        }
        if self.is_full {
            self.put_off(moved);
        }
    }

    /// Keeps chunks in their segments until the disk has room to move them.
    fn put_off(&mut self, mut chunks: Vec<ChunkId>) {
        chunks.append(&mut self.leaving);
        if let Some(appender) = &mut self.appender {
            appender.put_off(&chunks);
        }
    }
}
