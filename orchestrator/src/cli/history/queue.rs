//! What the queue of the same run says.

use std::path::Path;

use rolldock_queue::{QueueError, QueueInspection, TransferQueue};

use crate::run::queue_folder;

/// The queue's side, or why it cannot be read.
pub(super) struct QueueSide {
    pub(super) found: Result<Found, QueueError>,
}

pub(super) struct Found {
    pub(super) inspection: QueueInspection,
    /// Accepted groups that the queue still remembers by their dispatch.
    pub(super) records: usize,
}

impl QueueSide {
    /// Blocks. Changes nothing; the queue's owner may be at work.
    pub(super) fn read(dir: &Path) -> Self {
        let found = TransferQueue::open_read_only(&queue_folder(dir)).map(|queue| {
            let records = queue.partitions().iter().map(|partition| partition.records().len()).sum();
            Found { inspection: queue.inspect(), records }
        });
        Self { found }
    }
}
