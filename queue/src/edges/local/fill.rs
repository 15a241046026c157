//! Rows on their way into a region.

use std::io;
use std::sync::Arc;

use arrow_buffer::Buffer;

use crate::QueueError;
use crate::mapped::{Filling, Mapping};
use crate::tasks;

/// From this size in bytes on, a second thread is worth the time that it takes to wake up.
const SHARED_BYTES: usize = 1 << 20;

fn full(error: io::Error) -> QueueError {
    QueueError::io("share memory", "memfd")(error)
}

/// Copies `buffers` into a region, one behind the other, and returns the number of bytes. The caller's own
/// task copies, and yields its thread after every piece; for large rows a second thread helps once it is
/// awake.
///
/// Cancel-safe. `lent` keeps other puts and takes away from the region; it is dropped when the last write is
/// over.
pub(super) async fn fill<Lent>(
    mapping: Arc<Mapping>,
    buffers: Vec<Buffer>,
    lent: Arc<Lent>,
) -> Result<usize, QueueError>
where
    Lent: Send + Sync + 'static,
{
    let bytes = buffers.iter().map(Buffer::len).sum();
    if !mapping.is_touched(bytes) {
        let (mapping, lent) = (Arc::clone(&mapping), Arc::clone(&lent));
        let touching = tasks::blocking("region touch", move || {
            let touched = mapping.touch(bytes);
            drop(lent);
            touched
        });
        touching.await.map_err(io::Error::other).flatten().map_err(full)?;
    }
    let filling = Arc::new(Filling::new(mapping, buffers, lent).map_err(full)?);
    if bytes >= SHARED_BYTES {
        let filling = Arc::clone(&filling);
        // This is not awaited: if the thread wakes up late, there is nothing left for it to do.
        drop(tasks::blocking("region copy", move || while filling.copy_next() {}));
    }
    while filling.copy_next() {
        tokio::task::yield_now().await;
    }
    filling.done().await;
    Ok(bytes)
}
