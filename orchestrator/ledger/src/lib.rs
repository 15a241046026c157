//! The durable ledger of a run: a journal with one record for each change of a fate. A run continues from its
//! ledger after any kind of end.
//!
//! [`LedgerWriter`] appends to `ledger.log` in the run's directory. [`LedgerState`] is the fold of the
//! records. After a restart, [`LedgerState::reconcile`] compares this state with the queue and returns where
//! the run continues.
//!
//! ```text
//!  board --append--> LedgerWriter --frames--> ledger.log          (one writer, group commit)
//!                        |      `--samples--> tokens-<step>.bin   (carried and held groups)
//!                        `--sync--> before a group's put
//!  restart:  ledger.log --fold--> LedgerState --reconcile(records of the queue)--> Resumption
//! ```
//!
//! # Invariants
//! - **The queue decides whether a group is accepted.** The put of a group is submitted after the record of
//!   its dispatch is as durable as the configuration asks for. A dispatch that is in flight or accepted in
//!   the ledger is therefore accepted if and only if the queue has its record. Otherwise its prompt is sent
//!   out again, once, under its old number.
//! - The log is only appended to. An unfinished last write is cut off with a warning when the ledger is
//!   opened. Any other damage is an error that names the file and the offset.
//! - The writer applies each record to a state before it writes the record. It refuses a record that
//!   contradicts earlier ones.
//! - Tokens are written before the record that names them. They are deleted after the record that ends their
//!   use.
//! - The first dispatch of a prompt records the position in the data after the prompt. A prompt that was drawn
//!   and never dispatched is drawn again.
//!
//! # Bounded
//! Records that wait for the writer are bounded by number and bytes. The run bounds open dispatches and
//! waiting prompts. Accepted dispatches are kept until they are settled ([`Record::Settled`]). The log itself
//! keeps the whole history: it grows as long as the run lasts, by about 120 bytes for a dispatch.
//!
//! # Deliberately absent
//! There is no snapshot of the state, because a fold of a million records takes only a second. The ledger has
//! no clock: the caller gives the times in the records.

mod codec;
mod error;
#[cfg(test)]
mod fixture;
mod frame;
mod history;
mod record;
mod state;
mod tokens;
mod writer;

pub use error::LedgerError;
pub use frame::{LEDGER_FILE, LogEnd, ledger_file, read_log};
pub use history::{DispatchHistory, History};
pub use record::{
    DispatchRecord, FORMAT, GateRecord, LifeRecord, MetersRecord, Next, QueueRecord, Record, RunRecord,
    StepEndRecord, StepRecord, TokensPlace,
};
pub use state::{LedgerState, OpenStep, QueuedPrompt, Resumption, StepState};
pub use tokens::{KeptGroup, read_carried};
pub use writer::{LedgerConfig, LedgerWriter, Opened, Sequence, check_unused, is_being_written};
