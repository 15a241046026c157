//! Writes that wait while the disk is full.

use std::time::Duration;

use tokio::time::Instant;

use super::sink::Sink;
use super::{Item, Shared};
use crate::LedgerError;

/// The pause between two tries to write.
const PAUSE: Duration = Duration::from_millis(500);

impl Shared {
    /// Writes a batch. If the disk is full, tries again for the time `wait`, until the writer is closed or hurried.
    pub(super) fn commit(
        &self,
        sink: &mut Sink,
        items: Vec<Item>,
        wait: Duration,
    ) -> Result<(), LedgerError> {
        let began = Instant::now();
        let written = sink.commit(items, |full| began.elapsed() < wait && self.wait_for_room(full));
        let full = self.gathered.lock().full_disk.take();
        if full.is_some() && written.is_ok() {
            tracing::info!("the disk of the ledger has room again");
        }
        written
    }

    /// Waits until the write that failed with `full` is worth another try. Returns `false` if the writer was closed or
    /// hurried.
    fn wait_for_room(&self, full: &LedgerError) -> bool {
        let next_try = Instant::now() + PAUSE;
        let mut gathered = self.gathered.lock();
        if gathered.full_disk.replace(full.clone()).is_none() {
            tracing::warn!(error = %full, "the ledger waits until its disk has room");
            self.room.notify_all();
        }
        let mut is_over = false;
        // New records wake the thread too. They must not postpone the next try.
        while !is_over && !gathered.is_closed && !gathered.is_hurried {
            is_over = self.work.wait_until(&mut gathered, next_try.into_std()).timed_out();
        }
        !gathered.is_closed && !gathered.is_hurried
    }
}
