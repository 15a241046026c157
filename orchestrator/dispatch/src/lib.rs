//! The types that describe dispatches. The rollout, its durable ledger, the data set, the engines and the
//! recipes share them.
//!
//! A *dispatch* sends out a prompt group once. It has an id ([`DispatchId`]), belongs to one data-set row
//! ([`PromptUid`]), ends with exactly one [`Fate`], and may leave tokens ([`CarriedSample`]) from which the
//! next dispatch of the prompt continues. [`Totals`] counts dispatches by fate, and [`TokenTotals`] counts
//! response tokens by use. [`bias`] measures how the accepted groups differ from the groups that were sent
//! out, [`history`] chooses prompts by their results in earlier epochs, and [`inclusion`] undoes the bias of choices.
//! A recipe chooses among [`modes`], and accepted samples become rows with the columns of [`rows`].
//!
//! # Invariants
//! The functions in [`invariants`] check the invariants, for `debug_assert!`, property tests and the fault
//! simulation.
//!
//! # Deliberately absent
//! This crate decides nothing: the rollout's board decides fates, by the rules of modes. It writes nothing:
//! the ledger stores these types.

pub mod bias;
pub mod draw;
mod fate;
pub mod history;
pub mod inclusion;
pub mod invariants;
pub mod modes;
mod prompt;
pub mod rows;
mod sample;
mod tokens;
mod totals;

pub use fate::{DispatchId, Fate, interned_reason};
pub use inclusion::{GroupWeights, Inclusion};
pub use prompt::{Position, PromptUid};
pub use sample::{CarriedSample, FinishReason, PartialOutput, Spent, Stamp, VersionSpan, version_of_label};
pub use tokens::{Bucket, HandedOn, TokenTotals, Waste, WastedTokens};
pub use totals::{StepEnd, Totals};
