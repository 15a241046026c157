//! The state of a step: what may be sent out next, what is running, what has ended, and when to stop.
//!
//! The early-stopping coordinator, the dispatch queue and the ledger change together or not at all, so they are
//! one plain data structure behind one lock: no await, no clock, no randomness. Whatever workers do at the same
//! time, a step is a sequence of calls to [`Board::next`] and [`Board::end`], and a property test can
//! play any such sequence.
//!
//! # How a step stops
//! - [`EarlyStop::First`]: a valid group is accepted when it ends; the step stops at the target.
//! - [`EarlyStop::Fifo`]: groups are decided in dispatch order. A valid group is accepted when every group before
//!   it has ended, and the step stops when the target is reached. What was sent out first is never overtaken
//!   by what happened to be short, so acceptance does not depend on length.
//! - [`EarlyStop::Off`]: decided in dispatch order too, but everything that was sent out is awaited.
//!
//! Groups that only yielding gates are against are set aside, and accepted at the end of a step that would be short.
//!
//! # What is handed from step to step
//! Held groups (valid, beyond the target) and requeued prompts keep their dispatch numbers, which are smaller
//! than those of new prompts: the next step decides them first. A requeued prompt replays its own draw (the same
//! attempt number, so the same seed): a fresh draw would re-roll exactly the groups that were too long to
//! finish, and bias the data to short answers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::data::Prompt;
use crate::recipe::{EarlyStop, Launch, OnStop};
use crate::rollout::accept_rate::AcceptRate;
use crate::rollout::invariants::Violation;
use crate::rollout::{DispatchId, Fate, Group, Ledger};

/// How many prompts are drawn from the data set ahead of their dispatch.
const DRAW_CHUNK: usize = 64;

/// The part of the recipe that the board needs.
#[derive(Debug, Clone)]
pub(crate) struct BoardConfig {
    pub(crate) early_stop: EarlyStop,
    pub(crate) on_stop: OnStop,
    pub(crate) launch: Launch,
    pub(crate) gen_batch_size: usize,
    pub(crate) max_gen_batches: usize,
    pub(crate) max_staleness: u64,
    pub(crate) ledger_entries_max: usize,
}

/// A prompt on its way to a worker.
#[derive(Debug, Clone)]
pub(crate) struct Dispatch {
    pub(crate) id: DispatchId,
    pub(crate) number: u64,
    pub(crate) prompt: Arc<Prompt>,
    /// Attempts that its parents have used up.
    pub(crate) first_attempt: u32,
}

/// What a worker does next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Run this group.
    Run(Dispatch),
    /// Nothing at present; ask again when the board has changed.
    Wait,
    /// Nothing more in this step.
    Done,
}

/// How a group ended, as its worker saw it.
#[derive(Debug)]
pub(crate) enum GroupEnd {
    /// All samples are there and the filter agrees.
    Valid(Box<Group>),
    /// All samples are there; a gate's reason against it.
    Filtered(&'static str),
    /// Filtered by gates that yield when the step would be short.
    SetAside(Box<Group>),
    /// Cut off by the early stop or an interrupt.
    Cancelled,
    /// It cannot be completed.
    Failed(String),
}

/// A prompt that waits for its next dispatch.
#[derive(Debug)]
struct Requeued {
    parent: DispatchId,
    prompt: Arc<Prompt>,
    first_attempt: u32,
}

#[derive(Debug)]
enum Slot {
    /// From an earlier step, not yet sent out in this one.
    Queued(Requeued),
    Running(Dispatch),
    /// Valid, not yet decided.
    Valid(Box<Group>),
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Board {
    config: BoardConfig,
    ledger: Ledger,
    step: u64,
    target: usize,
    next_number: u64,
    /// Undecided numbers of this step, in dispatch order.
    slots: BTreeMap<u64, Slot>,
    /// Numbers in `slots` that are `Queued` or `Valid`, so that finding the first one costs no scan.
    queued: BTreeSet<u64>,
    undecided: BTreeSet<u64>,
    /// Filtered groups that are better than none, by number; at most as many as the step may still need.
    set_aside: BTreeMap<u64, Box<Group>>,
    running: usize,
    /// Drawn from the data set, never dispatched; what a step leaves over starts the next one.
    fresh: VecDeque<Prompt>,
    source_exhausted: bool,
    /// New prompts dispatched in this step, and the generation batches opened for them.
    dispatched_new: usize,
    batches_opened: usize,
    accepted_count: usize,
    accepted: VecDeque<Group>,
    stopped: bool,
    accept_rate: AcceptRate,
}

impl Board {
    pub(crate) fn new(config: BoardConfig) -> Self {
        Self {
            ledger: Ledger::new(config.ledger_entries_max),
            config,
            step: 0,
            target: 0,
            next_number: 0,
            slots: BTreeMap::new(),
            queued: BTreeSet::new(),
            undecided: BTreeSet::new(),
            set_aside: BTreeMap::new(),
            running: 0,
            fresh: VecDeque::new(),
            source_exhausted: false,
            dispatched_new: 0,
            batches_opened: 0,
            accepted_count: 0,
            accepted: VecDeque::new(),
            stopped: true,
            accept_rate: AcceptRate::default(),
        }
    }

