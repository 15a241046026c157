//! The samples that a group keeps when it is cut off: the finished samples, and the tokens of the other
//! samples.
//!
//! # Invariants
//! A kept sample is either finished or still has to continue, so each sample index occurs at most once in a
//! group.

use rolldock_dispatch::{CarriedSample, DispatchId};

use crate::rollout::Sample;
use rolldock_ledger::KeptGroup;

impl From<&Sample> for CarriedSample {
    /// The tokens of a finished sample.
    fn from(sample: &Sample) -> Self {
        Self {
            index: sample.index,
            attempt: sample.attempt,
            segments: sample.segments,
            response_ids: sample.response_ids.clone(),
            logprobs: sample.logprobs.clone(),
            version_spans: sample.version_spans.clone(),
            policy_version_min: sample.policy_version_min,
            policy_version_max: sample.policy_version_max,
            versions_reported: sample.versions_reported,
            finish_reason: Some(sample.finish_reason),
            spent: sample.spent,
        }
    }
}

/// The samples that a group keeps for its next dispatch.
#[derive(Debug, Clone, Default)]
pub struct CarriedGroup {
    /// Samples that are already graded.
    pub graded: Vec<Sample>,
    /// Samples that are still to be resumed or graded.
    pub samples: Vec<CarriedSample>,
}

impl CarriedGroup {
    /// The oldest policy version of the group's tokens.
    pub fn policy_version_min(&self) -> u64 {
        let graded = self.graded.iter().map(|sample| sample.policy_version_min);
        let others = self.samples.iter().map(|sample| sample.policy_version_min);
        graded.chain(others).min().unwrap_or(u64::MAX)
    }

    /// The group as the ledger stores it. Scores are left out, because they follow from the tokens.
    pub(crate) fn kept(&self, number: u64, parent: DispatchId) -> KeptGroup {
        let graded = self.graded.iter().map(CarriedSample::from);
        let mut samples: Vec<CarriedSample> = graded.chain(self.samples.iter().cloned()).collect();
        samples.sort_by_key(|sample| sample.index);
        KeptGroup { number, parent, samples }
    }

    /// Whether there are no tokens to continue from.
    pub fn is_empty(&self) -> bool {
        self.graded.is_empty() && self.samples.is_empty()
    }

    /// Tokens that need not be generated again.
    pub fn tokens(&self) -> u64 {
        let graded = self.graded.iter().map(|sample| sample.response_ids.len() as u64);
        let others = self.samples.iter().map(|sample| sample.response_ids.len() as u64);
        graded.chain(others).sum()
    }

    /// The tokens of the sample at `index`, if the sample is not graded.
    pub fn sample(&self, index: u32) -> Option<&CarriedSample> {
        self.samples.iter().find(|sample| sample.index == index)
    }
}
