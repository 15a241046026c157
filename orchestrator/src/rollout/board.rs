//! The state of a step: the prompts to send out, the running groups, the groups that have ended, and the rule
//! for the stop.
//!
//! The early-stopping coordinator, the dispatch queue and the ledger must change together. So they are one
//! plain data structure behind one lock, without await points, clock or randomness. Workers run concurrently,
//! but the board sees a sequence of calls to [`Board::next`] and [`Board::end`]. A property test can play any
//! such sequence.
//!
//! # How a step stops
//! - [`EarlyStop::First`]: a valid group is accepted when it ends. The step stops at the target.
//! - [`EarlyStop::Fifo`]: groups are decided in dispatch order. A valid group is accepted when every group
//!   before it has ended. The step stops when the target is reached. A short group never overtakes a group
//!   that was sent out before it, so acceptance does not depend on length.
//! - [`EarlyStop::Off`]: groups are decided in dispatch order. The step ends when every group that was sent
//!   out has ended.
//!
//! A group that is rejected only by gates that yield is set aside. A step that would otherwise end short of
//! its target accepts such groups at its end.
//!
//! # What passes from step to step
//! Held groups (valid, beyond the target) and requeued prompts keep their dispatch numbers. Kept numbers are
//! smaller than the numbers of new prompts, so the next step decides them first. A requeued prompt repeats
//! its draw: it has the same attempt number and so the same seed. A new draw would re-roll exactly the groups
//! that were too long to finish, and would bias the data towards short answers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rolldock_dispatch::bias::GroupFigures;
use rolldock_dispatch::history::{HistoryConfig, HistoryCounts};
use rolldock_dispatch::modes::StopUnlikely;
use rolldock_dispatch::{TokenTotals, Totals};
use serde::{Deserialize, Serialize};

use crate::rollout::carry::CarriedGroup;
use crate::rollout::feed::Drawn;
use crate::rollout::outlook::{Outlook, Standing};
use crate::rollout::staleness::Staleness;
use crate::rollout::{Dispatches, EarlyStop, Group, Launch, OnStop};
use rolldock_reward::Gates;

mod admission;
mod choice;
mod ends;
mod meters;
mod oldest;
mod prompts;
mod restore;
mod sending;
mod steps;
mod surplus;
mod unlikely;

/// The settings of the recipe that the board needs.
#[derive(Debug, Clone)]
pub(crate) struct BoardConfig {
    pub(crate) early_stop: EarlyStop,
    pub(crate) on_stop: OnStop,
    pub(crate) launch: Launch,
    /// The probability with which the launched groups reach the target (see `recipe::Rollout`).
    pub(crate) launch_confidence: f64,
    pub(crate) samples_per_prompt: u32,
    pub(crate) gen_batch_size: usize,
    pub(crate) max_gen_batches: usize,
    pub(crate) staleness: Staleness,
    pub(crate) ledger_entries_max: usize,
    pub(crate) gates: Arc<Gates>,
    /// Whether a share of the groups that are cut off is audited.
    pub(crate) audits: bool,
    /// The run's seed.
    pub(crate) seed: u64,
    /// What the run keeps of its prompts; `None` if it keeps nothing.
    pub(crate) history: Option<HistoryConfig>,
    /// When a group is stopped; `None` if no group is.
    pub(crate) stop_unlikely: Option<StopUnlikely>,
}

