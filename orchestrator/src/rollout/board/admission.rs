//! Whether another prompt may be sent out, and how many should be drawn.

use rolldock_dispatch::modes::AtTarget;
use serde::{Deserialize, Serialize};

use super::Board;
use crate::rollout::feed::Drawn;
use crate::rollout::{Launch, OnStale};

/// How many prompts are drawn from the data set ahead of their dispatch.
const DRAW_CHUNK: usize = 64;

/// The reason why no new prompt is sent out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// New prompts wait for the trainer's next version. A further group would be too old when the trainer
    /// takes it.
    Trainer,
    /// New prompts wait until the queue has room for accepted groups.
    Queue,
    /// New prompts wait for the end of a reward's outage. Requeued prompts wait too.
    Reward,
}

impl Hold {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::Trainer, Self::Queue, Self::Reward];

    /// The name in metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trainer => "trainer",
            Self::Queue => "queue",
            Self::Reward => "reward",
        }
    }
}

impl Board {
    /// Notes whether a reward is in an outage. Nothing is sent out during an outage.
    pub(crate) fn set_reward_is_out(&mut self, is_out: bool) {
        self.reward_is_out = is_out;
    }

    /// Whether the groups under way are expected to miss the target.
    fn needs_more(&self) -> bool {
        self.misses(self.target)
    }

    /// Whether fewer than `wanted` groups are expected from the groups that are accepted, valid or under way.
    fn misses(&self, wanted: usize) -> bool {
        let sure = self.accepted_count + self.undecided.len();
        !self.outlook.reaches(wanted.saturating_sub(sure), self.queued.len())
    }

    /// Whether one more new prompt is allowed.
    pub(super) fn may_dispatch_new(&self) -> bool {
        self.wants_new() && self.hold().is_none()
    }

    /// Whether one more new prompt is needed, now or after the hold.
    pub(super) fn wants_new(&self) -> bool {
        if self.dispatched_new >= self.config.max_gen_batches * self.config.gen_batch_size {
            return false;
        }
        match self.flow_until {
            Some(last) => self.flow_needs_more(last),
            None => !self.has_surplus() && self.batches_allow(),
        }
    }

    /// Whether the step or flow needs new groups, now or after a hold, and the data has prompts for them.
    pub(crate) fn has_use_for_new(&self) -> bool {
        !self.stopped && !self.out_of_prompts() && self.wants_new()
    }

    /// Whether new groups are sent out now as soon as there are places for them.
    pub(crate) fn sends_new(&self) -> bool {
        self.has_use_for_new() && self.hold().is_none()
    }

    /// Whether the step's generation batches allow one more new prompt.
    fn batches_allow(&self) -> bool {
        if self.config.launch == Launch::OnDemand {
            return self.needs_more();
        }
        // A generation batch has spare prompts because their results are not foreseen. Prompts that are chosen
        // by their results in earlier epochs need no spare ones.
        if self.chooses_next() && !self.needs_more() {
            return false;
        }
        if self.dispatched_new < self.batches_opened * self.config.gen_batch_size {
            return true;
        }
        // The next batch is opened only when the earlier batches cannot reach the target any more. If a batch
        // is opened for one missing group, most of the batch is discarded. `Launch::OnDemand` has no such
        // condition.
        let under_way = self.running + self.queued.len();
        let short = self.accepted_count + self.undecided.len() + under_way < self.target;
        short
            && match self.config.early_stop.rule().at_target {
                AtTarget::Stop => true,
                // The next batch waits until every group of this batch has ended.
                AtTarget::AwaitAll => under_way == 0,
            }
    }

    /// Whether the groups under way are expected to be too few for the steps up to `last`.
    fn flow_needs_more(&self, last: u64) -> bool {
        let steps_left = last.saturating_sub(self.step).saturating_add(1);
        self.misses(usize::try_from(steps_left).unwrap_or(usize::MAX).saturating_mul(self.target))
    }

    /// The number of groups without a decision.
    fn under_way(&self) -> usize {
        self.running + self.queued.len() + self.undecided.len()
    }

    /// The reason why no new prompt is sent out now, or `None`. Only a flow waits for the trainer or the
    /// queue.
    pub(crate) fn hold(&self) -> Option<Hold> {
        if self.reward_is_out {
            return Some(Hold::Reward);
        }
        self.flow_until?;
        if self.sends_stale() {
            return Some(Hold::Trainer);
        }
        if self.admits() == 0 {
            return Some(Hold::Trainer);
        }
        // The queue bounds the number of groups that it holds. This check bounds the number of groups that
        // are not in the queue yet.
        let ahead_max = (self.target as u64).saturating_mul(self.config.staleness.max + 1);
        ((self.not_put + self.under_way()) as u64 >= ahead_max).then_some(Hold::Queue)
    }

    /// The number of further groups of the flow that would be fresh enough when the trainer takes them, if no version
    /// is announced until then.
    pub(super) fn admits(&self) -> u64 {
        let target = self.target as u64;
        let ahead = self.accepted_count + self.undecided.len() + self.outlook.at_most(self.queued.len());
        let place = self.step.saturating_sub(1) * target + ahead as u64;
        self.config.staleness.admitted(self.policy_version, target).saturating_sub(place)
    }

    /// Whether a group that is sent out now would be too old from its first token on, and would not be delivered. This
    /// happens without pacing, when generation is further ahead of the trainer than the bound allows.
    pub(super) fn sends_stale(&self) -> bool {
        self.flow_until.is_some()
            && matches!(self.config.staleness.on_stale, OnStale::Drop | OnStale::Requeue)
            && self.fresh_from_at(self.policy_version) > self.policy_version
    }

    /// The reason why the whole step or flow waits; `None` while a group runs.
    pub(crate) fn hold_of_all(&self) -> Option<Hold> {
        self.hold().filter(|_| self.running == 0)
    }

    /// How many prompts the manager should draw now. Prompts are drawn during a hold too, so that a flow ends with its
    /// data, and does not wait for a version first.
    pub(crate) fn draw_wanted(&self) -> usize {
        if self.stopped || self.source_exhausted || !self.wants_new() {
            return 0;
        }
        if self.fresh.len() > DRAW_CHUNK / 2 {
            return 0;
        }
        let allowed = self.config.max_gen_batches * self.config.gen_batch_size - self.dispatched_new;
        (DRAW_CHUNK - self.fresh.len()).min(allowed.saturating_sub(self.fresh.len()))
    }

    /// Takes the drawn prompts. Fewer than `wanted` prompts mean that the data set is exhausted.
    pub(crate) fn add_prompts(&mut self, wanted: usize, prompts: Vec<Drawn>) {
        self.source_exhausted = prompts.len() < wanted;
        self.fresh.extend(prompts);
    }
}
