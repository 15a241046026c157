//! The length of the journal, noted in a file beside it.
//!
//! A journal that was cut between two frames looks whole, but rows are missing and acked rows reappear. The
//! note states the minimum length of the journal, so that opening or verifying the queue detects the cut. The
//! journal's writer notes a change within `PERIOD`, between two batches and without a sync, and once more
//! when the writer ends. The note therefore does not slow down puts.
//!
//! # Invariants
//! - The note counts only bytes that a crash cannot remove. `synced` bytes survive the death of the machine.
//!   `written` bytes survive only the death of the process, so they count only until the machine is restarted
//!   (`boot`).
//! - A journal counts how often it was rewritten. A rewritten journal is shorter, so the note of the earlier
//!   journal does not apply to it. The new note is written after the rewritten journal was renamed to its
//!   final name.
//! - The note is overwritten in place, within one sector. If it is lost or damaged, the queue opens without
//!   it.

use std::fs::{File, OpenOptions};
use std::io::Cursor;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rolldock_frames::{Format, Reader};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::journal_path;
use crate::error::QueueError;

const FILE: &str = "journal.length";
/// The maximum time until a change of the journal is noted.
const PERIOD: Duration = Duration::from_millis(500);
/// The size of the file, in bytes: a sector, which a disk writes completely or not at all.
const NOTE_BYTES: usize = 512;
const FORMAT: Format = Format {
    magic: b"ROLLDOCK-LENGTH-1\n",
    body_bytes_max: NOTE_BYTES as u32,
    tail_bytes_max: NOTE_BYTES as u64,
};
/// The file with the identity of the current boot, which Linux creates anew each time the machine is started.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The length of a journal, or of its first part, in bytes and in records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extent {
    pub(crate) bytes: u64,
    pub(crate) records: u64,
}

/// The journal as it was found when the queue was opened.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Begun {
    /// The sound part.
    pub(crate) extent: Extent,
    /// How often the journal was rewritten.
    pub(crate) rewrites: u64,
}

/// The noted length of a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LengthNote {
    /// How often the journal was rewritten.
    rewrites: u64,
    synced: Extent,
    written: Extent,
    /// The boot of the machine in which `written` was written. Empty if it is unknown.
    boot: String,
}

fn boot() -> String {
    std::fs::read_to_string(BOOT_ID).map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

impl LengthNote {
    /// Reads the note in `dir`. Returns `None` if there is no note, as in a directory of an earlier version.
    ///
    /// # Errors
    /// Returns [`QueueError::Corrupt`] if the file contains no valid note, and [`QueueError::Io`] if it
    /// cannot be read.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, QueueError> {
        let path = dir.join(FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(QueueError::io("read", &path)(error)),
        };
        match Self::parse(&bytes) {
            Some(note) => Ok(Some(note)),
            None => {
                let reason = "expected the length of the journal, found other bytes".to_owned();
                Err(QueueError::Corrupt { file: path, offset: 0, reason })
            }
        }
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(Cursor::new(bytes), bytes.len() as u64, FORMAT).ok()?;
        let frame = reader.next_frame().ok()??;
        serde_json::from_slice(frame.body).ok()
    }

    fn to_bytes(&self) -> Result<Vec<u8>, QueueError> {
        let unfit = |error: &dyn std::fmt::Display| QueueError::Arrow { reason: error.to_string() };
        let body = serde_json::to_vec(self).map_err(|error| unfit(&error))?;
        let frame = FORMAT.frame(&body).map_err(|error| unfit(&error))?;
        let mut bytes = [FORMAT.magic, &frame].concat();
        bytes.resize(NOTE_BYTES.max(bytes.len()), 0);
        Ok(bytes)
    }

    /// Checks that the journal in `dir` has everything that is noted. `found` is the sound part of the
    /// journal, and `rewrites` is how often the journal was rewritten.
    ///
    /// # Errors
    /// Returns [`QueueError::JournalCut`] if the end of the journal is missing, and [`QueueError::Corrupt`]
    /// if the journal was replaced by an earlier journal.
    pub(crate) fn check(&self, dir: &Path, found: Extent, rewrites: u64) -> Result<(), QueueError> {
        self.check_at(dir, found, rewrites, &boot())
    }

    fn check_at(&self, dir: &Path, found: Extent, rewrites: u64, boot: &str) -> Result<(), QueueError> {
        let file = journal_path(dir);
        if self.rewrites < rewrites {
            return Ok(());
        }
        if self.rewrites > rewrites {
            let reason = format!(
                "this is an earlier journal: it was rewritten {rewrites} times, expected {}; put the right one back, \
                 or remove {} to accept it",
                self.rewrites,
                dir.join(FILE).display()
            );
            return Err(QueueError::Corrupt { file, offset: 0, reason });
        }
        let is_same_boot = !boot.is_empty() && self.boot == boot;
        let expected = if is_same_boot { self.written } else { self.synced };
        if found.bytes >= expected.bytes {
            return Ok(());
        }
        Err(QueueError::JournalCut {
            file,
            bytes: found.bytes,
            bytes_missing: expected.bytes - found.bytes,
            records_missing: expected.records.saturating_sub(found.records),
        })
    }
}

