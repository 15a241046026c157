//! The writer on a disk that is full or nearly full.
//!
//! Before a batch is written, the writer makes sure that the journal's [reserve](super::super::reserve) is
//! whole. If the reserve is not whole, changes that add data to the queue are refused, and other changes use
//! the reserve.

use super::{Appended, Entry, Writer};
use crate::error::QueueError;
use crate::journal::frame::Body;

/// A frame is expected to have at least this many bytes. A typical batch of acks is smaller.
const FRAME_BYTES_MIN: u64 = 256 << 10;
/// The journal is rewritten to make room when it has grown by at least this many bytes since the last
/// rewrite, and by at least a quarter.
const GROWN_BYTES_MIN: u64 = 256 << 10;

fn is_full(error: &QueueError) -> bool {
    matches!(error, QueueError::DiskFull { .. })
}

impl Appended {
    /// An entry that is refused: nothing of it is written.
    pub(super) fn refused(entry: Entry, why: QueueError) -> Self {
        let Entry { adds, done, .. } = entry;
        let (records, chunks, notes) = Default::default();
        Self { adds, records, chunks, notes, outcome: Err(why), done }
    }
}

impl Writer {
    /// Makes room for a batch. Returns an error if the disk has no room for changes that add data to the
    /// queue.
    pub(super) fn prepare(&mut self, adds: bool) -> Result<(), QueueError> {
        let expected = self.frame_bytes.max(FRAME_BYTES_MIN);
        if self.failed.is_none()
            && !self.reserve.has(self.length, expected)
            && self.hold_reserve().is_err()
            && self.reserve.can_replace(self.length)
            && let Err(error) = self.rewrite()
        {
            tracing::warn!(%error, "cannot rewrite the journal on the full disk");
        }
        if !adds {
            return Ok(());
        }
        match self.hold_reserve() {
            Err(_) if self.make_room() => self.hold_reserve(),
            held => held,
        }
    }

    /// Makes the reserve whole for the journal with one more frame.
    pub(super) fn hold_reserve(&mut self) -> Result<(), QueueError> {
        self.reserve.hold(&self.file, self.length + self.frame_bytes)
    }

    /// Removes the records that add data from `body` if the disk has no room for a frame of its length. The
    /// remaining records keep their order.
    pub(super) fn fit(&mut self, body: Body, appended: &mut [Appended]) -> Body {
        self.frame_bytes = body.len() as u64;
        let is_added = |one: &Appended| one.adds && one.outcome.is_ok();
        let held = if appended.iter().any(is_added) { self.hold_reserve() } else { Ok(()) };
        let Err(full) = held else {
            self.note_state(appended);
            return body;
        };
        let mut rest = Body::default();
        for one in appended.iter_mut() {
            if is_added(one) {
                one.outcome = Err(full.clone());
            } else {
                rest.extend(&body, one.records.clone());
            }
        }
        self.note_state(appended);
        rest
    }

    /// Frees space without live rows: in the newest segment, and in the journal if it has grown since it was
    /// last rewritten. Returns whether anything was done.
    fn make_room(&mut self) -> bool {
        let is_closed = self.appender.as_mut().is_some_and(|appender| appender.make_room());
        let grown_bytes = self.length.saturating_sub(self.compacted_bytes);
        let is_worth_it = grown_bytes > GROWN_BYTES_MIN.max(self.compacted_bytes / 4);
        is_closed | (is_worth_it && self.failed.is_none() && self.rewrite().is_ok())
    }

    /// Determines from the outcome of the added entries whether the disk is full, and logs each change.
    fn note_state(&mut self, appended: &[Appended]) {
        let mut added = appended.iter().filter(|one| one.adds).peekable();
        if added.peek().is_none() {
            return;
        }
        let full = added.find_map(|one| one.outcome.as_ref().err().filter(|error| is_full(error)));
        let was_full = std::mem::replace(&mut self.is_full, full.is_some());
        match full {
            Some(error) if !was_full => {
                tracing::warn!(%error, "the queue accepts no puts until the disk has room")
            }
            None if was_full => tracing::info!(dir = %self.dir.display(), "the disk has room again"),
            _ => {}
        }
    }
}
