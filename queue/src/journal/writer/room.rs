//! The writer on a disk that is full or nearly full.
//!
//! Before a batch is written, the writer makes sure that the journal's [reserve](super::super::reserve) is
//! whole. If the reserve is not whole, changes that add data to the queue are refused, and other changes use
//! the reserve.
//!
//! The space of consumed rows in the newest segment comes back with the next put, or when the queue is quiet. Other
//! writers on the same disk, such as the ledger of a run, may hold back the next put until they have this space.

use std::time::Duration;

use super::{Appended, Entry, Writer};
use crate::error::QueueError;
use crate::journal::frame::Body;

/// A frame is expected to have at least this many bytes. A typical batch of acks is smaller.
const FRAME_BYTES_MIN: u64 = 256 << 10;
/// The journal is rewritten to make room when it has grown by at least this many bytes since the last
/// rewrite, and by at least a quarter.
const GROWN_BYTES_MIN: u64 = 256 << 10;
/// A dead newest segment is freed when no entry has arrived for this time. A queue that is in use thus does not make
/// and delete files, and its puts do not wait for it.
const QUIET: Duration = Duration::from_millis(500);

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

    /// How long the thread waits for an entry before it does other work; `None` if there is no other work.
    pub(super) fn idle_limit(&self) -> Option<Duration> {
        self.noted.due_in().or_else(|| self.has_dead().then_some(QUIET))
    }

    /// Frees the newest segment if all of its rows are dead and no entry has arrived for [`QUIET`]. On a full disk this
    /// is the space that other writers wait for, and without it no put may come that would free it.
    ///
    /// The records that freed the rows are synced first. Otherwise the death of the machine could undo them, and the
    /// journal would name rows whose payload is gone.
    pub(super) fn free_dead(&mut self) {
        if self.noted.due_in().is_some() || !self.has_dead() {
            return;
        }
        if self.synced != self.extent() {
            if let Err(error) = self.sync() {
                tracing::warn!(%error, "the space of consumed rows is freed only when a put needs it");
                self.keeps_dead = true;
                return;
            }
            self.synced = self.extent();
            self.noted.say(self.extent(), self.synced);
        }
        if let Some(appender) = &mut self.appender {
            appender.free_newest();
        }
    }

    fn has_dead(&self) -> bool {
        let appender = self.appender.as_ref().filter(|_| !self.keeps_dead && self.failed.is_none());
        appender.is_some_and(|appender| appender.is_newest_dead())
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