/// The file of the note, which the journal's writer writes.
#[derive(Debug)]
pub(super) struct LengthFile {
    path: PathBuf,
    /// `None` if the file cannot be created, for example on a full disk. In that case, nothing is noted.
    file: Option<File>,
    note: LengthNote,
    /// The time by which the note must be written. `None` if the file is up to date.
    due: Option<Instant>,
}

impl LengthFile {
    /// Opens the file in `dir` for a journal that was rewritten `rewrites` times. `extent` is the length of
    /// its synced part. Writes the note immediately.
    pub(super) fn open(dir: &Path, extent: Extent, rewrites: u64) -> Self {
        let path = dir.join(FILE);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.inspect_err(|error| warn(&path, error)).ok();
        let note = LengthNote { rewrites, synced: extent, written: extent, boot: boot() };
        let mut opened = Self { path, file, note, due: None };
        opened.write();
        opened
    }

    /// Updates the note. `written` is the length of the journal, and `synced` is the length of its durable
    /// part.
    pub(super) fn say(&mut self, written: Extent, synced: Extent) {
        if (written, synced) != (self.note.written, self.note.synced) {
            (self.note.written, self.note.synced) = (written, synced);
            self.due.get_or_insert_with(|| Instant::now() + PERIOD);
        }
    }

    /// Notes a rewritten journal, all of which is durable.
    pub(super) fn rewritten(&mut self, extent: Extent) {
        self.note.rewrites += 1;
        (self.note.written, self.note.synced) = (extent, extent);
        self.write();
    }

    /// How often the journal was rewritten.
    pub(super) fn rewrites(&self) -> u64 {
        self.note.rewrites
    }

    /// The time until the note is due. `None` if the file is up to date.
    pub(super) fn due_in(&self) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(Instant::now()))
    }

    pub(super) fn write_if_due(&mut self) {
        if self.due_in().is_some_and(|left| left.is_zero()) {
            self.write();
        }
    }

    /// Writes the note and makes it durable. Runs when the journal is closed.
    pub(super) fn close(&mut self) {
        self.write();
        let synced = self.file.as_ref().map_or(Ok(()), File::sync_data);
        let _ = synced.inspect_err(|error| warn(&self.path, error));
    }

    fn write(&mut self) {
        self.due = None;
        let Some(file) = &self.file else { return };
        match self.note.to_bytes() {
            Ok(bytes) => drop(file.write_all_at(&bytes, 0).inspect_err(|error| warn(&self.path, error))),
            Err(error) => warn(&self.path, &error),
        }
    }
}

/// No data is lost without the note, so the queue continues.
fn warn(path: &Path, error: &dyn std::fmt::Display) {
    tracing::warn!(file = %path.display(), %error, "the length of the journal is not noted; a cut would not be found");
}

#[cfg(test)]
mod tests;
