//! The invariants of scores, penalties and advantages, which debug assertions, property tests and simulations
//! check.

use crate::Score;

/// A broken invariant, with the numbers that break it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("broken invariant: {0}")]
pub struct Violation(pub String);

/// Whether a number stays finite in 32 bits, the width in which trainers keep rewards: 1e39 becomes infinite,
/// which makes every advantage of its group NaN.
pub fn is_finite_in_32_bits(number: f64) -> bool {
    (number as f32).is_finite()
}

/// Checks that a score and its parts are finite in 32 bits, and that `acc` is from 0 to 1.
pub fn score_is_sound(score: &Score) -> Result<(), Violation> {
    let parts_are_finite = score.parts.values().all(|part| is_finite_in_32_bits(*part));
    if is_finite_in_32_bits(score.score) && parts_are_finite && (0.0..=1.0).contains(&score.acc) {
        return Ok(());
    }
    Err(Violation(format!("score={} acc={} parts={:?}", score.score, score.acc, score.parts)))
}

/// Checks that a penalty is finite and not positive.
pub fn penalty_is_sound(penalty: f64) -> Result<(), Violation> {
    if is_finite_in_32_bits(penalty) && penalty <= 0.0 {
        return Ok(());
    }
    Err(Violation(format!("penalty={penalty}")))
}

/// Checks that the advantages of a group add up to 0, up to rounding.
pub fn advantages_cancel_out(advantages: &[f32]) -> Result<(), Violation> {
    let sum: f64 = advantages.iter().map(|advantage| f64::from(*advantage)).sum();
    let size: f64 = advantages.iter().map(|advantage| f64::from(advantage.abs())).sum();
    if sum.is_finite() && sum.abs() <= 1e-4 * size.max(1.0) {
        return Ok(());
    }
    Err(Violation(format!("advantages add up to {sum} of size {size}")))
}
