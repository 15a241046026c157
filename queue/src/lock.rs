//! The lock of a directory: one process owns the directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use crate::error::QueueError;

/// The name of the file that is locked.
const FILE: &str = "LOCK";
/// How often the lock is tried, and the time between two tries. [`Unused::hold`] of another process holds it for
/// milliseconds.
const TRIES: u32 = 20;
const AGAIN: Duration = Duration::from_millis(10);

/// The lock of an open queue's directory. The operating system releases it when the process dies.
#[derive(Debug)]
pub(crate) struct DirLock {
    _file: File,
}

impl DirLock {
    /// Blocks.
    pub(crate) fn acquire(dir: &Path) -> Result<Self, QueueError> {
        let path = dir.join(FILE);
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(QueueError::io("open", &path))?;
        match lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                // The owner's name is only for the message. The lock alone shows that the directory is in
                // use.
                let _ = file.read_to_string(&mut owner);
                return Err(QueueError::InUse { dir: dir.to_owned(), owner: owner.trim().to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(QueueError::io("lock", &path)(error)),
        }
        let words = format!("process {}\n", std::process::id());
        // The file is truncated after the write, so that it keeps its disk block: the disk may be full.
        let written = file.write_all_at(words.as_bytes(), 0).and_then(|()| file.set_len(words.len() as u64));
        written.map_err(QueueError::on_disk("write", &path))?;
        Ok(Self { _file: file })
    }
}

#[expect(clippy::disallowed_methods, reason = "a queue is opened where a thread may block")]
fn lock(file: &File) -> Result<(), TryLockError> {
    for _ in 1..TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(AGAIN),
            locked => return locked,
        }
    }
    file.try_lock()
}

/// Keeps processes from opening the queue of a directory. It must be held only for a moment.
#[derive(Debug)]
pub(crate) struct Unused {
    /// `None` if no process has ever opened the directory.
    _file: Option<File>,
}

impl Unused {
    /// Returns `None` if a process has the directory open, this process included.
    pub(crate) fn hold(dir: &Path) -> Result<Option<Self>, QueueError> {
        let path = dir.join(FILE);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some(Self { _file: None })),
            Err(error) => return Err(QueueError::io("open", &path)(error)),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Some(Self { _file: Some(file) })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(QueueError::io("lock", &path)(error)),
        }
    }
}
