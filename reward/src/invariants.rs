//! What must hold of scores and advantages; used by debug assertions and property tests.

use crate::Score;

/// A broken invariant, in words that name the numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("broken invariant: {0}")]
pub struct Violation(pub String);

/// A score is a number, and a right answer is worth more than a wrong one.
pub fn score_is_sound(score: &Score) -> Result<(), Violation> {
    if score.score.is_finite() && (0.0..=1.0).contains(&score.acc) {
        return Ok(());
    }
    Err(Violation(format!("score={} acc={}", score.score, score.acc)))
}

/// Relative to their group, advantages are numbers that add up to nothing, to rounding.
pub fn advantages_cancel_out(advantages: &[f32]) -> Result<(), Violation> {
    let sum: f64 = advantages.iter().map(|advantage| f64::from(*advantage)).sum();
    let size: f64 = advantages.iter().map(|advantage| f64::from(advantage.abs())).sum();
    if sum.is_finite() && sum.abs() <= 1e-4 * size.max(1.0) {
        return Ok(());
    }
    Err(Violation(format!("advantages add up to {sum} of size {size}")))
}
