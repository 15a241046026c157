//! The beginning and the end of a step, and the groups that it accepts.

use rolldock_dispatch::bias::{Decision, GroupFigures};
use rolldock_dispatch::invariants::Violation;
use rolldock_dispatch::modes::{AtTarget, DecisionOrder};
use rolldock_dispatch::{Bucket, CarriedSample, Fate, StepEnd, Waste};

use super::{BegunStep, Board, Decided, Dispatch, EndedStep, Requeued, Slot};
use crate::rollout::dispatches::SentOut;
use crate::rollout::staleness::RETURNS_MAX;
use crate::rollout::{Group, OnStale, OnStop, invariants};
use rolldock_ledger::KeptGroup;

impl Board {
    /// Starts a step that cuts off running groups at its end. Held groups get their next dispatch
    /// immediately. Under `drop` and `requeue`, the dispatches of groups beyond the staleness bound end
    /// `stale`. Under `requeue` their prompts are dispatched again first, with the same numbers.
    pub(crate) fn begin_step(&mut self, step: u64, target: usize) {
        self.flow_until = None;
        self.begin(step, target);
    }

    /// Starts a flow from `step` to `last`: groups that still run at the end of a step continue in the next
    /// step.
    pub(crate) fn begin_flow(&mut self, step: u64, last: u64, target: usize) {
        self.flow_until = Some(last);
        self.begin(step, target);
    }

    fn begin(&mut self, step: u64, target: usize) {
        self.target = target;
        self.stopped = target == 0;
        self.source_exhausted = false;
        self.enter(step);
        // An earlier process may have ended after it accepted the last group of a step, but before it ended
        // the step.
        while !self.stopped && self.accepted_count >= self.target {
            match self.flow_until {
                Some(_) => self.reach_target(),
                None => self.stopped = true,
            }
        }
        for number in std::mem::take(&mut self.undecided) {
            let Some(Slot::Valid(mut group)) = self.slots.remove(&number) else { continue };
            // A held group was complete. Its age is not a failure of its prompt, so it does not count towards
            // the returns after which a prompt is given up.
            group.returns = 0;
            group.dispatch = self.dispatches.dispatch(SentOut {
                number,
                parent: Some(group.dispatch),
                prompt: &group.prompt,
                step: self.step,
                policy_version: group.policy_version_min(),
                first_attempt: earliest_attempt(&group),
                returns: group.returns,
                drawn_to: None,
                chance: group.inclusion.chance,
                brought: Some((Bucket::Held, group.tokens())),
            });
            self.keep_valid(number, group);
        }
        self.send_back_stale();
        self.decide();
        self.note_surplus();
    }

    /// Under `drop` and `requeue`, ends all valid groups that have become too old for this step. They end
    /// together, so that their prompts are generated again in parallel.
    fn send_back_stale(&mut self) {
        let rule = self.config.staleness;
        if !matches!(rule.on_stale, OnStale::Drop | OnStale::Requeue) {
            return;
        }
        let fresh_from = rule.fresh_from(self.claim_version());
        let is_stale = |number: &u64| match self.slots.get(number) {
            Some(Slot::Valid(group)) => group.policy_version_min() < fresh_from,
            _ => false,
        };
        let stale: Vec<u64> = self.undecided.iter().copied().filter(is_stale).collect();
        for number in stale {
            self.undecided.remove(&number);
            if let Some(Slot::Valid(group)) = self.slots.remove(&number) {
                self.settle(*group);
            }
        }
    }

    /// The first step after `step` that an earlier process has not ended.
    pub(crate) fn step_after(&self, step: u64) -> u64 {
        let mut next = step + 1;
        while self.ended_before.contains(&next) {
            next += 1;
        }
        next
    }

