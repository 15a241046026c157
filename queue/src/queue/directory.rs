//! The directory of a queue: how it is recognised, and what it may contain before it has a journal.

use std::path::Path;

use crate::error::QueueError;
use crate::journal::journal_path;
use crate::store::is_segment;

/// Files that do not show that rows were lost. Opening a queue creates the first two, so a process that dies before its
/// first write to the journal leaves them behind. The other two are the files to which logs are rewritten, and reserve
/// disk space.
const BEFORE_JOURNAL: [&str; 4] = ["LOCK", "journal.log", "journal.new", "leases.new"];
/// Files that only a queue's directory has, besides its segments.
const OF_QUEUES: [&str; 4] = ["journal.log", "journal.length", "leases.log", "unit-id"];
/// The maximum number of files that an error names.
const NAMED_MAX: usize = 3;

/// Whether `dir` is the directory of a queue, even if the journal is lost.
pub fn holds_queue(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    entries.flatten().any(|entry| {
        is_segment(&entry.path()) || entry.file_name().to_str().is_some_and(|name| OF_QUEUES.contains(&name))
    })
}

/// The error for a directory that has no journal to read.
pub(crate) fn no_journal(dir: &Path) -> QueueError {
    let lost = if dir.exists() { check_is_new(dir).err() } else { None };
    lost.unwrap_or_else(|| QueueError::NoQueue { dir: dir.to_owned() })
}

/// Checks that a directory without a journal contains nothing of an earlier queue. Otherwise the journal was
/// lost, and a new queue would treat the other files as garbage.
pub(super) fn check_is_new(dir: &Path) -> Result<(), QueueError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(QueueError::io("list", dir))? {
        let name = entry.map_err(QueueError::io("list", dir))?.file_name();
        if !name.to_str().is_some_and(|name| BEFORE_JOURNAL.contains(&name)) {
            found.push(name.to_string_lossy().into_owned());
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    found.sort_unstable();
    let more = found.len().saturating_sub(NAMED_MAX);
    found.truncate(NAMED_MAX);
    let more = match more {
        0 => String::new(),
        1 => " and 1 more file".to_owned(),
        more => format!(" and {more} more files"),
    };
    let found = format!("{}{more}", found.join(", "));
    Err(QueueError::JournalMissing { journal: journal_path(dir), found })
}
