//! Conditions that hold for dispatches and their tokens at every moment.

use crate::{TokenTotals, Totals};

/// A broken invariant, as a message that names the numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("broken invariant: {0}")]
pub struct Violation(pub String);

/// Checks conservation: every dispatch is in flight or has exactly one fate. `open` is the number of
/// dispatches in flight.
///
/// # Errors
/// A [`Violation`] that names the counts that do not add up.
pub fn conservation(totals: &Totals, open: usize) -> Result<(), Violation> {
    if totals.dispatched != totals.in_flight + totals.ended() {
        return Err(Violation(format!("dispatched differs from in flight + fates: {totals:?}")));
    }
    if totals.in_flight != open as u64 {
        return Err(Violation(format!("in_flight={} but open dispatches={open}", totals.in_flight)));
    }
    let by_reason: u64 = totals.filtered_by_reason.values().sum();
    if by_reason != totals.filtered {
        return Err(Violation(format!("filtered={} but its reasons add up to {by_reason}", totals.filtered)));
    }
    Ok(())
}

/// Checks conservation of response tokens: every token that was generated, or left by an earlier step, is in
/// exactly one bucket.
///
/// # Errors
/// A [`Violation`] with all buckets.
pub fn token_conservation(tokens: &TokenTotals) -> Result<(), Violation> {
    if tokens.generated + tokens.earlier == tokens.total() && tokens.estimated <= tokens.generated {
        return Ok(());
    }
    Err(Violation(format!("generated and earlier tokens differ from the sum of the buckets: {tokens:?}")))
}
