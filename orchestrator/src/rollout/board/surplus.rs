//! The groups that a step cannot need.
//!
//! In dispatch order, a step accepts the shortest prefix of groups with enough valid ones. As soon as the groups up to
//! some number are certain to contain enough valid groups, no group after this number can be accepted in this step. The
//! next step could accept such a surplus group, but not if the group will be too old by then: in `sync` and
//! `one_step_off` each step has a new version. Such a group is cut off at once, and its prompt is dispatched again in
//! the next step. Otherwise the servers would finish a group that is thrown away, while the last needed samples run.
//!
//! A valid group is certain when it has ended, or when its finished samples differ and no other gate may reject it. A
//! certain group can still fail. Then a later group becomes needed again, and its prompt is dispatched again in this
//! step. Under `on_stop = "discard"` its prompt would be lost, and only those later groups would be left that had ended
//! before: the short ones. So nothing is cut off early there.

use super::{Board, Slot};
use crate::rollout::{OnStale, OnStop};

/// The value of [`Board::surplus_from`] if any group may be needed.
pub(super) const NO_SURPLUS: u64 = u64::MAX;

impl Board {
    /// The first dispatch number that this step cannot need; [`u64::MAX`] if there is none. No group with this number
    /// or a later one is sent out, and running ones are cut off.
    pub(crate) fn surplus_from(&self) -> u64 {
        self.surplus_from
    }

    /// Whether enough groups are certain to be valid, so that the step needs no new prompt.
    pub(super) fn has_surplus(&self) -> bool {
        self.surplus_from < NO_SURPLUS
    }

    /// Notes which groups are surplus. The cost is constant as long as too few groups are certain.
    pub(super) fn note_surplus(&mut self) {
        self.surplus_from = if self.discards_surplus() { self.first_surplus() } else { NO_SURPLUS };
    }

    /// Whether surplus groups would be discarded at the beginning of the next step.
    fn discards_surplus(&self) -> bool {
        let rule = self.config.staleness;
        let mode = self.config.early_stop;
        let next_claim = rule.claim_version(self.step + 1, self.policy_version);
        mode.keeps_dispatch_order()
            && !mode.awaits_all()
            && self.config.on_stop != OnStop::Discard
            && self.flow_until.is_none()
            && !self.stopped
            && matches!(rule.on_stale, OnStale::Drop | OnStale::Requeue)
            && self.policy_version < rule.fresh_from(next_claim)
    }

    fn first_surplus(&self) -> u64 {
        // A step that has not stopped needs at least one group.
        let needed = self.target - self.accepted_count;
        if self.undecided.len() + self.outlook.certain() < needed {
            return NO_SURPLUS;
        }
        let is_certain = |slot: &Slot| match slot {
            Slot::Queued(_) => false,
            Slot::Running(_, standing) => self.outlook.is_certain(standing),
            Slot::Valid(_) => true,
        };
        let certain = self.slots.iter().filter(|(_, slot)| is_certain(slot));
        certain.map(|(number, _)| number + 1).nth(needed - 1).unwrap_or(NO_SURPLUS)
    }
}
