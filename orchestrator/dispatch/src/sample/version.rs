//! Policy versions of a sample's tokens.

use std::sync::Arc;

/// The tokens `start..end` of `response_ids`, which one weight version generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionSpan {
    /// The engine's label, as set by `/update_weight_version` ("default" until then).
    pub version: Arc<str>,
    /// First token.
    pub start: u32,
    /// One past the last token.
    pub end: u32,
}

impl VersionSpan {
    /// The policy version that the label names, by [`version_of_label`].
    pub fn number(&self) -> Option<u64> {
        version_of_label(&self.version)
    }
}

/// The policy version that an engine's label names: the number at its end. It is 42 for "42", "step-42" and
/// "v42". `None` if the label does not end in a number, or if the number does not fit 64 bits.
pub fn version_of_label(label: &str) -> Option<u64> {
    let digits_start = label.trim_end_matches(|character: char| character.is_ascii_digit()).len();
    label[digits_start..].parse().ok()
}

/// The client's policy version at the start and at the end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The version when the request was sent.
    pub sent: u64,
    /// The version when the answer arrived.
    pub now: u64,
    /// The newest version of the run that a server can have, or [`u64::MAX`] if that is not known. A label with a
    /// greater number is of another run.
    pub newest: u64,
}

impl Stamp {
    /// Oldest and newest version of a request whose answer reported `spans`. The client's versions are used
    /// if the engine reported no spans, for a label without a number (engines start with "default"), and for a label of
    /// another run.
    pub(super) fn range(self, spans: &[VersionSpan]) -> (u64, u64) {
        let client = (self.sent, self.now);
        let own = |span: &VersionSpan| span.number().filter(|version| *version <= self.newest);
        let of_span = |span: &VersionSpan| own(span).map_or(client, |version| (version, version));
        let join = |all: (u64, u64), one: (u64, u64)| (all.0.min(one.0), all.1.max(one.1));
        spans.iter().map(of_span).reduce(join).unwrap_or(client)
    }

    /// The spans of `tokens` tokens. If the engine reported none, the result is one span with the client's
    /// version at the time of the request.
    pub(super) fn spans(self, reported: Vec<VersionSpan>, tokens: u32) -> Vec<VersionSpan> {
        if !reported.is_empty() {
            return reported;
        }
        vec![VersionSpan { version: self.sent.to_string().into(), start: 0, end: tokens }]
    }
}
