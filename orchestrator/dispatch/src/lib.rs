//! The vocabulary of dispatches, which the rollout, its durable ledger, the data set and the engines share.
//!
//! A *dispatch* sends out a prompt group once. It has an id ([`DispatchId`]), belongs to one data-set row
//! ([`PromptUid`]), ends with exactly one [`Fate`], and may leave tokens ([`CarriedSample`]) from which the
//! next dispatch of the prompt continues. [`Totals`] counts dispatches by fate, and [`TokenTotals`] counts
//! response tokens by use. [`bias`] measures how the accepted groups differ from the groups that were sent
//! out.
//!
//! # Invariants
//! The functions in [`invariants`] check the invariants, for `debug_assert!`, property tests and the fault
//! simulation.
//!
//! # Deliberately absent
//! This crate decides nothing: the rollout's board decides fates. It writes nothing: the ledger stores these
//! types.

pub mod bias;
mod fate;
pub mod invariants;
mod prompt;
mod sample;
mod tokens;
mod totals;

pub use fate::{DispatchId, Fate, interned_reason};
pub use prompt::{Position, PromptUid};
pub use sample::{CarriedSample, FinishReason, PartialOutput, Spent, Stamp, VersionSpan};
pub use tokens::{Bucket, TokenTotals, Waste, WastedTokens};
pub use totals::{StepEnd, Totals};
