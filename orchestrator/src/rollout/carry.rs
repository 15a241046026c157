//! What a group that was cut off keeps: its finished samples, and the tokens of the others.
//!
//! The next dispatch of its number goes on from there, on any server: the prompt and the tokens so far are the new
//! request's prompt, and the budget is what is left of it. So a group is cut off without being thrown away, and long
//! responses are not overtaken by short ones.
//!
//! # Invariants
//! - A sample has one log-probability for each token (or none at all, from a server that gives none), and its version
//!   spans cover all tokens.
//! - A sample is finished or goes on, never both: a group has each index once.

use crate::engine::{FinishReason, PartialOutput, VersionSpan};
use crate::ledger::KeptGroup;
use crate::rollout::version::Stamp;
use crate::rollout::{DispatchId, Sample, Spent};

/// Tokens of a sample, finished or not.
#[derive(Debug, Clone, PartialEq)]
pub struct CarriedSample {
    /// Place in the group.
    pub index: u32,
    /// Whose draw it is.
    pub attempt: u32,
    /// Requests that the tokens came in.
    pub segments: u32,
    /// Token ids.
    pub response_ids: Vec<u32>,
    /// One per token, or none.
    pub logprobs: Vec<f32>,
    /// Cover all tokens.
    pub version_spans: Vec<VersionSpan>,
    /// Oldest policy version of its tokens.
    pub policy_version_min: u64,
    /// Newest policy version of its tokens.
    pub policy_version_max: u64,
    /// Whether the engine reported all of the versions.
    pub versions_reported: bool,
    /// Why it ended; absent if it goes on.
    pub finish_reason: Option<FinishReason>,
    /// Where its time went so far.
    pub spent: Spent,
}

impl CarriedSample {
    /// A sample of which there is nothing yet.
    pub(crate) fn new(index: u32, attempt: u32) -> Self {
        Self {
            index,
            attempt,
            segments: 0,
            response_ids: Vec::new(),
            logprobs: Vec::new(),
            version_spans: Vec::new(),
            policy_version_min: u64::MAX,
            policy_version_max: 0,
            versions_reported: true,
            finish_reason: None,
            spent: Spent::default(),
        }
    }

    /// The tokens of a finished sample.
    pub(crate) fn of(sample: &Sample) -> Self {
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

    /// Tokens so far.
    pub(crate) fn tokens(&self) -> u32 {
        self.response_ids.len() as u32
    }

    /// Adds what a request gave. Tokens without log-probabilities cannot be lined up with others that have them, so
    /// that they are only taken as a first segment that is also the last; says whether they were taken.
    pub(crate) fn extend(&mut self, part: PartialOutput, stamp: Stamp) -> bool {
        let PartialOutput { response_ids, logprobs, version_spans, finish_reason } = part;
        let is_aligned = logprobs.len() == response_ids.len();
        if response_ids.is_empty() || !is_aligned && (self.segments > 0 || finish_reason.is_none()) {
            return false;
        }
        let tokens = response_ids.len() as u32;
        let versions = stamp.of(&version_spans);
        self.policy_version_min = self.policy_version_min.min(versions.min);
        self.policy_version_max = self.policy_version_max.max(versions.max);
        self.versions_reported &= !version_spans.is_empty();
        for span in stamp.spans(version_spans, tokens) {
            push_span(&mut self.version_spans, span, self.response_ids.len() as u32);
        }
        if self.segments == 0 {
            (self.response_ids, self.logprobs) = (response_ids, logprobs);
        } else {
            self.response_ids.extend(response_ids);
            self.logprobs.extend(logprobs);
        }
        self.segments += 1;
        self.finish_reason = finish_reason;
        true
    }
}

/// Adds a span of tokens from `offset` on; one of the same version as the last one makes that longer.
fn push_span(spans: &mut Vec<VersionSpan>, span: VersionSpan, offset: u32) {
    let VersionSpan { version, start, end } = span;
    let (start, end) = (start + offset, end + offset);
    match spans.last_mut() {
        Some(last) if last.version == version && last.end == start => last.end = end,
        _ => spans.push(VersionSpan { version, start, end }),
    }
}

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub struct CarriedGroup {
    /// Graded already.
    pub graded: Vec<Sample>,
    /// To be resumed, or only to be graded.
    pub samples: Vec<CarriedSample>,
}

impl CarriedGroup {
    /// Oldest policy version of its tokens.
    pub fn policy_version_min(&self) -> u64 {
        let graded = self.graded.iter().map(|sample| sample.policy_version_min);
        let others = self.samples.iter().map(|sample| sample.policy_version_min);
        graded.chain(others).min().unwrap_or(u64::MAX)
    }