    /// Starts a step. Held groups get their next dispatch at once; those beyond the staleness bound end `stale`
    /// and their prompts are queued for a new attempt.
    pub(crate) fn begin_step(&mut self, step: u64, target: usize, policy_version: u64) {
        self.step = step;
        self.target = target;
        self.dispatched_new = 0;
        self.batches_opened = 1;
        self.accepted_count = 0;
        self.stopped = target == 0;
        self.source_exhausted = false;
        self.accept_rate.age();
        self.ledger.begin_step();
        for number in std::mem::take(&mut self.undecided) {
            let Some(Slot::Valid(mut group)) = self.slots.remove(&number) else { continue };
            let id = self.ledger.dispatch(number, Some(group.dispatch), group.prompt.uid, step);
            let staleness = policy_version.saturating_sub(group.policy_version_min());
            if staleness > self.config.max_staleness {
                self.ledger.end(id, Fate::Stale);
                let attempts = group.samples.iter().map(|sample| sample.attempt + 1).max().unwrap_or(1);
                self.queue(number, Requeued { parent: id, prompt: group.prompt, first_attempt: attempts });
                continue;
            }
            group.dispatch = id;
            self.keep_valid(number, group);
        }
        self.decide();
    }

    /// The next group for a worker with a free place.
    pub(crate) fn next(&mut self) -> Next {
        if self.stopped {
            return Next::Done;
        }
        if let Some(number) = self.queued.pop_first() {
            // Also under on-demand launch: in dispatch order everything else waits for it.
            let Some(Slot::Queued(requeued)) = self.slots.remove(&number) else { return Next::Wait };
            let Requeued { parent, prompt, first_attempt } = requeued;
            return Next::Run(self.send_out(number, Some(parent), prompt, first_attempt));
        }
        if !self.may_dispatch_new() {
            return Next::Wait;
        }
        let Some(prompt) = self.fresh.pop_front() else { return Next::Wait };
        self.dispatched_new += 1;
        self.batches_opened = self.dispatched_new.div_ceil(self.config.gen_batch_size);
        let number = self.next_number;
        self.next_number += 1;
        Next::Run(self.send_out(number, None, Arc::new(prompt), 0))
    }

    fn send_out(
        &mut self,
        number: u64,
        parent: Option<DispatchId>,
        prompt: Arc<Prompt>,
        first_attempt: u32,
    ) -> Dispatch {
        let id = self.ledger.dispatch(number, parent, prompt.uid, self.step);
        let dispatch = Dispatch { id, number, prompt, first_attempt };
        self.slots.insert(number, Slot::Running(dispatch.clone()));
        self.running += 1;
        dispatch
    }

