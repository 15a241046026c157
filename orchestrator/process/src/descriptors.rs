//! The file descriptors that a process holds for the files of its queue.

use rolldock_frames::descriptors;

/// Files that a run opens for writing, besides those that are always open: a segment, a file of tokens, and
/// the new files when logs are rewritten.
const WRITTEN_FILES: usize = 8;
/// Segments that one reader reads at a time. A reader is a consumer in this process or a thread that serves
/// rows.
const READ_FILES: usize = 8;

/// The number of descriptors to reserve for the files of a queue with `readers` readers.
pub fn held_files(readers: usize) -> usize {
    WRITTEN_FILES + READ_FILES * readers
}

/// Reserves descriptors for the files of a queue that `readers` consumers or threads read, before connections
/// can use the descriptors up.
pub fn hold_for_files(readers: usize) {
    let count = held_files(readers);
    if let Err(error) = descriptors::hold(count) {
        tracing::warn!(%error, "fewer than {count} descriptors are held for files; raise `ulimit -n`");
    }
}
