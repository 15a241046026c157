//! How dispatches end, and which of their prompts are sent out again.

use std::sync::Arc;

use rolldock_dispatch::bias::{BiasEvent, Decision, GroupFigures};
use rolldock_dispatch::modes::DecisionOrder;
use rolldock_dispatch::{Bucket, DispatchId, Fate, Waste};

use super::unlikely::UNLIKELY;
use super::{Board, Dispatch, GroupEnd, Requeued, Slot};
use crate::rollout::carry::CarriedGroup;
use crate::rollout::outlook::Standing;
use crate::rollout::reasons::counted_as;
use crate::rollout::staleness::RETURNS_MAX;
use crate::rollout::{Group, OnStale, OnStop};

impl Board {
    /// Notes how a dispatch ended. A dispatch that has already ended is ignored.
    pub(crate) fn end(&mut self, id: DispatchId, number: u64, end: GroupEnd) {
        match self.slots.get(&number) {
            Some(Slot::Running(dispatch, _)) if dispatch.id == id => {}
            _ => return,
        }
        let Some(Slot::Running(dispatch, standing)) = self.slots.remove(&number) else { return };
        self.running -= 1;
        self.outlook.leave(&standing);
        match end {
            GroupEnd::Filtered(reason, figures) => {
                self.judged(&dispatch, &standing, (figures, false));
                self.dispatches.decided(number, Decision::Filtered);
                self.dispatches.end(id, Fate::Filtered(reason), Bucket::Filtered);
            }
            GroupEnd::SetAside(mut group) => {
                group.inclusion = dispatch.inclusion;
                self.judged(&dispatch, &standing, ((&*group).into(), false));
                self.set_aside.insert(number, group);
            }
            GroupEnd::Unlikely(figures) => {
                self.remember_stopped(&dispatch, figures);
                self.dispatches.decided(number, Decision::Stopped);
                self.dispatches.end(id, Fate::Filtered(UNLIKELY), Bucket::Filtered);
            }
            GroupEnd::Failed(reason) => {
                self.dispatches.decided(number, Decision::Failed);
                self.dispatches.end(id, Fate::Failed(reason), Bucket::Wasted(Waste::FailedAttempt));
            }
            GroupEnd::Valid(mut group) => {
                group.inclusion = dispatch.inclusion;
                self.judged(&dispatch, &standing, ((&*group).into(), true));
                self.keep_valid(number, group);
            }
            GroupEnd::Cancelled | GroupEnd::Surplus => self.cut_off(dispatch, None),
            GroupEnd::Carried(carried) => self.cut_off(dispatch, Some(carried)),
            GroupEnd::Stale => self.retire(dispatch),
            GroupEnd::GivenUp => self.give_up(dispatch),
        }
        self.decide();
        self.release_set_aside(self.target - self.accepted_count);
        self.note_surplus();
        self.note_meters();
    }

    /// Counts the gates' decision about a group, unless an earlier process has counted it.
    fn judged(
        &mut self,
        dispatch: &Dispatch,
        standing: &Standing,
        (figures, is_valid): (GroupFigures, bool),
    ) {
        if !dispatch.was_judged {
            self.outlook.judged(standing, is_valid);
            self.remember(dispatch, figures, is_valid);
        }
    }

    /// Keeps the first `kept` of the groups that were set aside. The other groups are filtered.
    pub(super) fn release_set_aside(&mut self, kept: usize) {
        while self.set_aside.len() > kept {
            let Some((_, group)) = self.set_aside.pop_last() else { return };
            let reason = group.set_aside.as_ref().map_or("set_aside", counted_as);
            self.dispatches.decided(group.number, Decision::Filtered);
            self.dispatches.end(group.dispatch, Fate::Filtered(reason), Bucket::Filtered);
        }
    }

    pub(super) fn cut_off(&mut self, dispatch: Dispatch, carried: Option<Box<CarriedGroup>>) {
        if self.config.on_stop == OnStop::Discard {
            self.dispatches.decided(dispatch.number, self.cut_as(None));
            self.dispatches.end(dispatch.id, Fate::Cancelled, Bucket::Wasted(Waste::Cut));
            return;
        }
        let Dispatch { id, number, first_attempt, returns, was_judged, inclusion, .. } = dispatch;
        let prompt = dispatch.prompt;
        match &carried {
            Some(carried) => {
                let kept = (Bucket::Carried, carried.tokens());
                self.dispatches.end_with(id, Fate::Carried, kept, || carried.kept(number, id))
            }
            None => match &dispatch.carried {
                Some(carried) => self.dispatches.end_requeued(id, carried.tokens()),
                // If the ledger has tokens of an earlier dispatch, they were too old for this dispatch.
                None => self.dispatches.end_anew(id, Fate::Requeued, first_attempt, Waste::Cut),
            },
        };
        // If the dispatch has no new tokens, the next dispatch continues from the tokens with which this
        // dispatch began.
        let carried = carried.map(Arc::from).or(dispatch.carried);
        let (parent, kept_in) = (id, Bucket::Carried);
        let requeued =
            Requeued { parent, prompt, first_attempt, carried, kept_in, returns, was_judged, inclusion };
        self.queue(number, requeued);
    }

