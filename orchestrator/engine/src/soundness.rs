//! Checks that every answer has to pass, of real and of simulated servers.

use rolldock_loadbalancer::control::logprob_is_sound;

use super::VersionSpan;

/// Whether a log-probability shows that the engine's numbers are broken.
pub(super) fn is_poisoned(logprob: f32) -> bool {
    !logprob_is_sound(f64::from(logprob))
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
