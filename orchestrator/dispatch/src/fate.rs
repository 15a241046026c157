//! The id of a dispatch, and how a dispatch ends.

use std::collections::BTreeSet;
use std::fmt;

use parking_lot::Mutex;

/// The id of a dispatch, unique in the whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DispatchId(pub u64);

impl fmt::Display for DispatchId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

/// How a dispatch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The group was passed to the queue.
    Accepted,
    /// A gate rejected the complete group. The field is the gate's reason.
    Filtered(&'static str),
    /// The tokens of the group are too old for the staleness bound. The group may be incomplete.
    Stale,
    /// The early stop or an interrupt ended the group, or the group was beyond the target. The tokens of the
    /// group are discarded.
    Cancelled,
    /// The prompt is dispatched again, with this dispatch as parent. The cause is the early stop, an
    /// interrupt, the watchdog that gave the group up, or a resumption of the run that did not find the group
    /// in the queue.
    Requeued,
    /// The early stop or an interrupt ended the group. The next dispatch of the same prompt continues from the
    /// tokens of this group.
    Carried,
    /// The group is valid but beyond the target. The next step counts this group before all new groups.
    Held,
    /// The group could not be completed. The field is the reason.
    Failed(String),
}

/// Maximum number of different reasons that are kept. Gates have only a few dozen reasons. The limit bounds
/// the memory that the reasons of a damaged ledger file can take.
const REASONS_MAX: usize = 256;

static REASONS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// The static copy of a gate's reason, for [`Fate::Filtered`]. When 256 different reasons are kept, the result
/// for every further reason is "other".
pub fn interned_reason(reason: &str) -> &'static str {
    let mut reasons = REASONS.lock();
    if let Some(known) = reasons.get(reason) {
        return known;
    }
    if reasons.len() >= REASONS_MAX {
        return "other";
    }
    // The copy is never freed; the number of copies is bounded.
    let kept: &'static str = Box::leak(reason.to_owned().into_boxed_str());
    reasons.insert(kept);
    kept
}
