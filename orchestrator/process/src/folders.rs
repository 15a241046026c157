//! The location of the queue in a run's directory.

use std::path::{Path, PathBuf};

use rolldock_queue::holds_queue;

/// The queue's directory, inside a run's directory.
pub const QUEUE_FOLDER: &str = "queue";

/// The directory of the queue of the run in `dir`. `dir` may also be the queue's own directory.
pub fn queue_folder(dir: &Path) -> PathBuf {
    let inside = dir.join(QUEUE_FOLDER);
    if !inside.exists() && holds_queue(dir) { dir.to_owned() } else { inside }
}