/// How a group ended, as its worker saw it.
#[derive(Debug)]
pub(crate) enum GroupEnd {
    /// All samples are finished and the gates pass the group.
    Valid(Box<Group>),
    /// All samples are finished, and a gate rejects the group for this reason. The figures are those of the
    /// samples.
    Filtered(&'static str, GroupFigures),
    /// All samples are finished. The group is rejected only by gates that yield when a step would be short.
    SetAside(Box<Group>),
    /// Cut off by the early stop or an interrupt.
    Cancelled,
    /// Cut off, with tokens from which its next dispatch continues.
    Carried(Box<CarriedGroup>),
    /// Given up because its tokens are too old.
    Stale,
    /// Given up by the watchdog.
    GivenUp,
    /// Stopped because it was unlikely to become valid. The figures are those of its finished samples.
    Unlikely(GroupFigures),
    /// Cut off because the step cannot need the group, and the next step could not use it.
    Surplus,
    /// The group cannot be completed, for this reason.
    Failed(String),
}

/// A decision of the board. The manager passes decisions to the consumer in order.
#[derive(Debug)]
pub(crate) enum Decided {
    /// A group was accepted.
    Group(Box<Group>),
    /// A step of a flow reached its target. The next step continues with the groups in flight.
    StepEnd(Box<EndedStep>),
}

/// A step that has ended.
#[derive(Debug, Clone)]
pub(crate) struct EndedStep {
    pub(crate) step: u64,
    pub(crate) counts: Counts,
    pub(crate) totals: Totals,
    pub(crate) tokens: TokenTotals,
    pub(crate) tokens_run: TokenTotals,
    pub(crate) ages: BTreeMap<u64, u64>,
    /// `None` if the recipe asks for no history.
    pub(crate) history: Option<HistoryCounts>,
}

#[derive(Debug)]
enum Slot {
    /// A prompt that waits for its next dispatch.
    Queued(Requeued),
    /// A running group, and what its finished samples show.
    Running(Dispatch, Standing),
    /// A valid group that is not decided yet.
    Valid(Box<Group>),
}

/// The state of a step, and the groups and prompts that pass from step to step.
#[derive(Debug)]
pub(crate) struct Board {
    config: BoardConfig,
    dispatches: Dispatches,
    step: u64,
    /// The last step of the flow that [`begin_flow`](Self::begin_flow) started; `None` outside a flow.
    flow_until: Option<u64>,
    target: usize,
    /// The policy version of the servers.
    policy_version: u64,
    /// Accepted groups of the run that the queue does not have yet.
    not_put: usize,
    next_number: u64,
    /// Undecided numbers of this step, in dispatch order.
    slots: BTreeMap<u64, Slot>,
    /// `queued` has the numbers of the `Queued` slots, and `undecided` has the numbers of the `Valid` slots.
    /// With these sets, it is cheap to find the first slot of a kind.
    queued: BTreeSet<u64>,
    undecided: BTreeSet<u64>,
    /// Groups that were set aside, by dispatch number. At most as many groups are kept as the step still
    /// needs.
    set_aside: BTreeMap<u64, Box<Group>>,
    running: usize,
    /// Prompts that were drawn but not dispatched yet. The prompts that a step leaves here are sent out first
    /// in the next step.
    fresh: VecDeque<Drawn>,
    source_exhausted: bool,
    /// New prompts dispatched in this step, and the generation batches opened for them.
    dispatched_new: usize,
    batches_opened: usize,
    accepted_count: usize,
    /// Steps that an earlier process has ended, although a lower step is still open.
    ended_before: BTreeSet<u64>,
    /// The steps that an earlier process began but did not end.
    begun_before: BTreeMap<u64, BegunStep>,
    /// The number of accepted groups of the step for each staleness at the claim.
    ages: BTreeMap<u64, u64>,
    decided: VecDeque<Decided>,
    stopped: bool,
    /// The first dispatch number that the step cannot need.
    surplus_from: u64,
    /// Whether a reward is in an outage, so that samples wait for it.
    reward_is_out: bool,
    /// Estimates how many of the running groups will be valid.
    outlook: Outlook,
    meters: Meters,
    /// The choices of the step.
    chosen: Chosen,
}

impl Board {
    pub(crate) fn new(config: BoardConfig) -> Self {
        let config_version = config.staleness.first_version;
        Self {
            outlook: Outlook::new(config.samples_per_prompt, config.launch_confidence, &config.gates),
            dispatches: Dispatches::new(config.ledger_entries_max, config.audits),
            config,
            step: 0,
            flow_until: None,
            target: 0,
            policy_version: config_version,
            not_put: 0,
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
            ended_before: BTreeSet::new(),
            begun_before: BTreeMap::new(),
            ages: BTreeMap::new(),
            decided: VecDeque::new(),
            stopped: true,
            surplus_from: NO_SURPLUS,
            reward_is_out: false,
            meters: Meters::default(),
            chosen: Chosen::default(),
        }
    }