    /// Writes down how a dispatch ended. One that is not running any more is left as it is.
    pub(crate) fn end(&mut self, id: DispatchId, number: u64, end: GroupEnd) {
        match self.slots.get(&number) {
            Some(Slot::Running(dispatch)) if dispatch.id == id => {}
            _ => return,
        }
        let Some(Slot::Running(dispatch)) = self.slots.remove(&number) else { return };
        self.running -= 1;
        match end {
            GroupEnd::Filtered(reason) => {
                self.accept_rate.record(false);
                self.ledger.end(id, Fate::Filtered(reason));
            }
            GroupEnd::SetAside(group) => {
                self.accept_rate.record(false);
                self.set_aside.insert(number, group);
            }
            GroupEnd::Failed(reason) => {
                self.ledger.end(id, Fate::Failed(reason));
            }
            GroupEnd::Valid(group) => {
                self.accept_rate.record(true);
                self.keep_valid(number, group);
            }
            GroupEnd::Cancelled => self.cut_off(dispatch),
        }
        self.decide();
        self.let_go_of_aside(self.target - self.accepted_count);
    }

    /// Keeps the first so many of the groups that were set aside; the others are filtered for good.
    fn let_go_of_aside(&mut self, kept: usize) {
        while self.set_aside.len() > kept {
            let Some((_, group)) = self.set_aside.pop_last() else { return };
            let reason = group.set_aside.as_ref().map_or("set_aside", |rejection| rejection.reason);
            self.ledger.end(group.dispatch, Fate::Filtered(reason));
        }
    }

    fn cut_off(&mut self, dispatch: Dispatch) {
        if self.config.on_stop == OnStop::Discard {
            self.ledger.end(dispatch.id, Fate::Cancelled);
            return;
        }
        self.ledger.end(dispatch.id, Fate::Requeued);
        let Dispatch { id, number, prompt, first_attempt } = dispatch;
        self.queue(number, Requeued { parent: id, prompt, first_attempt });
    }

    fn queue(&mut self, number: u64, requeued: Requeued) {
        self.slots.insert(number, Slot::Queued(requeued));
        self.queued.insert(number);
    }

    fn keep_valid(&mut self, number: u64, group: Box<Group>) {
        self.slots.insert(number, Slot::Valid(group));
        self.undecided.insert(number);
    }

    /// Accepts what can be accepted and stops the step at its target.
    fn decide(&mut self) {
        while !self.stopped && self.accepted_count < self.target {
            let Some(number) = self.next_decidable() else { return };
            let Some(Slot::Valid(group)) = self.slots.remove(&number) else { return };
            self.undecided.remove(&number);
            self.accept(*group);
            if self.accepted_count == self.target && self.config.early_stop != EarlyStop::Off {
                self.stopped = true;
            }
        }
    }

    fn accept(&mut self, group: Group) {
        self.ledger.end(group.dispatch, Fate::Accepted);
        self.accepted_count += 1;
        self.accepted.push_back(group);
    }

    /// Ends a step that has [finished](Self::is_finished), with what was set aside where it would be short.
    pub(crate) fn finish(&mut self) {
        while !self.stopped && self.accepted_count < self.target {
            let Some((_, group)) = self.set_aside.pop_first() else { break };
            self.accept(*group);
        }
        self.stopped = true;
    }

    fn next_decidable(&self) -> Option<u64> {
        let first_valid = *self.undecided.first()?;
        if self.config.early_stop == EarlyStop::First {
            return Some(first_valid);
        }
        let (first_undecided, _) = self.slots.first_key_value()?;
        (*first_undecided == first_valid).then_some(first_valid)
    }

    /// Whether the groups under way are expected to miss the target.
    fn needs_more(&self) -> bool {
        let sure = (self.accepted_count + self.undecided.len()) as f64;
        sure + self.accept_rate.expected_at_least(self.running) < self.target as f64
    }

    /// Whether the step's generation batches allow one more new prompt.
    fn may_dispatch_new(&self) -> bool {
        if self.dispatched_new >= self.config.max_gen_batches * self.config.gen_batch_size {
            return false;
        }
        if self.config.launch == Launch::OnDemand {
            return self.needs_more();
        }
        if self.dispatched_new < self.batches_opened * self.config.gen_batch_size {
            return true;
        }
        // The next batch is opened only if the ones before have certainly fallen short: a batch for one missing
        // group is mostly thrown away. Who wants to launch ahead of that has `Launch::OnDemand`.
        let under_way = self.running + self.queued.len();
        let short = self.accepted_count + self.undecided.len() + under_way < self.target;
        // A synchronous batch is awaited whole.
        short && (self.config.early_stop != EarlyStop::Off || under_way == 0)
    }

