//! Rows on their way into a region.

use std::io;
use std::sync::Arc;

use arrow_buffer::Buffer;

use crate::QueueError;
use crate::mapped::{Filling, Mapping};
use crate::tasks;

/// From here on a second thread is worth its waking up; bytes.
const SHARED_BYTES: usize = 1 << 20;

fn full(error: io::Error) -> QueueError {
    QueueError::io("share memory", "memfd")(error)
}

/// Copies `buffers` into a region, one behind the other: in the caller's own task, which offers its thread to others after
/// every piece, and where there is much by a second thread as well, once it is awake. Says how many bytes that were.
///
/// Cancel-safe. `lent` is what keeps everybody else from the region; it is dropped when nothing is written any more.
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
        // Not waited for: if it wakes up late there is nothing left to do.
        drop(tasks::blocking("region copy", move || while filling.copy_next() {}));
    }
    while filling.copy_next() {
        tokio::task::yield_now().await;
    }
    filling.done().await;
    Ok(bytes)
}
