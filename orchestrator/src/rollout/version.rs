//! Policy versions of a sample's tokens.

use crate::engine::SampleOutput;

/// Oldest and newest policy version of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl Versions {
    /// From the spans that the engine reported; the client's version stands in where there are none, or where a
    /// label carries no number (engines start as "default").
    pub(crate) fn of(output: &SampleOutput, client_version: u64) -> Self {
        let mut spans =
            output.version_spans.iter().map(|span| number(&span.version).unwrap_or(client_version));
        let Some(first) = spans.next() else { return Self { min: client_version, max: client_version } };
        spans.fold(Self { min: first, max: first }, |versions, version| Self {
            min: versions.min.min(version),
            max: versions.max.max(version),
        })
    }
}

/// The number at the end of a label: 42 of "42", "step-42" and "v42".
fn number(label: &str) -> Option<u64> {
    let digits_start = label.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    label[digits_start..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn labels_end_in_their_number() {
        assert_eq!(number("42"), Some(42));
        assert_eq!(number("step-7"), Some(7));
        assert_eq!(number("default"), None);
        assert_eq!(number(""), None);
        assert_eq!(number("99999999999999999999999"), None);
    }
}