    fn enter(&mut self, step: u64) {
        self.step = step;
        let begun_before = self.begun_before.remove(&step);
        let BegunStep { accepted, sent_new, .. } = begun_before.unwrap_or_default();
        self.accepted_count = accepted;
        self.dispatched_new = sent_new;
        self.batches_opened = sent_new.div_ceil(self.config.gen_batch_size).max(1);
        self.ages.clear();
        self.chosen.begin_step();
        // If an earlier process began this step, it has aged the evidence already.
        if begun_before.is_none() {
            self.outlook.age();
        }
        self.dispatches.begin_step(step, self.target as u64, self.policy_version);
        self.note_meters();
        self.note_outlook();
    }

    /// Decides the groups whose turn has come, until the step reaches its target.
    pub(super) fn decide(&mut self) {
        while !self.stopped && self.accepted_count < self.target {
            let Some(number) = self.next_decidable() else { return };
            let Some(Slot::Valid(group)) = self.slots.remove(&number) else { return };
            self.undecided.remove(&number);
            self.settle(*group);
            if self.accepted_count == self.target {
                self.reach_target();
            }
        }
    }

    /// The version at which the step's groups will be claimed.
    pub(super) fn claim_version(&self) -> u64 {
        self.config.staleness.claim_version(self.step, self.policy_version)
    }

    /// Decides a group whose turn has come. It is accepted, unless it is beyond the staleness bound and
    /// `on_stale` drops the group or sends its prompt back.
    fn settle(&mut self, mut group: Group) {
        let rule = self.config.staleness;
        let claim_version = self.claim_version();
        group.staleness = claim_version.saturating_sub(group.policy_version_min());
        if group.staleness > rule.max {
            match rule.on_stale {
                OnStale::Drop => {
                    self.missed(&group);
                    self.dispatches.end(group.dispatch, Fate::Stale, Bucket::Wasted(Waste::Stale));
                    return;
                }
                OnStale::Requeue => return self.send_back(group),
                OnStale::MaskTokens => group.mask_before = rule.fresh_from(claim_version),
                OnStale::DeliverFlagged => {}
            }
            group.is_stale = true;
        }
        self.accept(group);
    }

    fn send_back(&mut self, group: Group) {
        // The next dispatch repeats the seeds with newer weights. New seeds would favour short answers.
        let first_attempt = earliest_attempt(&group);
        if group.returns >= RETURNS_MAX {
            self.missed(&group);
            self.dispatches.end(group.dispatch, Fate::Stale, Bucket::Wasted(Waste::Stale));
            return;
        }
        let Group { dispatch, number, prompt, returns, inclusion, .. } = group;
        self.dispatches.end_anew(dispatch, Fate::Stale, first_attempt, Waste::Stale);
        self.queue(number, Requeued::anew(dispatch, (prompt, inclusion), first_attempt, returns + 1));
    }

    /// Notes that a complete, valid group is not accepted.
    fn missed(&mut self, group: &Group) {
        self.dispatches.decided(group.number, Decision::Missed(group.into()));
    }

    fn accept(&mut self, mut group: Group) {
        let bucket = if group.is_stale { Bucket::Stale } else { Bucket::Accepted };
        self.dispatches.decided(group.number, Decision::Accepted(GroupFigures::from(&group)));
        self.dispatches.end(group.dispatch, Fate::Accepted, bucket);
        group.step = self.step;
        *self.ages.entry(group.staleness).or_default() += 1;
        self.accepted_count += 1;
        self.not_put += 1;
        self.decided.push_back(Decided::Group(Box::new(group)));
    }

    fn reach_target(&mut self) {
        match self.flow_until {
            // A flow ends with the data, and does not begin an empty step.
            Some(last) if self.step < last && !(self.out_of_prompts() && self.slots.is_empty()) => {
                self.release_set_aside(0);
                let record = self.record();
                self.decided.push_back(Decided::StepEnd(Box::new(record)));
                self.dispatches.end_step(self.step, StepEnd::Reached);
                self.enter(self.step_after(self.step));
                self.send_back_stale();
            }
            Some(_) => self.stopped = true,
            None => match self.config.early_stop.rule().at_target {
                AtTarget::AwaitAll => {}
                AtTarget::Stop => self.stopped = true,
            },
        }
    }

