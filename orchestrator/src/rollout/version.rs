//! Policy versions of a sample's tokens.

use crate::engine::VersionSpan;

/// Oldest and newest policy version of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

/// What the client knows of a request's version: it may have changed while the request ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// When it was sent.
    pub(crate) sent: u64,
    /// When the answer was there.
    pub(crate) now: u64,
}

impl Stamp {
    /// From the spans that the engine reported. What the client knows stands in where there are none, or where a label
    /// carries no number (engines start as "default").
    pub(crate) fn of(self, spans: &[VersionSpan]) -> Versions {
        let client = Versions { min: self.sent, max: self.now };
        let of_span = |span: &VersionSpan| match span.number() {
            Some(version) => Versions { min: version, max: version },
            None => client,
        };
        let join =
            |all: Versions, one: Versions| Versions { min: all.min.min(one.min), max: all.max.max(one.max) };
        spans.iter().map(of_span).reduce(join).unwrap_or(client)
    }

    /// The spans of `tokens` tokens: the engine's, or all of them what the client sent them as.
    pub(crate) fn spans(self, reported: Vec<VersionSpan>, tokens: u32) -> Vec<VersionSpan> {
        if !reported.is_empty() {
            return reported;
        }
        vec![VersionSpan { version: self.sent.to_string().into(), start: 0, end: tokens }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(label: &str) -> Option<u64> {
        VersionSpan { version: label.into(), start: 0, end: 1 }.number()
    }

    #[test]
    fn labels_end_in_their_number() {
        assert_eq!(number("42"), Some(42));
        assert_eq!(number("step-7"), Some(7));
        assert_eq!(number("default"), None);
        assert_eq!(number(""), None);
        assert_eq!(number("99999999999999999999999"), None);
    }
}
