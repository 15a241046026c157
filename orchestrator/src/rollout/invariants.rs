//! Functions that check the invariants of a rollout. [`rolldock_dispatch::invariants`] checks the invariants
//! of dispatches.

use std::collections::BTreeSet;

use rolldock_dispatch::invariants::Violation;
use rolldock_dispatch::{TokenTotals, Totals};

/// Checks that no dispatch and no token is in flight at the end of a step.
pub fn settled(totals: &Totals, tokens: &TokenTotals) -> Result<(), Violation> {
    if (totals.in_flight, tokens.in_flight) == (0, 0) {
        return Ok(());
    }
    let (dispatches, tokens) = (totals.in_flight, tokens.in_flight);
    Err(Violation(format!("in_flight={dispatches} with tokens={tokens} at the end of a step")))
}

/// Checks that the counted tokens are exactly the tokens that engines report as generated. Only simulated
/// engines count exactly the tokens of this run.
pub fn tokens_counted(tokens: &TokenTotals, by_engines: u64) -> Result<(), Violation> {
    if tokens.generated == by_engines && tokens.estimated == 0 {
        return Ok(());
    }
    let (counted, estimated) = (tokens.generated, tokens.estimated);
    Err(Violation(format!("tokens counted={counted} (estimated={estimated}), by the engines={by_engines}")))
}

/// Checks that a step accepts at most its target, and that a run accepts no dispatch number twice.
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

/// Checks the fifo rule: groups are accepted in dispatch order.
pub fn in_dispatch_order(numbers: &[u64]) -> Result<(), Violation> {
    if numbers.is_sorted() {
        return Ok(());
    }
    Err(Violation(format!("accepted out of dispatch order: {numbers:?}")))
}

/// Checks that every permit was returned at the end of a step.
pub fn no_permit_out(in_use: u64) -> Result<(), Violation> {
    if in_use == 0 {
        return Ok(());
    }
    Err(Violation(format!("permits in use={in_use} at the end of a step")))
}
