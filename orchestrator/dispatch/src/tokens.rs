//! Counts of response tokens, by their use.
//!
//! Every response token that an engine generates for a run is in exactly one bucket of
//! [`TokenTotals::buckets`]. A token of a running
//! dispatch is *in flight*. When the dispatch ends, its fate determines the bucket of its tokens. Held or
//! carried tokens are in flight again when the next dispatch of their prompt begins with them. No token is
//! therefore counted twice in a run.
//!
//! A simulated engine reports how many tokens it generated for each request, so the sum of the buckets equals
//! the sum of the engines' own counters. A real engine does not report how many tokens a request had when its
//! connection was cut. The number of tokens that did not arrive is estimated, and [`TokenTotals::estimated`]
//! counts these tokens.

use serde::Serialize;

/// Why tokens are wasted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Waste {
    /// The request or the group of the tokens was cut off, by the end of a step or an interrupt.
    Cut,
    /// The sample was complete and never got a grade: the grading was cut off, or it failed.
    Ungraded,
    /// The request failed before its end, or the group failed or was given up.
    FailedAttempt,
    /// The answer was lost or could not be trusted, or the tokens were lost with the process of the run.
    LostAnswer,
    /// The tokens were too old and were discarded.
    Stale,
    /// The group was cut off, and continued to its end only for an audit.
    Audit,
}

/// The use of response tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bucket {
    /// The group of the tokens was passed to the queue within the staleness bound.
    Accepted,
    /// A gate rejected the group.
    Filtered,
    /// The group is complete and counts first in the next step.
    Held,
    /// The next dispatch of the prompt continues from the tokens.
    Carried,
    /// The group was passed to the queue, although it is beyond the staleness bound. The recipe masks or
    /// flags it.
    Stale,
    /// The tokens are wasted.
    Wasted(Waste),
}

/// Wasted tokens by reason; see [`Waste`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WastedTokens {
    /// [`Waste::Cut`].
    pub cut: u64,
    /// [`Waste::Ungraded`].
    pub ungraded: u64,
    /// [`Waste::FailedAttempt`].
    pub failed_attempt: u64,
    /// [`Waste::LostAnswer`].
    pub lost_answer: u64,
    /// [`Waste::Stale`].
    pub stale: u64,
    /// [`Waste::Audit`].
    pub audit: u64,
}

impl WastedTokens {
    /// Wasted tokens over all reasons.
    pub fn total(&self) -> u64 {
        let Self { cut, ungraded, failed_attempt, lost_answer, stale, audit } = self;
        cut + ungraded + failed_attempt + lost_answer + stale + audit
    }
}

/// The tokens of an accepted dispatch, which are in one of two buckets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HandedOn {
    /// Tokens within the staleness bound.
    pub accepted: u64,
    /// Tokens of a group that was handed on beyond the staleness bound.
    pub stale: u64,
}

/// Response tokens of a step or of a run, by bucket.
///
/// ```
/// use rolldock_dispatch::{Bucket, TokenTotals, Waste, invariants};
///
/// let mut tokens = TokenTotals::default();
/// tokens.generate(100);
/// tokens.settle(Bucket::Accepted, 70);
/// tokens.settle(Bucket::Wasted(Waste::Cut), 20);
/// assert_eq!((tokens.in_flight, tokens.accepted, tokens.wasted.cut), (10, 70, 20));
/// invariants::token_conservation(&tokens)?;
///
/// tokens.generated += 1;
/// assert!(invariants::token_conservation(&tokens).is_err(), "one token is in no bucket");
/// # Ok::<(), invariants::Violation>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TokenTotals {
    /// Tokens that engines generated in the step, or in the run.
    pub generated: u64,
    /// Tokens of earlier steps that were in flight, held or carried when the step began. In the counts of a
    /// run, this count is 0, unless an earlier version of the program, which did not count tokens, generated
    /// tokens from which the run continues.
    pub earlier: u64,
    /// Tokens of dispatches that have no fate yet.
    pub in_flight: u64,
    /// [`Bucket::Accepted`].
    pub accepted: u64,
    /// [`Bucket::Filtered`].
    pub filtered: u64,
    /// [`Bucket::Held`], at present.
    pub held: u64,
    /// [`Bucket::Carried`], at present.
    pub carried: u64,
    /// [`Bucket::Stale`].
    pub stale: u64,
    /// [`Bucket::Wasted`].
    pub wasted: WastedTokens,
    /// The tokens of validations, without probes.
    pub validation: u64,
    /// Tokens of probes, which check that a server can generate.
    pub probes: u64,
    /// Tokens of requests for a sample that two servers were asked for, and that came from the other server.
    pub hedges: u64,
    /// The estimated tokens among all counts above: tokens that did not arrive because the connection
    /// of their request was cut.
    pub estimated: u64,
}

