//! The reasons under which rejected groups are counted.

use rolldock_dispatch::interned_reason;
use rolldock_reward::{GateRule, Rejection};

/// The reason under which a rejection is counted. If several gates may have the reason, it starts with the
/// gate's name.
pub(crate) fn counted_as(rejection: &Rejection) -> &'static str {
    let Rejection { gate, reason, .. } = rejection;
    match *reason {
        "outside" => interned_reason(gate),
        reason if GateRule::NAMES.contains(&&**gate) => reason,
        reason => interned_reason(&format!("{gate}: {reason}")),
    }
}
