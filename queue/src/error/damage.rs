//! The texts of errors about damaged files.

use std::path::Path;

use super::QueueError;

/// Where a file is damaged, and how.
pub(super) fn damage(file: &Path, offset: &u64, reason: &str) -> String {
    format!("file={} is corrupt at offset={offset}: {reason}", file.display())
}

/// What is missing at the end of a journal.
pub(super) fn cut(file: &Path, bytes: &u64, bytes_missing: &u64, records_missing: &u64) -> String {
    let file = file.display();
    format!(
        "{file} ends after bytes={bytes}: its last bytes={bytes_missing} with records={records_missing} are gone"
    )
}

/// The directory of a file of a queue.
pub(super) fn folder(file: &Path) -> std::path::Display<'_> {
    file.parent().unwrap_or(file).display()
}

impl QueueError {
    /// The message without the advice to list all damage. The list itself uses this message.
    pub(crate) fn without_advice(&self) -> String {
        match self {
            Self::Corrupt { file, offset, reason } => damage(file, offset, reason),
            Self::JournalCut { file, bytes, bytes_missing, records_missing } => {
                cut(file, bytes, bytes_missing, records_missing)
            }
            other => other.to_string(),
        }
    }
}
