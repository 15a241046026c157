//! The lease file: the rows that clients hold, written so that they outlive the process.
//!
//! Leases have their own file beside the journal, because they need weaker guarantees. A lease is written
//! before its client gets the last of its rows, and the file is never synced. Leases therefore survive the
//! death of the process. If the machine dies, at worst some rows are leased again. The call that grants a
//! lease appends the record, which costs a write to the page cache and no sync.
//!
//! # Invariants
//! - The journal takes precedence: leases of rows that are acked, freed or held by a later lease are skipped.
//!   The order of the file's records relative to the journal's records therefore does not matter.
//! - Reading ends at the first damage: the rows of later leases are leased again.
//! - The file has a [reserve](super::reserve), so that leases can be written even on a full disk.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{Body, MAGIC, read_frames};
use super::reserve::{Reserve, of_file_system};
use crate::error::QueueError;

const FILE: &str = "leases.log";
/// The file is rewritten when its size exceeds both this number of bytes and four times its size after the
/// last rewrite.
const REWRITE_BYTES: u64 = 1 << 20;

struct State {
    file: File,
    length: u64,
    rewrite_at: u64,
    reserve: Reserve,
}

/// Writes the leases that clients hold now.
type Held = Box<dyn Fn(&mut Body) -> Result<(), QueueError> + Send + Sync>;

/// The lease file of this process.
pub(crate) struct LeaseLog {
    path: PathBuf,
    state: Mutex<State>,
    held: Held,
}

impl std::fmt::Debug for LeaseLog {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LeaseLog").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Calls `each` with every record of the lease file in `dir` that can be read. Returns the length of the
/// sound part.
pub(crate) fn read_leases<Record: DeserializeOwned>(dir: &Path, mut each: impl FnMut(Record)) -> u64 {
    let path = dir.join(FILE);
    let Ok(bytes) = std::fs::read(&path) else { return 0 };
    let read = read_frames(&path, &bytes, |record| {
        each(record);
        Ok(())
    });
    read.unwrap_or_else(|error| {
        tracing::warn!(%error, "some leases are lost; their rows can be taken again");
        0
    })
}

impl LeaseLog {
    /// Continues the file after its first `sound` bytes.
    pub(crate) fn start(dir: &Path, sound: u64, held: Held) -> Result<Self, QueueError> {
        let path = dir.join(FILE);
        let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = opened.map_err(QueueError::on_disk("open", &path))?;
        // Setting the length frees the blocks of the reserve, so the length is set only if it changes.
        if file.metadata().map_err(QueueError::io("read", &path))?.len() != sound {
            file.set_len(sound).map_err(QueueError::on_disk("truncate", &path))?;
        }
        let reserve = Reserve::new(path.with_extension("new"), of_file_system());
        let mut state = State { file, length: sound, rewrite_at: REWRITE_BYTES.max(sound), reserve };
        if sound == 0 {
            state.append(&path, MAGIC)?;
        }
        state.hold_reserve();
        Ok(Self { path, state: Mutex::new(state), held })
    }

    /// Writes a record. The record is in the page cache of the operating system when the call returns. Must
    /// not be called under the lock of a table.
    pub(crate) fn append(&self, record: &impl Serialize) -> Result<(), QueueError> {
        let mut body = Body::default();
        body.push(record)?;
        let frame = body.into_frame()?;
        let mut state = self.state.lock();
        state.append(&self.path, &frame)?;
        if state.length > state.rewrite_at {
            let mut held = Body::default();
            (self.held)(&mut held)?;
            state.rewrite(&self.path, held)?;
        }
        Ok(())
    }
}

impl State {
    fn append(&mut self, path: &Path, bytes: &[u8]) -> Result<(), QueueError> {
        if !self.reserve.has(self.length, bytes.len() as u64) {
            self.hold_reserve();
        }
        self.file.write_all_at(bytes, self.length).map_err(QueueError::on_disk("write", path))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn hold_reserve(&mut self) {
        if let Err(error) = self.reserve.hold(&self.file, self.length) {
            tracing::debug!(%error, "the lease file has no reserve");
        }
    }

    fn rewrite(&mut self, path: &Path, held: Body) -> Result<(), QueueError> {
        let mut bytes = MAGIC.to_vec();
        bytes.append(&mut held.into_frame()?);
        let temporary = self.reserve.next_path().to_owned();
        let file = self.reserve.take_next()?;
        let written = file.write_all_at(&bytes, 0).and_then(|()| std::fs::rename(&temporary, path));
        if let Err(error) = written {
            self.reserve.was_left();
            return Err(QueueError::on_disk("write", &temporary)(error));
        }
        // The old file is closed here, so that the reserve can use its blocks.
        self.file = file;
        self.length = bytes.len() as u64;
        self.rewrite_at = REWRITE_BYTES.max(4 * self.length);
        self.reserve.was_replaced();
        self.hold_reserve();
        Ok(())
    }
}
