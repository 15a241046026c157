//! Disk space that is reserved for changes that free rows.
//!
//! Consuming rows frees space on a full disk. However, an ack, a clear, the end of a lease and the removal of
//! a partition need bytes in a log before they free anything. The blocks for these bytes are therefore
//! allocated before the rows arrive: after the end of the log, and in the empty file to which the log is
//! rewritten.
//!
//! # The rule
//! Each of the two files has blocks for the length of the log and a margin. The margin is a quarter of the
//! length, and at least [`MARGIN_BYTES_MIN`]. The log therefore has room for further records of the size of
//! the margin. When these records have used up the margin, the log is rewritten without any new block,
//! because its live records are not longer than the old log. The rewritten log has a margin again. The rename
//! frees the blocks of the old log, and the next empty file uses them.
//!
//! Changes that add data to the queue are refused while the reserve is not whole, so they never use the
//! reserve.
//!
//! The blocks are after the end of the files, where no reader sees them. A file system that cannot allocate
//! blocks in this way has no reserve. If the disk of such a file system is full, the queue can be drained
//! only after other space was freed.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rolldock_frames::descriptors;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};

use crate::error::QueueError;

/// The minimum space for further records, in bytes.
const MARGIN_BYTES_MIN: u64 = 1 << 20;
/// The margin is at least the length of the log divided by this number.
const MARGIN_SHARE: u64 = 4;
/// Blocks are allocated in multiples of this many bytes.
const STEP_BYTES: u64 = 256 << 10;

/// Allocates the blocks of a file from one offset to another. The length of the file does not change.
pub(super) type Allocate = Box<dyn FnMut(&File, u64, u64) -> io::Result<()> + Send>;

/// The reserve of one log.
pub(super) struct Reserve {
    /// The path of the file to which the log is rewritten.
    next_path: PathBuf,
    next: Option<File>,
    /// The allocated bytes of the log and of the next file, from the start of each.
    log_bytes: u64,
    next_bytes: u64,
    allocate: Allocate,
    /// Whether the file system allocates blocks.
    is_supported: bool,
}

impl std::fmt::Debug for Reserve {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { next_path, log_bytes, next_bytes, .. } = self;
        let mut words = formatter.debug_struct("Reserve");
        words.field("next_path", next_path).field("log_bytes", log_bytes).field("next_bytes", next_bytes);
        words.finish_non_exhaustive()
    }
}

/// Allocates blocks of the file system.
pub(super) fn of_file_system() -> Allocate {
    Box::new(|file, from, to| {
        retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, from, to - from)).map_err(io::Error::from)
    })
}

/// The bytes for which each file has blocks while the log is `length` bytes long.
fn target(length: u64) -> u64 {
    let margin = MARGIN_BYTES_MIN.max(length / MARGIN_SHARE);
    (length + margin).next_multiple_of(STEP_BYTES)
}

impl Reserve {
    /// Creates a reserve without blocks. The log is rewritten to the file `next_path`.
    pub(super) fn new(next_path: PathBuf, allocate: Allocate) -> Self {
        Self { next_path, next: None, log_bytes: 0, next_bytes: 0, allocate, is_supported: true }
    }

    /// The path of the file to which the log is rewritten.
    pub(super) fn next_path(&self) -> &Path {
        &self.next_path
    }

    /// Makes the reserve whole for a log that is `length` bytes long. If the reserve is already whole, the
    /// call costs nothing.
    pub(super) fn hold(&mut self, log: &File, length: u64) -> Result<(), QueueError> {
        let wanted = length + MARGIN_BYTES_MIN.max(length / MARGIN_SHARE);
        if !self.is_supported || self.log_bytes >= wanted && self.next_bytes >= wanted {
            return Ok(());
        }
        let target = target(length);
        self.open_next()?;
        let Self { next, next_path, log_bytes, next_bytes, allocate, .. } = self;
        let mut extend = |file: &File, bytes: &mut u64| -> io::Result<()> {
            if *bytes < target {
                allocate(file, *bytes, target)?;
                *bytes = target;
            }
            Ok(())
        };
        let next = next.as_ref().map_or(Ok(()), |next| extend(next, next_bytes));
        match next.and_then(|()| extend(log, log_bytes)) {
            Err(error) if is_unsupported(&error) => {
                self.is_supported = false;
                tracing::warn!(
                    path = %next_path.display(), %error,
                    "the file system reserves no space: if the disk is full, the queue can be drained only after \
                     space was freed"
                );
                Ok(())
            }
            held => held.map_err(QueueError::on_disk("reserve", &*next_path)),
        }
    }

