//! Checks that every answer has to pass, of real and of simulated servers.

use super::VersionSpan;

/// The value that engines write instead of minus infinity and NaN. No sampled token has it.
const POISON_LOGPROB: f32 = -9999.0;

/// Whether a log-probability shows that the engine's numbers are broken.
pub(super) fn is_poisoned(logprob: f32) -> bool {
    !logprob.is_finite() || logprob == POISON_LOGPROB
}

/// Whether the spans cover `tokens` tokens in order, without gap or overlap. Having no spans at all counts as
/// covering them.
pub(super) fn spans_cover(spans: &[VersionSpan], tokens: usize) -> bool {
    let mut covered = 0;
    for span in spans {
        if span.start != covered || span.end <= span.start {
            return false;
        }
        covered = span.end;
    }
    spans.is_empty() || covered as usize == tokens
}