    /// How many prompts the manager should draw now.
    pub(crate) fn draw_wanted(&self) -> usize {
        if self.stopped || self.source_exhausted || !self.may_dispatch_new() {
            return 0;
        }
        if self.fresh.len() > DRAW_CHUNK / 2 {
            return 0;
        }
        let allowed = self.config.max_gen_batches * self.config.gen_batch_size - self.dispatched_new;
        (DRAW_CHUNK - self.fresh.len()).min(allowed.saturating_sub(self.fresh.len()))
    }

    /// Takes drawn prompts; fewer than were wanted means that the data set has no more.
    pub(crate) fn add_prompts(&mut self, wanted: usize, prompts: Vec<Prompt>) {
        self.source_exhausted = prompts.len() < wanted;
        self.fresh.extend(prompts);
    }

    /// Ends the step before its target: nothing more is sent out or accepted.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether running groups have to be cut off.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether nothing is running and nothing more will.
    pub(crate) fn is_finished(&self) -> bool {
        if self.running > 0 {
            return false;
        }
        if self.stopped {
            return true;
        }
        self.queued.is_empty() && (self.out_of_prompts() || !self.may_dispatch_new())
    }

    /// Whether the data set has nothing more to send out.
    pub(crate) fn out_of_prompts(&self) -> bool {
        self.source_exhausted && self.fresh.is_empty()
    }

    /// Ends the step: what is valid beyond the target is held (or goes with the rest under `discard`), and what
    /// is still running, which only a dead worker leaves behind, is cut off.
    pub(crate) fn end_step(&mut self) -> Result<(), Violation> {
        self.stopped = true;
        self.let_go_of_aside(0);
        let numbers: Vec<u64> = self.slots.keys().copied().collect();
        for number in numbers {
            match self.slots.remove(&number) {
                Some(Slot::Running(dispatch)) => {
                    self.running -= 1;
                    self.cut_off(dispatch);
                }
                Some(Slot::Valid(group)) => {
                    if self.config.on_stop == OnStop::Discard {
                        self.undecided.remove(&number);
                        self.ledger.end(group.dispatch, Fate::Cancelled);
                    } else {
                        self.ledger.end(group.dispatch, Fate::Held);
                        self.slots.insert(number, Slot::Valid(group));
                    }
                }
                Some(slot @ Slot::Queued(_)) => {
                    self.slots.insert(number, slot);
                }
                None => {}
            }
        }
        self.ledger.check()?;
        super::invariants::settled(self.ledger.step_totals())
    }

    /// The next accepted group that has not been handed on.
    pub(crate) fn take_accepted(&mut self) -> Option<Group> {
        self.accepted.pop_front()
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            target: self.target,
            accepted: self.accepted_count,
            valid: self.accepted_count + self.undecided.len(),
            running: self.running,
            queued: self.queued.len() + self.fresh.len(),
            batches_opened: self.batches_opened,
        }
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Where in dispatch order the step waits: the first number that is undecided and not valid yet.
    pub(crate) fn waits_for(&self) -> Option<(DispatchId, Arc<Prompt>)> {
        self.slots.values().find_map(|slot| match slot {
            Slot::Running(dispatch) => Some((dispatch.id, Arc::clone(&dispatch.prompt))),
            _ => None,
        })
    }
}

/// Numbers for people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Groups the step must collect.
    pub target: usize,
    /// Groups handed on.
    pub accepted: usize,
    /// Accepted, or valid and waiting for groups before them.
    pub valid: usize,
    /// Groups in flight.
    pub running: usize,
    /// Prompts that are ready to be sent out.
    pub queued: usize,
    /// Generation batches opened in this step.
    pub batches_opened: usize,
}

#[cfg(test)]
mod tests;
