//! What a rejected group is counted by.

use rolldock_dispatch::interned_reason;
use rolldock_reward::{GateRule, Rejection};

/// The gate's reason, with the gate's name where several gates may have the reason.
pub(crate) fn counted_as(rejection: &Rejection) -> &'static str {
    let Rejection { gate, reason, .. } = rejection;
    match *reason {
        "outside" => interned_reason(gate),
        reason if GateRule::NAMES.contains(&&**gate) => reason,
        reason => interned_reason(&format!("{gate}: {reason}")),
    }
}