    /// Whether a log that is `length` bytes long has blocks for `bytes` more.
    pub(super) fn has(&self, length: u64, bytes: u64) -> bool {
        !self.is_supported || length + bytes <= self.log_bytes
    }

    /// Whether the next file has blocks for the live records of a log that is `length` bytes long.
    pub(super) fn can_replace(&self, length: u64) -> bool {
        length <= self.next_bytes
    }

    /// Takes the empty file to which the log is rewritten.
    pub(super) fn take_next(&mut self) -> Result<File, QueueError> {
        self.open_next()?;
        let none = || io::Error::from(io::ErrorKind::NotFound);
        self.next.take().ok_or_else(none).map_err(QueueError::on_disk("open", &self.next_path))
    }

    /// Records that the log was replaced by the file that was [taken](Self::take_next).
    pub(super) fn was_replaced(&mut self) {
        (self.log_bytes, self.next_bytes) = (self.next_bytes, 0);
    }

    /// Records that the file that was [taken](Self::take_next) could not be filled. When the file is opened
    /// again, it is emptied, which frees its blocks.
    pub(super) fn was_left(&mut self) {
        self.next_bytes = 0;
    }

    /// Records that the log was cut to `length` bytes, which frees the blocks after this length.
    pub(super) fn was_cut(&mut self, length: u64) {
        self.log_bytes = self.log_bytes.min(length);
    }

    /// Opens the next file and empties it. A file that an earlier process left empty keeps its blocks.
    fn open_next(&mut self) -> Result<(), QueueError> {
        if self.next.is_some() {
            return Ok(());
        }
        let options = OpenOptions::new().create(true).truncate(false).write(true).clone();
        let opened = descriptors::open(|| options.open(&self.next_path));
        let file = opened.map_err(QueueError::on_disk("create", &self.next_path))?;
        let length = file.metadata().map_err(QueueError::on_disk("read", &self.next_path))?.len();
        if length > 0 {
            file.set_len(0).map_err(QueueError::on_disk("truncate", &self.next_path))?;
        }
        self.next = Some(file);
        Ok(())
    }
}

/// Whether the blocks can never be allocated: the file system does not support allocation, or the file would
/// exceed the maximum size of files (`ulimit -f`).
fn is_unsupported(error: &io::Error) -> bool {
    const CODES: [Errno; 4] = [Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL, Errno::FBIG];
    CODES.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn blocks_behind_the_end_of_both_files_grow_with_the_log_and_stay_when_it_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let log_path = dir.path().join("journal.log");
        let log = File::create(&log_path).unwrap();
        let next_path = dir.path().join("journal.new");
        let mut reserve = Reserve::new(next_path.clone(), of_file_system());
        reserve.hold(&log, 100).unwrap();
        if !reserve.is_supported {
            println!("skipped: the file system of {} reserves no space", dir.path().display());
            return;
        }
        let allocated = |path: &Path| path.metadata().unwrap().blocks() * 512;
        let length = |path: &Path| path.metadata().unwrap().len();
        assert!(allocated(&log_path) >= MARGIN_BYTES_MIN && allocated(&next_path) >= MARGIN_BYTES_MIN);
        assert!(reserve.has(100, MARGIN_BYTES_MIN) && !reserve.has(100, 8 << 20));
        reserve.hold(&log, 8 << 20).unwrap();
        assert!(allocated(&log_path) >= 10 << 20 && allocated(&next_path) >= 10 << 20);
        assert_eq!((length(&log_path), length(&next_path)), (0, 0));
        drop(reserve);
        let mut again = Reserve::new(next_path.clone(), of_file_system());
        again.take_next().unwrap();
        assert!(allocated(&next_path) >= 10 << 20, "the next process has the blocks");
    }

    #[test]
    fn a_file_system_that_reserves_nothing_refuses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let log = File::create(dir.path().join("journal.log")).unwrap();
        let unsupported =
            Box::new(|_: &File, _, _| Err(io::Error::from_raw_os_error(Errno::OPNOTSUPP.raw_os_error())));
        let mut reserve = Reserve::new(dir.path().join("journal.new"), unsupported);
        reserve.hold(&log, 1 << 30).unwrap();
        assert!(reserve.has(1 << 30, 1 << 30));
    }
}
