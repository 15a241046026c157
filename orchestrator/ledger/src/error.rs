//! What can go wrong with a ledger, in words that name it.

use std::path::{Path, PathBuf};

use rolldock_dispatch::DispatchId;
use rolldock_dispatch::invariants::Violation;

/// Errors of the ledger. One that befell the writer stays: every later call returns it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// The system refused.
    #[error("cannot {action} file={file}: {reason}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        file: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// Another process has the run.
    #[error("ledger file={file} is in use by another process")]
    InUse {
        /// The log.
        file: PathBuf,
    },
    /// There is no ledger.
    #[error("dir={dir} holds no ledger; expected the directory of a run")]
    NoLedger {
        /// The directory.
        dir: PathBuf,
    },
    /// Bytes that are not what was written.
    #[error("file={file} is damaged at offset={offset}: {found}; expected {expected}")]
    Corrupt {
        /// The log, or a file of tokens.
        file: PathBuf,
        /// The offset of the damaged frame.
        offset: u64,
        /// What is there.
        found: String,
        /// What should be.
        expected: &'static str,
    },
    /// A record that does not follow from those before it: a defect of this program, or a ledger that another
    /// program wrote.
    #[error("the ledger contradicts itself: {0}")]
    Contradiction(String),
    /// Counts do not add up.
    #[error(transparent)]
    Invariant(#[from] Violation),
    /// A record in the queue that no run has put there.
    #[error("the queue has a foreign record: {reason}; found {record:?}")]
    ForeignRecord {
        /// What it says.
        record: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The queue has accepted what the ledger never sent out, which only the loss of written data explains.
    #[error(
        "the queue holds a group of dispatch={dispatch}, which the ledger does not know; expected a ledger that was \
         written before its puts: the machine lost what queue.durability did not protect, or the files are of two runs"
    )]
    UnknownDispatch {
        /// The dispatch.
        dispatch: DispatchId,
    },
    /// Queue and ledger say different things of one dispatch.
    #[error("ledger and queue differ about dispatch={dispatch}: {what}")]
    QueueDiffers {
        /// The dispatch.
        dispatch: DispatchId,
        /// How.
        what: String,
    },
    /// The writer has ended.
    #[error("the ledger is closed")]
    Closed,
}

impl LedgerError {
    pub(super) fn io(action: &'static str, file: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let file = file.to_owned();
        move |error| Self::Io { action, file, reason: error.to_string() }
    }
}