    /// Notes why a step outside a flow has ended. The bias reading includes the step's groups from now on, if
    /// all of them are decided.
    pub(crate) fn note_step_end(&mut self, step: u64, end: StepEnd) {
        self.dispatches.end_step(step, end);
    }

    /// The counts of a step that has ended. Tokens that are generated from now on count for the next step.
    pub(crate) fn record(&self) -> EndedStep {
        EndedStep {
            step: self.step,
            counts: self.counts(),
            totals: self.dispatches.step_totals().clone(),
            tokens: self.dispatches.tokens().begin_step(),
            tokens_run: self.dispatches.tokens().run(),
            ages: self.ages.clone(),
            history: self.history_counts(),
        }
    }

    /// Stops a step that has [finished](Self::is_finished). If the step has too few groups, it accepts groups
    /// that were set aside.
    pub(crate) fn finish(&mut self) {
        while !self.stopped && self.accepted_count < self.target {
            let Some((_, group)) = self.set_aside.pop_first() else { break };
            self.settle(*group);
        }
        self.stopped = true;
    }

    fn next_decidable(&self) -> Option<u64> {
        let first_valid = *self.undecided.first()?;
        match self.config.early_stop.rule().order {
            DecisionOrder::AsGroupsEnd => Some(first_valid),
            DecisionOrder::Dispatch => {
                let (first_undecided, _) = self.slots.first_key_value()?;
                (*first_undecided == first_valid).then_some(first_valid)
            }
        }
    }

    /// Ends the step. Valid groups beyond the target are held, or cancelled under `discard`. Groups that a
    /// dead worker left running are cut off.
    pub(crate) fn end_step(&mut self) -> Result<(), Violation> {
        self.stopped = true;
        self.release_set_aside(0);
        let numbers: Vec<u64> = self.slots.keys().copied().collect();
        for number in numbers {
            match self.slots.remove(&number) {
                Some(Slot::Running(dispatch, standing)) => {
                    self.outlook.leave(&standing);
                    self.cut_off_dead(dispatch);
                }
                Some(Slot::Valid(group)) if self.config.on_stop == OnStop::Discard => {
                    self.undecided.remove(&number);
                    let decision = self.cut_as(Some(GroupFigures::from(&*group)));
                    self.dispatches.decided(number, decision);
                    self.dispatches.end(group.dispatch, Fate::Cancelled, Bucket::Wasted(Waste::Cut));
                }
                Some(Slot::Valid(group)) => {
                    let held = (Bucket::Held, u64::MAX);
                    self.dispatches.end_with(group.dispatch, Fate::Held, held, || kept(&group));
                    self.slots.insert(number, Slot::Valid(group));
                }
                Some(slot @ Slot::Queued(_)) => {
                    self.slots.insert(number, slot);
                }
                None => {}
            }
        }
        self.note_meters();
        self.note_outlook();
        self.dispatches.check()?;
        invariants::settled(self.dispatches.step_totals(), &self.dispatches.tokens().step())
    }

    fn cut_off_dead(&mut self, dispatch: Dispatch) {
        self.running -= 1;
        self.cut_off(dispatch, None);
    }
}

/// The earliest attempt among the group's samples. The next dispatch of the prompt starts with this attempt.
fn earliest_attempt(group: &Group) -> u32 {
    group.samples.iter().map(|sample| sample.attempt).min().unwrap_or(0)
}

/// The tokens of a held group. A later process that continues the run grades them again.
fn kept(group: &Group) -> KeptGroup {
    let samples = group.samples.iter().map(CarriedSample::from).collect();
    KeptGroup { number: group.number, parent: group.dispatch, samples }
}
