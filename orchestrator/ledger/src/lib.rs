//! The durable ledger of a run: a journal with one record per fate change, from which a run continues after
//! any end.
//!
//! [`LedgerWriter`] appends to `ledger.log` in the run's directory. [`LedgerState`] is the fold of the
//! records, and [`LedgerState::reconcile`] compares it with the queue after a restart and says where the run
//! continues.
//!
//! ```text
//!  board --append--> LedgerWriter --frames--> ledger.log          (one writer, group commit)
//!                        |      `--samples--> tokens-<step>.bin   (carried and held groups)
//!                        `--sync--> before a group's put
//!  restart:  ledger.log --fold--> LedgerState --reconcile(records of the queue)--> Resumption
//! ```
//!
//! # Invariants
//! - **The queue holds the fact of acceptance.** A dispatch's record is written (as far as the durability
//!   says) before its put is submitted. So a dispatch that the ledger has open, or calls accepted, is
//!   accepted if and only if the queue has its record; else its prompt is issued again, once, under the
//!   number that it has.
//! - The log is only ever appended to. What the last write left half done is cut off at open, with a note;
//!   any other damage is refused with its file and place.
//! - The writer folds what it writes: a record that contradicts those before it is refused before it is
//!   written.
//! - Tokens are written before the record that names them, and deleted after the record that lets them go.
//! - A new dispatch names its prompt's place in the data. A prompt that was drawn and never dispatched is
//!   drawn again.
//!
//! # Bounded
//! What waits for the writer, by number and bytes; open dispatches and waiting prompts by what runs; accepted
//! dispatches by the records that the queue still keeps ([`Record::Settled`]). The log itself grows for as
//! long as the run does, by some 40 bytes a record: its history is what it is for.
//!
//! # Deliberately absent
//! A snapshot of the state: a fold of a million records takes a second. The clock: the caller that begins a
//! life says when.

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
    DispatchRecord, FORMAT, LifeRecord, Next, QueueRecord, Record, RunRecord, StepEndRecord, StepRecord,
    TokensPlace,
};
pub use state::{LedgerState, OpenStep, QueuedPrompt, Resumption, StepState};
pub use tokens::{KeptGroup, read_carried};
pub use writer::{LedgerConfig, LedgerWriter, Opened, Sequence};
