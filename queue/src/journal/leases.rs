//! What clients hold, written down so that it outlives the process.
//!
//! A file of its own beside the journal, because it needs less: a lease is written before the client has its
//! last rows and is never synced, so it survives the death of the process, and with the machine at worst some
//! rows are given again. The call that gives a lease appends it, which costs a write to the system's cache
//! and does not wait for a sync of the journal.
//!
//! # Invariants
//! - What it says counts only as far as the journal does not say otherwise: leases of rows that are acked,
//!   gone or held by a later lease are passed over. So it needs no order with the journal's records.
//! - Damage ends it: the leases behind it are given again.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{Body, MAGIC, read_frames};
use crate::error::QueueError;

const FILE: &str = "leases.log";
/// It is rewritten when it is larger than this and than four times what is live; bytes.
const REWRITE_BYTES: u64 = 1 << 20;

struct State {
    file: File,
    length: u64,
    rewrite_at: u64,
}

/// Gives what clients hold now.
type Held = Box<dyn Fn(&mut Body) -> Result<(), QueueError> + Send + Sync>;

/// The file of leases that is being written.
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

/// Calls `each` with what the file of `dir` says, as far as it can be read; returns the length of the sound
/// part.
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
    /// Goes on behind the `sound` part of the file.
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

    /// Writes a record down: it is in the system's hands when this returns. Not to be called under a table's
    /// lock.
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