    /// The decision that the bias meter records for a group that a cut discards. `complete` has the figures
    /// of the group if it was complete.
    pub(super) fn cut_as(&self, complete: Option<GroupFigures>) -> Decision {
        match (self.config.early_stop.rule().order, complete) {
            (DecisionOrder::Dispatch, _) => Decision::PassedOver,
            (DecisionOrder::AsGroupsEnd, Some(group)) => Decision::Missed(group),
            (DecisionOrder::AsGroupsEnd, None) => Decision::Cut,
        }
    }

    /// Whether it would help the bias meter to let a group run on after a cut.
    pub(crate) fn is_audited(&self) -> bool {
        self.config.on_stop == OnStop::Discard && self.cut_as(None) == Decision::Cut
    }

    /// Notes that a group runs on after its cut. [`Self::audit_ended`] reports its end.
    pub(crate) fn audit_began(&mut self, number: u64) {
        self.dispatches.note_bias(number, BiasEvent::AuditBegan);
    }

    /// Notes the end of a group that ran on after its cut.
    pub(crate) fn audit_ended(&mut self, number: u64, end: &GroupEnd) {
        let event = match end {
            GroupEnd::Valid(group) => {
                BiasEvent::Decided(Decision::Audited(Some(GroupFigures::from(&**group))))
            }
            GroupEnd::Filtered(..) | GroupEnd::SetAside(_) => BiasEvent::Decided(Decision::Audited(None)),
            GroupEnd::Cancelled
            | GroupEnd::Carried(_)
            | GroupEnd::Stale
            | GroupEnd::GivenUp
            | GroupEnd::Surplus
            | GroupEnd::Unlikely(_)
            | GroupEnd::Failed(_) => BiasEvent::AuditLost,
        };
        self.dispatches.note_bias(number, event);
    }

    /// Ends a dispatch whose tokens are too old. Under `requeue`, its prompt repeats its draw with newer
    /// weights, up to `RETURNS_MAX` times.
    fn retire(&mut self, dispatch: Dispatch) {
        let Dispatch { id, number, prompt, first_attempt, returns, inclusion, .. } = dispatch;
        if self.config.staleness.on_stale != OnStale::Requeue || returns >= RETURNS_MAX {
            self.dispatches.decided(number, Decision::Failed);
            self.dispatches.end(id, Fate::Stale, Bucket::Wasted(Waste::Stale));
        } else {
            self.dispatches.end_anew(id, Fate::Stale, first_attempt, Waste::Stale);
            self.queue(number, Requeued::anew(id, (prompt, inclusion), first_attempt, returns + 1));
        }
    }

    /// Ends a dispatch that the watchdog has given up. Its prompt is sent out again, up to `RETURNS_MAX`
    /// times.
    fn give_up(&mut self, dispatch: Dispatch) {
        let Dispatch { id, number, prompt, first_attempt, returns, inclusion, .. } = dispatch;
        if returns >= RETURNS_MAX {
            let fate = Fate::Failed(format!("given up times={}", returns + 1));
            self.dispatches.decided(number, Decision::Failed);
            self.dispatches.end(id, fate, Bucket::Wasted(Waste::FailedAttempt));
            return;
        }
        self.dispatches.end_anew(id, Fate::Requeued, first_attempt, Waste::FailedAttempt);
        self.queue(number, Requeued::anew(id, (prompt, inclusion), first_attempt, returns + 1));
    }

    pub(super) fn queue(&mut self, number: u64, requeued: Requeued) {
        self.slots.insert(number, Slot::Queued(requeued));
        self.queued.insert(number);
    }

    pub(super) fn keep_valid(&mut self, number: u64, group: Box<Group>) {
        self.slots.insert(number, Slot::Valid(group));
        self.undecided.insert(number);
    }
}
