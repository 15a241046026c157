//! Counts of dispatches by fate, and how a step ends.

use std::collections::BTreeMap;

use crate::Fate;

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepEnd {
    /// The step has as many accepted groups as its target.
    Reached,
    /// All allowed generation batches were used before the target was reached.
    OutOfBatches,
    /// The data set has no more prompts.
    OutOfPrompts,
    /// The run was interrupted.
    Interrupted,
}

impl StepEnd {
    /// The name in machine-readable records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reached => "reached",
            Self::OutOfBatches => "out_of_batches",
            Self::OutOfPrompts => "out_of_prompts",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Counts of dispatches by fate.
///
/// ```
/// use rolldock_dispatch::{Fate, Totals, invariants};
///
/// let mut totals = Totals { dispatched: 3, in_flight: 3, ..Totals::default() };
/// totals.count(&Fate::Accepted);
/// totals.count(&Fate::Filtered("no_variance"));
/// assert_eq!((totals.in_flight, totals.accepted, totals.filtered_by_reason["no_variance"]), (1, 1, 1));
///
/// invariants::conservation(&totals, 1)?;
/// assert!(invariants::conservation(&totals, 0).is_err(), "one dispatch has no fate yet");
/// # Ok::<(), invariants::Violation>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// All dispatches.
    pub dispatched: u64,
    /// Dispatches without a fate yet.
    pub in_flight: u64,
    /// Dispatches that ended [`Fate::Accepted`].
    pub accepted: u64,
    /// Dispatches that ended [`Fate::Filtered`].
    pub filtered: u64,
    /// Dispatches that ended [`Fate::Stale`].
    pub stale: u64,
    /// Dispatches that ended [`Fate::Cancelled`].
    pub cancelled: u64,
    /// Dispatches that ended [`Fate::Requeued`].
    pub requeued: u64,
    /// Dispatches that ended [`Fate::Carried`].
    pub carried: u64,
    /// Dispatches that ended [`Fate::Held`].
    pub held: u64,
    /// Dispatches that ended [`Fate::Failed`].
    pub failed: u64,
    /// Filtered dispatches, by the gate's reason.
    pub filtered_by_reason: BTreeMap<&'static str, u64>,
}

impl Totals {
    /// Counts the end of a dispatch that was in flight.
    pub fn count(&mut self, fate: &Fate) {
        self.in_flight -= 1;
        match fate {
            Fate::Accepted => self.accepted += 1,
            Fate::Filtered(reason) => {
                self.filtered += 1;
                *self.filtered_by_reason.entry(reason).or_default() += 1;
            }
            Fate::Stale => self.stale += 1,
            Fate::Cancelled => self.cancelled += 1,
            Fate::Requeued => self.requeued += 1,
            Fate::Carried => self.carried += 1,
            Fate::Held => self.held += 1,
            Fate::Failed(_) => self.failed += 1,
        }
    }

    /// Adds the counts of other dispatches.
    pub fn add(&mut self, others: &Self) {
        let sums = [
            (&mut self.dispatched, others.dispatched),
            (&mut self.in_flight, others.in_flight),
            (&mut self.accepted, others.accepted),
            (&mut self.filtered, others.filtered),
            (&mut self.stale, others.stale),
            (&mut self.cancelled, others.cancelled),
            (&mut self.requeued, others.requeued),
            (&mut self.carried, others.carried),
            (&mut self.held, others.held),
            (&mut self.failed, others.failed),
        ];
        for (sum, count) in sums {
            *sum += count;
        }
        for (reason, count) in &others.filtered_by_reason {
            *self.filtered_by_reason.entry(reason).or_default() += count;
        }
    }

    /// Dispatches that have a fate.
    pub(crate) fn ended(&self) -> u64 {
        self.accepted
            + self.filtered
            + self.stale
            + self.cancelled
            + self.requeued
            + self.carried
            + self.held
            + self.failed
    }
}
