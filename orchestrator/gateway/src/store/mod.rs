//! The log of all trajectories: an append-only file of [frames](rolldock_frames).
//!
//! # Why a file and not the queue
//! Many steps become durable before there is a row: a row is a whole path with a reward, and its mask depends
//! on later turns. Steps in the queue would be rows that no trainer may see, and the gateway would have to
//! read them back, end them and clear them one by one. The log has the records that only the gateway reads
//! again. The queue gets rows, once, when a group has ended.
//!
//! Each record belongs to one trajectory, and has the trajectory's number. The records that callers append at
//! the same time are written as one frame (group commit), because one fsync for each record would limit the
//! throughput.
//!
//! # Invariants
//! - Records are written in the order of the calls of [`Store::append`].
//! - After [`Store::kept`] has returned, the record survives the failure that the [`Durability`] names.
//! - After a failed write nothing more is written, and no later record is acknowledged.
//! - A *last* record replaces all earlier records of its trajectory: a rewrite of the file copies only the
//!   newest such record and the records after it. A *forgotten* trajectory is not copied at all.
//! - The file has at most four times the bytes that are needed, or at most 64 MiB and one frame if that is
//!   more. The numbers of forgotten trajectories are kept until the next rewrite, and there are fewer of them
//!   than records in the file.
//! - Waiting records are bounded by [`WAITING_BYTES_MAX`].

mod file;
mod writer;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rolldock_queue::Durability;

pub(crate) use file::Sizes;
use file::{LogFile, REWRITE_BYTES};
use writer::{Shared, Written};

/// If more bytes of records than this wait for the writer, `kept` waits for the writer, whatever the
/// durability.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Why the log cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The operating system failed.
    #[error("cannot {action} {}: {reason}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// Another process has the log.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The log.
        path: PathBuf,
    },
    /// The log does not have the bytes that were written.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The log.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// The log was closed.
    #[error("the log of trajectories is closed")]
    Closed,
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { action, path, reason: error.to_string() }
    }
}

/// A record of a trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// The number of the trajectory.
    pub(crate) number: u64,
    /// Whether the record replaces all earlier records of the trajectory.
    pub(crate) is_last: bool,
    pub(crate) body: &'a [u8],
}

/// The place of a record in the order of all records of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sequence(u64);

/// The open log. Dropping it writes the waiting records and ends the log's thread.
#[derive(Debug)]
pub(crate) struct Store {
    shared: Arc<Shared>,
    durability: Durability,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Whether records are written at all.
    keeps: bool,
}

impl Store {
    /// Opens the log in `dir`, or makes one, and calls `each` with every record in it. Blocks.
    ///
    /// # Errors
    /// [`StoreError`], also if `each` refuses a record.
    pub(crate) fn open(
        dir: &Path,
        durability: Durability,
        each: impl FnMut(Entry<'_>) -> Result<(), String>,
    ) -> Result<Self, StoreError> {
        Self::open_with(dir, durability, REWRITE_BYTES, each)
    }

    fn open_with(
        dir: &Path,
        durability: Durability,
        rewrite_bytes: u64,
        each: impl FnMut(Entry<'_>) -> Result<(), String>,
    ) -> Result<Self, StoreError> {
        let file = LogFile::open(dir, durability == Durability::Fsync, rewrite_bytes, each)?;
        let shared = Arc::new(Shared::new(Some(file), durability == Durability::Os));
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("rolldock-gateway-log".to_owned())
            .spawn(move || of_thread.run())
            .map_err(StoreError::io("start the writer of", dir))?;
        Ok(Self { shared, durability, thread: Mutex::new(Some(thread)), keeps: true })
    }

    /// A log that keeps nothing, for trajectories that end with their process.
    pub(crate) fn none() -> Self {
        let shared = Arc::new(Shared::new(None, false));
        Self { shared, durability: Durability::None, thread: Mutex::new(None), keeps: false }
    }

    /// Whether records are written at all. If not, callers need not make records.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }

    /// Appends a record. Returns at once, or after a write without fsync.
    pub(crate) fn append(&self, entry: Entry<'_>) -> Sequence {
        self.append_all(&[entry])
    }

    /// Appends records together: after a crash, the log has all of them or none. Returns at once, or after a
    /// write without fsync.
    pub(crate) fn append_all(&self, entries: &[Entry<'_>]) -> Sequence {
        self.shared.append(entries)
    }

    /// Drops the trajectory's records when the file is rewritten next.
    pub(crate) fn forget(&self, number: u64) {
        self.shared.gathered.lock().forgotten.insert(number);
    }

    /// Waits until a record and all earlier ones are as durable as asked for. Cancel-safe.
    ///
    /// # Errors
    /// The error of the write of this record or of an earlier one.
    pub(crate) async fn kept(&self, up_to: Sequence) -> Result<(), StoreError> {
        let mut progress = self.shared.progress.subscribe();
        let is_there = |progress: &Written| {
            let is_written = progress.records >= up_to.0;
            let has_room = self.durability == Durability::None && !progress.is_behind;
            is_written || has_room || progress.failed.is_some()
        };
        let reached = progress.wait_for(is_there).await.map_err(|_closed| StoreError::Closed)?;
        match &reached.failed {
            Some(error) if reached.records < up_to.0 => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// The error that stopped the writer, if there is one.
    pub(crate) fn error(&self) -> Option<StoreError> {
        self.shared.progress.borrow().failed.clone()
    }

    /// The bytes of the file, and its rewrites so far.
    pub(crate) fn sizes(&self) -> Sizes {
        self.shared.progress.borrow().sizes
    }

    /// Writes the waiting records and closes the file. Blocks.
    pub(crate) fn close(&self) {
        self.shared.gathered.lock().is_closed = true;
        self.shared.work.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the writer of the gateway's log died");
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

/// Trajectories whose records need not be kept.
type Forgotten = HashSet<u64>;

#[cfg(test)]
mod tests;
