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
    /// The group is complete and valid, but older than the staleness bound.
    Stale,
    /// The early stop or an interrupt ended the group. Its work is discarded.
    Cancelled,
    /// The early stop ended the group. Its prompt is dispatched again, with this dispatch as parent.
    Requeued,
    /// The early stop ended the group. The next dispatch of its prompt resumes from its tokens.
    Carried,
    /// The group is valid but beyond the target. It counts first in the next step.
    Held,
    /// The group could not be completed. The field is the reason.
    Failed(String),
}

/// Maximum number of different reasons that are kept. Gates have a few dozen reasons. A file with more
/// reasons than this is not a ledger.
const REASONS_MAX: usize = 256;

static REASONS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// The static copy of a filter's reason, for [`Fate::Filtered`]. After 256 different reasons, a new reason
/// becomes "other".
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
