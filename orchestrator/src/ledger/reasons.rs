//! Reasons of filters, back from a file to the static words that the rollout counts by.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use rolldock_reward::{GateRule, Rejection};

/// Different reasons that are told apart. Gates have a few dozen; a file with more is no ledger of ours.
const REASONS_MAX: usize = 256;

static REASONS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// What a rejected group is counted by: the gate's reason, and its name where the reason could be several gates'.
pub(crate) fn counted_as(rejection: &Rejection) -> &'static str {
    let Rejection { gate, reason, .. } = rejection;
    match *reason {
        "outside" => interned(gate),
        reason if GateRule::NAMES.contains(&&**gate) => reason,
        reason => interned(&format!("{gate}: {reason}")),
    }
}

/// The one static copy of `reason`; "other" once there are too many different ones.
pub(super) fn interned(reason: &str) -> &'static str {
    let mut reasons = REASONS.lock();
    if let Some(known) = reasons.get(reason) {
        return known;
    }
    if reasons.len() >= REASONS_MAX {
        return "other";
    }
    // Kept for ever, which the bound makes affordable.
    let kept: &'static str = Box::leak(reason.to_owned().into_boxed_str());
    reasons.insert(kept);
    kept
}
