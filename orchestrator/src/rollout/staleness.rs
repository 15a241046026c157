//! Determines how old a group may be when a trainer takes it, and how many groups may be under way so that
//! none of them becomes older.
//!
//! A trainer takes the groups of step `s` (from 1) when it has trained on all earlier steps. It announces a
//! version after every `steps_per_version` steps. So the version at the claim follows from the step, and a
//! group's staleness is already known when the group is accepted.
//!
//! Pacing applies this rule in advance. The `p`-th accepted group of the run is claimed at a version that
//! follows from `p`. In dispatch order, `p` is at most one more than the number of earlier groups that are
//! accepted or may still be accepted. A group is sent out only if the version at its claim would be within
//! the bound ([`Staleness::admitted`]).
//!
//! The filter rejects many of the running groups. If all of them counted, the servers would run empty before each
//! announcement. So running groups count as many as will be valid with a chance of 99.9 %
//! ([`Outlook::at_most`](super::outlook::Outlook::at_most)). If more of them are valid, the last ones become too old, and
//! `on_stale` decides about them.
//!
//! # Deliberately absent
//! The check at the claim is not here. The queue compares versions again when rows are claimed, because a
//! trainer may claim them at another version.

use rolldock_dispatch::modes::OnStale;

/// The maximum number of times that a prompt is sent out again because its group was too old or was given up.
pub(crate) const RETURNS_MAX: u32 = 3;

/// The staleness bound of a run, and the rules that follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staleness {
    /// Versions that the oldest token of a group may be behind when the group is claimed.
    pub max: u64,
    /// What happens to a group that exceeds the bound.
    pub on_stale: OnStale,
    /// Whether groups are sent out only as long as the trainer can take them within the bound.
    pub pacing: bool,
    /// Whether a trainer announces versions. If not, the version never changes and no group becomes old.
    pub is_announced: bool,
    /// The version at which the trainer claims the first step.
    pub first_version: u64,
    /// Steps that a trainer trains on before it announces the next version; at least 1.
    pub steps_per_version: u64,
}

impl Default for Staleness {
    fn default() -> Self {
        Self {
            max: 1,
            on_stale: OnStale::Requeue,
            pacing: true,
            is_announced: false,
            first_version: 0,
            steps_per_version: 1,
        }
    }
}

impl Staleness {
    /// The version at which a trainer will claim the groups of `step` (from 1), if the servers have version
    /// `current` now.
    pub fn claim_version(&self, step: u64, current: u64) -> u64 {
        if !self.is_announced {
            return current;
        }
        let announced_by_then = step.saturating_sub(1) / self.steps_per_version.max(1);
        current.max(self.first_version + announced_by_then)
    }

    /// The maximum number of groups of the run that may be accepted or under way at version `current`, so
    /// that none of them becomes too old. Each step has `target` groups.
    pub fn admitted(&self, current: u64, target: u64) -> u64 {
        if !self.is_announced || !self.pacing {
            return u64::MAX;
        }
        let versions = current.saturating_sub(self.first_version) + self.max + 1;
        versions.saturating_mul(self.steps_per_version.max(1)).saturating_mul(target)
    }

    /// The oldest version that is fresh enough for a claim at `version`.
    pub fn fresh_from(&self, version: u64) -> u64 {
        version.saturating_sub(self.max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// An admitted group is claimed within the bound. One more group would not be.
        #[test]
        fn what_is_admitted_is_exactly_what_stays_fresh(
            max in 0..5_u64, steps_per_version in 1..4_u64, first_version in 0..9_u64, behind in 0..9_u64, target in 1..9_u64,
        ) {
            let rule = Staleness { max, steps_per_version, first_version, is_announced: true, ..Staleness::default() };
            let current = first_version + behind;
            let staleness = |position: u64| rule.claim_version(position / target + 1, current) - current;
            let admitted = rule.admitted(current, target);
            prop_assert!(staleness(admitted - 1) <= max);
            prop_assert!(staleness(admitted) > max);
        }
    }

    #[test]
    fn without_a_trainer_nothing_gets_old() {
        let rule = Staleness { max: 0, ..Staleness::default() };
        assert_eq!((rule.claim_version(50, 3), rule.admitted(3, 8)), (3, u64::MAX));
    }
}
