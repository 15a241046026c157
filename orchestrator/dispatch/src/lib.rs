//! The vocabulary of dispatches, which the rollout, its durable ledger, the data set and the engines share.
//!
//! A *dispatch* is one sending-out of a prompt group. It has an id ([`DispatchId`]), is about one data-set
//! row ([`PromptUid`]), ends with exactly one [`Fate`], and may leave tokens ([`CarriedSample`]) that its
//! next dispatch goes on from. [`Totals`] counts dispatches by fate.
//!
//! # Invariants
//! [`invariants`] has them as functions, for `debug_assert!`, property tests and the fault simulation.
//!
//! # Deliberately absent
//! Decisions: the rollout's board decides fates. Files: the ledger knows how these types are stored.

mod fate;
pub mod invariants;
mod prompt;
mod sample;
mod totals;

pub use fate::{DispatchId, Fate, interned_reason};
pub use prompt::{Position, PromptUid};
pub use sample::{CarriedSample, FinishReason, PartialOutput, Spent, Stamp, VersionSpan};
pub use totals::{StepEnd, Totals};