    /// Stops the step before its target. Nothing more is sent out or accepted.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether running groups have to be cut off.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether no group is running and no group will be sent out.
    pub(crate) fn is_finished(&self) -> bool {
        if self.running > 0 {
            return false;
        }
        if self.stopped {
            return true;
        }
        self.queued.is_empty() && (self.out_of_prompts() || !self.wants_new())
    }

    /// Whether the data set has no more prompts and all drawn prompts were sent out.
    pub(crate) fn out_of_prompts(&self) -> bool {
        self.source_exhausted && self.fresh.is_empty()
    }

    /// Whether the step can only begin with a prompt that is not drawn yet: no prompt or group is left from earlier
    /// steps, and no earlier process sent out a prompt in the step.
    pub(crate) fn needs_prompt_for(&self, step: u64) -> bool {
        let is_blank = self.begun_before.get(&step).is_none_or(|begun| begun.is_blank);
        is_blank && self.slots.is_empty() && self.fresh.is_empty()
    }

    /// Takes the next decision that was not taken yet.
    pub(crate) fn take_decided(&mut self) -> Option<Decided> {
        self.decided.pop_front()
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            target: self.target,
            accepted: self.accepted_count,
            valid: self.accepted_count + self.undecided.len(),
            running: self.running,
            not_put: self.not_put,
            hold: self.hold(),
            queued: self.queued.len() + self.fresh.len(),
            batches_opened: self.batches_opened,
        }
    }

    pub(crate) fn dispatches(&self) -> &Dispatches {
        &self.dispatches
    }

    /// Notes the servers' new version. Returns the oldest version that is still fresh enough for running
    /// groups.
    pub(crate) fn set_policy_version(&mut self, version: u64) -> u64 {
        if version > self.policy_version {
            self.policy_version = version;
            self.dispatches.version(version);
        }
        self.fresh_from_at(self.policy_version)
    }

    /// The oldest version that is fresh enough for running groups when the servers have `version`.
    pub(crate) fn fresh_from_at(&self, version: u64) -> u64 {
        let rule = self.config.staleness;
        rule.fresh_from(rule.claim_version(self.step, version))
    }

    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    pub(crate) fn policy_version(&self) -> u64 {
        self.policy_version
    }

    /// Notes that one more accepted group is in the queue or will never be put into the queue.
    pub(crate) fn was_put(&mut self) {
        self.not_put = self.not_put.saturating_sub(1);
    }

    /// The rule by which groups are accepted now.
    pub(crate) fn early_stop(&self) -> EarlyStop {
        self.config.early_stop
    }

    /// Changes the rule by which groups are accepted from now on, as the bias guard asks.
    pub(crate) fn set_early_stop(&mut self, early_stop: EarlyStop) {
        self.config.early_stop = early_stop;
        self.dispatches.note_rule(early_stop);
    }
}

/// The number of groups in each state, for displays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Counts {
    /// Groups that the step must collect.
    pub target: usize,
    /// Accepted groups of the step.
    pub accepted: usize,
    /// Groups that are accepted, or valid and not yet decided.
    pub valid: usize,
    /// Groups in flight.
    pub running: usize,
    /// Accepted groups of the run that the queue does not have yet.
    pub not_put: usize,
    /// The reason why no new prompt is sent out now; `None` if new prompts may be sent out.
    pub hold: Option<Hold>,
    /// Prompts that are ready to be sent out.
    pub queued: usize,
    /// Generation batches opened in this step.
    pub batches_opened: usize,
}

use choice::Chosen;
use meters::Meters;
use prompts::Requeued;
use surplus::NO_SURPLUS;

pub use admission::Hold;
pub(crate) use prompts::{Dispatch, Heard, Next};
use restore::BegunStep;

pub use restore::Restored;

#[cfg(test)]
mod tests;
