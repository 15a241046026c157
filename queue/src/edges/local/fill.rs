//! Copying rows into a region.

use std::io;
use std::sync::Arc;

use arrow_buffer::Buffer;

use crate::QueueError;
use crate::mapped::{Filling, Mapping};
use crate::tasks;

/// The minimum size in bytes for which waking a second thread is worthwhile.
const SHARED_BYTES: usize = 1 << 20;

fn full(error: io::Error) -> QueueError {
    QueueError::io("share memory", "memfd")(error)
}

/// Copies `buffers` into a region, one after the other, and returns the number of bytes. The caller's own
/// task copies, and yields its thread after every piece. For large rows, a second thread helps as soon as it
/// is awake.
///
/// Cancel-safe. While `lent` exists, no other put or take uses the region. `lent` is dropped after the last
/// write.
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
        // The thread is not awaited: if it wakes up late, nothing is left to copy.
        drop(tasks::blocking("region copy", move || while filling.copy_next() {}));
    }
    while filling.copy_next() {
        tokio::task::yield_now().await;
    }
    filling.done().await;
    Ok(bytes)
}
