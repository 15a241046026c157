//! The state of the run's queue.

use std::path::Path;

use rolldock_process::queue_folder;
use rolldock_queue::{QueueError, QueueInspection, TransferQueue};

/// The state of the queue, or the reason why it cannot be read.
pub(super) struct QueueSide {
    pub(super) found: Result<Found, QueueError>,
}

pub(super) struct Found {
    pub(super) inspection: QueueInspection,
    /// The number of accepted groups whose records the queue still keeps.
    pub(super) records: usize,
}

impl QueueSide {
    /// Reads the queue and changes nothing. The run may be in progress. Blocks.
    pub(super) fn read(dir: &Path) -> Self {
        let found = TransferQueue::open_read_only(&queue_folder(dir)).map(|queue| {
            let records = queue.partitions().iter().map(|partition| partition.records().len()).sum();
            Found { inspection: queue.inspect(), records }
        });
        Self { found }
    }
}
