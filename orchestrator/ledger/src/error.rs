//! The errors of a ledger.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rolldock_dispatch::DispatchId;
use rolldock_dispatch::invariants::Violation;

/// An error of the ledger. After a failed write, the writer returns the same error for all later records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// The operating system reported an error.
    #[error("cannot {action} file={file}: {reason}")]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        file: PathBuf,
        /// The system's message.
        reason: String,
    },
    /// The disk has no room for the ledger or its tokens.
    #[error("the disk of file={file} is full ({reason}); free space on it")]
    DiskFull {
        /// The file that could not be written.
        file: PathBuf,
        /// The system's message.
        reason: String,
    },
    /// Another process has the ledger open for writing.
    #[error("ledger file={file} is in use by {owner}")]
    InUse {
        /// The log.
        file: PathBuf,
        /// The process, for people.
        owner: String,
    },
    /// The directory has no ledger.
    #[error("dir={dir} holds no ledger; expected the directory of a run")]
    NoLedger {
        /// The directory.
        dir: PathBuf,
    },
    /// The log is missing or empty, but the directory has files of tokens, which the log should name. No file
    /// was changed.
    #[error(
        "ledger file={file} is missing or empty, found {found} beside it; expected the ledger that names these tokens: \
         put it back from a copy, or begin a new run in another directory"
    )]
    Lost {
        /// The log.
        file: PathBuf,
        /// One of the files of tokens.
        found: String,
    },
    /// The bytes of the file are not those that were written.
    #[error("file={file} is damaged at offset={offset}: {found}; expected {expected}")]
    Corrupt {
        /// The log, or a file of tokens.
        file: PathBuf,
        /// The offset of the damaged frame.
        offset: u64,
        /// What was found.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A record contradicts the records before it. Either this program has a defect, or another program wrote
    /// the ledger.
    #[error("the ledger contradicts itself: {0}")]
    Contradiction(String),
    /// The counts of dispatches do not add up.
    #[error(transparent)]
    Invariant(#[from] Violation),
    /// The queue has a record that no run has written.
    #[error("the queue has a foreign record: {reason}; found {record:?}")]
    ForeignRecord {
        /// The record.
        record: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The queue has a group of a dispatch that is not in the ledger. Either data was lost, or the files
    /// belong to two runs.
    #[error(
        "the queue holds a group of dispatch={dispatch}, which is not in the ledger; expected a ledger that was \
         written before its puts: the machine lost what queue.durability did not protect, or the files are of two runs"
    )]
    UnknownDispatch {
        /// The dispatch.
        dispatch: DispatchId,
    },
    /// Queue and ledger disagree about a dispatch.
    #[error("ledger and queue differ about dispatch={dispatch}: {what}")]
    QueueDiffers {
        /// The dispatch.
        dispatch: DispatchId,
        /// The difference.
        what: String,
    },
    /// The writer has ended.
    #[error("the ledger is closed")]
    Closed,
}

impl LedgerError {
    pub(super) fn io(action: &'static str, file: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let file = file.to_owned();
        move |error| match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                Self::DiskFull { file, reason: format!("{action} failed: {error}") }
            }
            _ => Self::Io { action, file, reason: error.to_string() },
        }
    }
}
