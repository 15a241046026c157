//! The lock of a directory: one process owns the directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Read;
use std::os::unix::fs::FileExt;
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
