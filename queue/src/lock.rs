//! The lock of a directory: one process owns the directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

use crate::error::QueueError;

/// The lock of an open queue's directory. The operating system releases it when the process dies.
#[derive(Debug)]
pub(crate) struct DirLock {
    _file: File,
}

impl DirLock {
    pub(crate) fn acquire(dir: &Path) -> Result<Self, QueueError> {
        let path = dir.join("LOCK");
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(QueueError::io("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                // The owner's name only helps people; the lock itself decides.
                let _ = file.read_to_string(&mut owner);
                return Err(QueueError::InUse { dir: dir.to_owned(), owner: owner.trim().to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(QueueError::io("lock", &path)(error)),
        }
        let words = format!("process {}\n", std::process::id());
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(words.as_bytes()));
        written.map_err(QueueError::io("write", &path))?;
        Ok(Self { _file: file })
    }
}
