//! What must hold of a rollout at every moment, in one place: `debug_assert!`s, property tests and the seeded
//! simulation all call these functions.

use std::collections::BTreeSet;

use crate::rollout::Totals;

/// A broken invariant, in words that name the numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("broken invariant: {0}")]
pub struct Violation(pub String);

/// Conservation: every dispatch is in flight or has exactly one fate.
pub fn conservation(totals: &Totals, open: usize) -> Result<(), Violation> {
    let ended = totals.accepted
        + totals.filtered
        + totals.stale
        + totals.cancelled
        + totals.requeued
        + totals.carried
        + totals.held
        + totals.failed;
    if totals.dispatched != totals.in_flight + ended {
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

/// At the end of a step nothing is in flight.
pub fn settled(totals: &Totals) -> Result<(), Violation> {
    if totals.in_flight == 0 {
        return Ok(());
    }
    Err(Violation(format!("in_flight={} at the end of a step", totals.in_flight)))
}

/// A step hands on at most its target, and no dispatch number twice over a run.
pub fn accepted_once(
    numbers: &[u64],
    target: usize,
    seen_before: &mut BTreeSet<u64>,
) -> Result<(), Violation> {
    if numbers.len() > target {
        return Err(Violation(format!("accepted={} groups of target={target}", numbers.len())));
    }
    for number in numbers {
        if !seen_before.insert(*number) {
            return Err(Violation(format!("dispatch number={number} was accepted twice")));
        }
    }
    Ok(())
}

/// The fifo rule: groups are handed on in dispatch order.
pub fn in_dispatch_order(numbers: &[u64]) -> Result<(), Violation> {
    if numbers.is_sorted() {
        return Ok(());
    }
    Err(Violation(format!("accepted out of dispatch order: {numbers:?}")))
}

/// After a step every permit is back.
pub fn no_permit_out(in_use: u64) -> Result<(), Violation> {
    if in_use == 0 {
        return Ok(());
    }
    Err(Violation(format!("permits in use={in_use} at the end of a step")))
}
