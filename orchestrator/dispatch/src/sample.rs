//! The tokens that a sample has so far, over all of its requests.
//!
//! A dispatch that is cut off keeps its finished samples, and the tokens of its unfinished samples. The next
//! dispatch with the same number continues from these tokens, on any server. The prompt of a continuing
//! request is the old prompt followed by the tokens so far, and the token limit is reduced by these tokens. A
//! group that is cut off loses no work, and short responses gain no advantage over long ones.
//!
//! # Invariants
//! - A sample has one log-probability for each token (or none at all, from a server that gives none), and its
//!   version spans cover all tokens.

mod version;

use std::time::Duration;

pub use version::{Stamp, VersionSpan, version_of_label};

/// Why a sample ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// An end-of-sequence or stop token ended it; this token is the last one in `response_ids`.
    Stop,
    /// The token limit ended it.
    Length,
}

impl FinishReason {
    /// The engine's name of the reason, as stored in the queue.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// How the time of a sample was spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Time spent waiting for a permit.
    pub permit: Duration,
    /// Time on the engine, over all attempts, including the engine's queue.
    pub engine: Duration,
    /// Time in the scorer.
    pub reward: Duration,
}

/// The output of one request for one sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PartialOutput {
    /// Token ids so far.
    pub response_ids: Vec<u32>,
    /// Log-probability of each token of `response_ids`.
    pub logprobs: Vec<f32>,
    /// Spans that cover all tokens. It is empty if the versions are unknown.
    pub version_spans: Vec<VersionSpan>,
    /// Why the sample ended. It is `None` if the request was cut off before the sample ended.
    pub finish_reason: Option<FinishReason>,
}

/// Tokens of a sample, finished or not.
#[derive(Debug, Clone, PartialEq)]
pub struct CarriedSample {
    /// The index of the sample in its group.
    pub index: u32,
    /// The number of the attempt, whose seed was used to draw the tokens.
    pub attempt: u32,
    /// Number of requests that generated the tokens.
    pub segments: u32,
    /// Token ids.
    pub response_ids: Vec<u32>,
    /// One log-probability per token. It is empty if the server gives none.
    pub logprobs: Vec<f32>,
    /// Spans that cover all tokens.
    pub version_spans: Vec<VersionSpan>,
    /// Oldest policy version of its tokens.
    pub policy_version_min: u64,
    /// Newest policy version of its tokens.
    pub policy_version_max: u64,
    /// Whether the engine reported all of the versions.
    pub versions_reported: bool,
    /// Why it ended; `None` if it is unfinished.
    pub finish_reason: Option<FinishReason>,
    /// How its time was spent so far.
    pub spent: Spent,
}

impl CarriedSample {
    /// A sample without tokens.
    pub fn new(index: u32, attempt: u32) -> Self {
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

    /// Tokens so far.
    pub fn tokens(&self) -> u32 {
        self.response_ids.len() as u32
    }

    /// Adds the output of a request, and returns whether it could be added. Tokens without log-probabilities
    /// cannot be joined to tokens that have them. Tokens without log-probabilities are accepted only as the
    /// first segment of a sample, and only if the sample ends with this segment.
    pub fn extend(&mut self, part: PartialOutput, stamp: Stamp) -> bool {
        let PartialOutput { response_ids, logprobs, version_spans, finish_reason } = part;
        let is_aligned = logprobs.len() == response_ids.len();
        if response_ids.is_empty() || !is_aligned && (self.segments > 0 || finish_reason.is_none()) {
            return false;
        }
        let tokens = response_ids.len() as u32;
        self.cover(stamp, &version_spans);
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

    /// Adds a last segment without tokens. The response consists of the earlier segments.
    pub fn end_without_tokens(&mut self, finish_reason: FinishReason, stamp: Stamp) {
        self.cover(stamp, &[]);
        self.finish_reason = Some(finish_reason);
        self.segments += 1;
    }

    /// Widens the sample's range of versions so that it includes the versions of a request.
    fn cover(&mut self, stamp: Stamp, spans: &[VersionSpan]) {
        let (oldest, newest) = stamp.range(spans);
        self.policy_version_min = self.policy_version_min.min(oldest);
        self.policy_version_max = self.policy_version_max.max(newest);
    }
}

/// Adds a span, moved by `offset` tokens. If it has the version of the last span, the last span is extended.
fn push_span(spans: &mut Vec<VersionSpan>, span: VersionSpan, offset: u32) {
    let VersionSpan { version, start, end } = span;
    let (start, end) = (start + offset, end + offset);
    match spans.last_mut() {
        Some(last) if last.version == version && last.end == start => last.end = end,
        _ => spans.push(VersionSpan { version, start, end }),
    }
}

#[cfg(test)]
mod tests;
