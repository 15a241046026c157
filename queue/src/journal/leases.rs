//! The lease file: the rows that clients hold, written so that they outlive the process.
//!
//! Leases have their own file beside the journal, because they need weaker guarantees. A lease is written
//! before its client gets the last of its rows, and the file is never synced. Leases therefore survive the
//! death of the process. If the machine dies, at worst some rows are handed out again. The call that grants a
//! lease appends the record. That costs a write to the page cache and no sync.
//!
//! # Invariants
//! - The journal takes precedence: leases of rows that are acked, gone or held by a later lease are skipped.
//!   The file therefore needs no common order with the journal's records.
//! - Reading ends at damage: the rows of later leases are handed out again.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{Body, MAGIC, read_frames};
use crate::error::QueueError;

const FILE: &str = "leases.log";
/// The file is rewritten when it is larger than this and than four times its size after the last rewrite. In
/// bytes.
const REWRITE_BYTES: u64 = 1 << 20;

struct State {
    file: File,
    length: u64,
    rewrite_at: u64,
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
        tracing::warn!(%error, "some leases are not known any more; their rows are given again");
        0
    })
}

impl LeaseLog {
    /// Continues the file after its first `sound` bytes.
    pub(crate) fn start(dir: &Path, sound: u64, held: Held) -> Result<Self, QueueError> {
        let path = dir.join(FILE);
        let state = if sound == 0 {
            rewritten(&path, Body::default())?
        } else {
            let file = OpenOptions::new().write(true).open(&path).map_err(QueueError::io("open", &path))?;
            file.set_len(sound).map_err(QueueError::io("truncate", &path))?;
            State { file, length: sound, rewrite_at: REWRITE_BYTES.max(sound) }
        };
        Ok(Self { path, state: Mutex::new(state), held })
    }

    /// Writes a record. The operating system has it when this call returns. Must not be called under the lock
    /// of a table.
    pub(crate) fn append(&self, record: &impl Serialize) -> Result<(), QueueError> {
        let mut body = Body::default();
        body.push(record)?;
        let frame = body.into_frame()?;
        let mut state = self.state.lock();
        state.file.write_all_at(&frame, state.length).map_err(QueueError::io("write", &self.path))?;
        state.length += frame.len() as u64;
        if state.length > state.rewrite_at {
            let mut held = Body::default();
            (self.held)(&mut held)?;
            *state = rewritten(&self.path, held)?;
        }
        Ok(())
    }
}

fn rewritten(path: &Path, held: Body) -> Result<State, QueueError> {
    let mut bytes = MAGIC.to_vec();
    bytes.append(&mut held.into_frame()?);
    let temporary = path.with_extension("new");
    let file = File::create(&temporary).map_err(QueueError::io("create", &temporary))?;
    file.write_all_at(&bytes, 0).map_err(QueueError::io("write", &temporary))?;
    std::fs::rename(&temporary, path).map_err(QueueError::io("rename", &temporary))?;
    let length = bytes.len() as u64;
    Ok(State { file, length, rewrite_at: REWRITE_BYTES.max(4 * length) })
}