impl TokenTotals {
    /// The names of the buckets, in the order of [`TokenTotals::buckets`]. Names do not change.
    pub const BUCKETS: [&str; 15] = [
        "in_flight",
        "accepted",
        "filtered",
        "held",
        "carried",
        "stale",
        "wasted_cut",
        "wasted_ungraded",
        "wasted_failed_attempt",
        "wasted_lost_answer",
        "wasted_stale",
        "wasted_audit",
        "validation",
        "probes",
        "hedges",
    ];

    /// All buckets by name. Their sum is `generated + earlier`.
    pub fn buckets(&self) -> [(&'static str, u64); 15] {
        let wasted = &self.wasted;
        let tokens = [
            self.in_flight,
            self.accepted,
            self.filtered,
            self.held,
            self.carried,
            self.stale,
            wasted.cut,
            wasted.ungraded,
            wasted.failed_attempt,
            wasted.lost_answer,
            wasted.stale,
            wasted.audit,
            self.validation,
            self.probes,
            self.hedges,
        ];
        std::array::from_fn(|place| (Self::BUCKETS[place], tokens[place]))
    }

    /// The counts in the order of the buckets, followed by `generated`, `earlier` and `estimated`.
    pub fn to_counts(&self) -> [u64; 18] {
        let buckets = self.buckets();
        let others = [self.generated, self.earlier, self.estimated];
        std::array::from_fn(|place| match buckets.get(place) {
            Some((_, tokens)) => *tokens,
            None => others[place - buckets.len()],
        })
    }

    /// The inverse of [`TokenTotals::to_counts`].
    pub fn from_counts(counts: [u64; 18]) -> Self {
        let [in_flight, accepted, filtered, held, carried, stale, cut, ungraded, failed_attempt, rest @ ..] =
            counts;
        let [lost_answer, stale_wasted, audit, validation, probes, hedges, generated, earlier, estimated] =
            rest;
        let wasted = WastedTokens { cut, ungraded, failed_attempt, lost_answer, stale: stale_wasted, audit };
        Self {
            generated,
            earlier,
            in_flight,
            accepted,
            filtered,
            held,
            carried,
            stale,
            wasted,
            validation,
            probes,
            hedges,
            estimated,
        }
    }

    /// The tokens in all buckets.
    pub fn total(&self) -> u64 {
        self.buckets().iter().map(|(_, tokens)| tokens).sum()
    }

    /// The share of wasted tokens in all tokens that were generated or left by earlier steps; `None` if there
    /// are no tokens.
    pub fn wasted_share(&self) -> Option<f64> {
        let whole = self.generated + self.earlier;
        (whole > 0).then(|| self.wasted.total() as f64 / whole as f64)
    }

    fn bucket(&mut self, bucket: Bucket) -> &mut u64 {
        match bucket {
            Bucket::Accepted => &mut self.accepted,
            Bucket::Filtered => &mut self.filtered,
            Bucket::Held => &mut self.held,
            Bucket::Carried => &mut self.carried,
            Bucket::Stale => &mut self.stale,
            Bucket::Wasted(Waste::Cut) => &mut self.wasted.cut,
            Bucket::Wasted(Waste::Ungraded) => &mut self.wasted.ungraded,
            Bucket::Wasted(Waste::FailedAttempt) => &mut self.wasted.failed_attempt,
            Bucket::Wasted(Waste::LostAnswer) => &mut self.wasted.lost_answer,
            Bucket::Wasted(Waste::Stale) => &mut self.wasted.stale,
            Bucket::Wasted(Waste::Audit) => &mut self.wasted.audit,
        }
    }

    /// Counts tokens that an engine generated for a dispatch in flight.
    pub fn generate(&mut self, tokens: u64) {
        self.generated += tokens;
        self.in_flight += tokens;
    }

    /// Moves tokens of a dispatch in flight into a bucket.
    pub fn settle(&mut self, bucket: Bucket, tokens: u64) {
        self.in_flight = self.in_flight.saturating_sub(tokens);
        *self.bucket(bucket) += tokens;
    }

    /// Moves tokens from a bucket, which is [`Bucket::Held`] or [`Bucket::Carried`], to a dispatch in flight.
    /// Returns the number of moved tokens, which is at most the number in the bucket.
    pub fn bring(&mut self, bucket: Bucket, tokens: u64) -> u64 {
        let there = self.bucket(bucket);
        let brought = tokens.min(*there);
        *there -= brought;
        self.in_flight += brought;
        brought
    }

    /// Counts the tokens of a validation, which has its own rollout. Its probes count as probes of the run.
    pub fn validate(&mut self, validation: &Self) {
        let tokens = validation.generated.saturating_sub(validation.probes);
        self.generated += tokens;
        self.validation += tokens;
        self.estimated += validation.estimated;
    }

    /// Counts tokens of probes.
    pub fn probe(&mut self, tokens: u64) {
        self.generated += tokens;
        self.probes += tokens;
    }

    /// Counts tokens of a request that came second to a request for the same sample.
    pub fn hedge(&mut self, tokens: u64) {
        self.generated += tokens;
        self.hedges += tokens;
    }

    /// The counts with which the next step begins.
    pub fn next_step(&self) -> Self {
        let Self { in_flight, held, carried, .. } = *self;
        Self { earlier: in_flight + held + carried, in_flight, held, carried, ..Self::default() }
    }

    /// The counts of a run that continues in another process. Its waiting prompts have `held` tokens of held groups
    /// and `carried` tokens of groups that were cut off. Other tokens that were in flight, held or carried are lost.
    /// If the waiting prompts have more tokens than the ledger has counted, earlier processes of the run did not count
    /// tokens.
    pub fn after_restart(&self, held: u64, carried: u64) -> Self {
        let (there, kept) = (self.in_flight + self.held + self.carried, held + carried);
        let mut after = Self { in_flight: 0, held, carried, ..*self };
        after.wasted.lost_answer += there.saturating_sub(kept);
        after.earlier += kept.saturating_sub(there);
        after
    }

    /// Reverts the acceptance of a dispatch whose rows never reached the queue. `handed_on` has its tokens.
    pub fn take_back(&mut self, handed_on: HandedOn) {
        let HandedOn { accepted, stale } = handed_on;
        self.accepted = self.accepted.saturating_sub(accepted);
        self.stale = self.stale.saturating_sub(stale);
        self.in_flight += accepted + stale;
    }

    /// The tokens that were handed on since `before`.
    pub fn handed_on_since(&self, before: &Self) -> HandedOn {
        HandedOn {
            accepted: self.accepted.saturating_sub(before.accepted),
            stale: self.stale.saturating_sub(before.stale),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::token_conservation;

    fn some() -> TokenTotals {
        TokenTotals::from_counts(std::array::from_fn(|place| place as u64 + 1))
    }

    #[test]
    fn counts_have_the_order_of_the_buckets() {
        let counts = some().to_counts();
        assert_eq!(counts, std::array::from_fn(|place| place as u64 + 1));
        assert_eq!(some().wasted.total(), (7..=12).sum());
        assert_eq!(some().total(), (1..=15).sum());
        assert_eq!((some().generated, some().earlier, some().estimated), (16, 17, 18));
    }

    #[test]
    fn a_stale_group_is_taken_back_from_the_stale_tokens() {
        let mut tokens = TokenTotals::default();
        tokens.generate(500);
        tokens.settle(Bucket::Accepted, 300);
        let before = tokens;
        tokens.settle(Bucket::Stale, 200);
        tokens.take_back(tokens.handed_on_since(&before));
        assert_eq!((tokens.accepted, tokens.stale, tokens.in_flight), (300, 0, 200));
        assert_eq!(token_conservation(&tokens), Ok(()));
    }

    #[test]
    fn every_token_is_in_exactly_one_bucket() {
        let mut tokens = TokenTotals::default();
        tokens.generate(1_000);
        tokens.settle(Bucket::Carried, 400);
        tokens.settle(Bucket::Held, 300);
        tokens.settle(Bucket::Filtered, 100);
        tokens.probe(2);
        tokens.hedge(3);
        assert_eq!(token_conservation(&tokens), Ok(()));
        let next = tokens.next_step();
        assert_eq!((next.earlier, next.in_flight, next.generated), (900, 200, 0));
        assert_eq!(token_conservation(&next), Ok(()));
        tokens.bring(Bucket::Carried, 400);
        assert_eq!((tokens.carried, tokens.in_flight), (0, 600));
        tokens.settle(Bucket::Accepted, 600);
        assert_eq!((token_conservation(&tokens), tokens.generated), (Ok(()), 1_005));
        tokens.take_back(HandedOn { accepted: 250, stale: 0 });
        assert_eq!((tokens.accepted, tokens.in_flight), (350, 250));
        let after = tokens.after_restart(290, 20);
        assert_eq!(
            (after.held, after.carried, after.wasted.lost_answer),
            (290, 20, 240),
            "300 tokens were held and 250 in flight"
        );
        assert_eq!(token_conservation(&after), Ok(()));
        assert_eq!(TokenTotals::default().after_restart(2, 3).earlier, 5);
    }
}