    /// As it is written down: scores are not, they follow from the tokens.
    pub(crate) fn kept(&self, number: u64, parent: DispatchId) -> KeptGroup {
        let graded = self.graded.iter().map(CarriedSample::of);
        let mut samples: Vec<CarriedSample> = graded.chain(self.samples.iter().cloned()).collect();
        samples.sort_by_key(|sample| sample.index);
        KeptGroup { number, parent, samples }
    }

    /// Whether there is nothing to go on from.
    pub fn is_empty(&self) -> bool {
        self.graded.is_empty() && self.samples.is_empty()
    }

    /// Tokens that need not be generated again.
    pub fn tokens(&self) -> u64 {
        let graded = self.graded.iter().map(|sample| sample.response_ids.len() as u64);
        let others = self.samples.iter().map(|sample| sample.response_ids.len() as u64);
        graded.chain(others).sum()
    }

    /// What it has of the sample at `index` that is not graded.
    pub fn sample(&self, index: u32) -> Option<&CarriedSample> {
        self.samples.iter().find(|sample| sample.index == index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(tokens: u32, version: Option<&str>) -> PartialOutput {
        let span = |version: &str| VersionSpan { version: version.into(), start: 0, end: tokens };
        PartialOutput {
            response_ids: (0..tokens).collect(),
            logprobs: vec![-0.5; tokens as usize],
            version_spans: version.map(span).into_iter().collect(),
            finish_reason: None,
        }
    }

    #[test]
    fn segments_line_up_with_their_versions() {
        let mut sample = CarriedSample::new(3, 0);
        assert!(sample.extend(part(4, Some("step-2")), Stamp { sent: 2, now: 2 }));
        assert!(sample.extend(part(2, Some("step-2")), Stamp { sent: 2, now: 2 }));
        assert!(sample.extend(part(3, Some("step-5")), Stamp { sent: 5, now: 5 }));
        let spans: Vec<(&str, u32, u32)> =
            sample.version_spans.iter().map(|span| (&*span.version, span.start, span.end)).collect();
        assert_eq!(spans, [("step-2", 0, 6), ("step-5", 6, 9)]);
        assert_eq!((sample.segments, sample.tokens(), sample.logprobs.len()), (3, 9, 9));
        assert_eq!((sample.policy_version_min, sample.policy_version_max), (2, 5));
        assert!(sample.versions_reported);
    }

    #[test]
    fn what_the_engine_does_not_report_is_stamped_by_the_client_and_marked() {
        let mut sample = CarriedSample::new(0, 0);
        assert!(sample.extend(part(4, None), Stamp { sent: 6, now: 7 }));
        assert_eq!(sample.version_spans, [VersionSpan { version: "6".into(), start: 0, end: 4 }]);
        assert_eq!((sample.policy_version_min, sample.policy_version_max), (6, 7));
        assert!(!sample.versions_reported);
    }

    #[test]
    fn tokens_that_cannot_be_lined_up_are_not_taken() {
        let mut sample = CarriedSample::new(0, 0);
        let bare = PartialOutput { logprobs: Vec::new(), ..part(4, None) };
        let stamp = Stamp { sent: 0, now: 0 };
        assert!(!sample.extend(bare.clone(), stamp), "it goes on, and the rest may have log-probabilities");
        assert!(!sample.extend(part(0, None), stamp));
        assert!(sample.extend(PartialOutput { finish_reason: Some(FinishReason::Stop), ..bare }, stamp));
        assert_eq!((sample.tokens(), sample.segments), (4, 1));
    }
}
