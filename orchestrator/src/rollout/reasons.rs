//! The reasons under which rejected groups are counted.

use rolldock_dispatch::interned_reason;
use rolldock_reward::{GateRule, Rejection};

/// The reason under which a rejection is counted. It starts with the gate's name if several gates can give
/// the same reason.
pub(crate) fn counted_as(rejection: &Rejection) -> &'static str {
    let Rejection { gate, reason, .. } = rejection;
    match *reason {
        "outside" => interned_reason(gate),
        reason if GateRule::NAMES.contains(&&**gate) => reason,
        reason => interned_reason(&format!("{gate}: {reason}")),
    }
}
