//! The file descriptors that a process holds for the files of its queue.

use rolldock_frames::descriptors;

/// Files that are opened to be written, besides those that are always open: a segment, a file of tokens, and the
/// files to which logs are rewritten.
const WRITTEN_FILES: usize = 8;
/// Segments that a consumer in this process, or a thread that serves rows, reads at a time.
const READ_FILES: usize = 8;

/// The descriptors to hold for the files of a queue with so many readers.
pub fn held_files(readers: usize) -> usize {
    WRITTEN_FILES + READ_FILES * readers
}

/// Holds descriptors for the files of a queue that so many consumers or threads read, before connections can use
/// them up.
pub fn hold_for_files(readers: usize) {
    let count = held_files(readers);
    if let Err(error) = descriptors::hold(count) {
        tracing::warn!(%error, "fewer than {count} descriptors are held for files; raise `ulimit -n`");
    }
}
