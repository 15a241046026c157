//! Conditions that hold for dispatches at every moment.

use crate::Totals;

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
        return Err(Violation(format!("dispatched is not in flight + fates: {totals:?}")));
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
