//! Whether another prompt may be sent out, and how many should be drawn.

use rolldock_dispatch::modes::AtTarget;
use serde::{Deserialize, Serialize};

use super::Board;
use crate::rollout::Launch;
use crate::rollout::feed::Drawn;

/// How many prompts are drawn from the data set ahead of their dispatch.
const DRAW_CHUNK: usize = 64;

/// What new prompts wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// The trainer's next version: one more group would be too old when the trainer takes it.
    Trainer,
    /// Room in the queue for accepted groups.
    Queue,
    /// A reward that is out. Prompts that were sent out before wait for it too.
    Reward,
}

impl Hold {
    /// All of them.
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
    /// Notes whether samples wait for a reward that is out: nothing is sent out meanwhile.
    pub(crate) fn set_reward_is_out(&mut self, is_out: bool) {
        self.reward_is_out = is_out;
    }

    /// Whether the groups under way are expected to miss the target.
    fn needs_more(&self) -> bool {
        let sure = (self.accepted_count + self.undecided.len()) as f64;
        sure + self.accept_rate.expected_at_least(self.running) < self.target as f64
    }

    /// Whether one more new prompt is allowed.
    pub(super) fn may_dispatch_new(&self) -> bool {
        self.wants_new() && self.hold().is_none()
    }

    /// Whether one more new prompt is of use, now or when the hold is over.
    pub(super) fn wants_new(&self) -> bool {
        if self.dispatched_new >= self.config.max_gen_batches * self.config.gen_batch_size {
            return false;
        }
        match self.flow_until {
            Some(last) => self.flow_needs_more(last),
            None => self.batches_allow(),
        }
    }

    /// Whether the step's generation batches allow one more new prompt.
    fn batches_allow(&self) -> bool {
        if self.config.launch == Launch::OnDemand {
            return self.needs_more();
        }
        if self.dispatched_new < self.batches_opened * self.config.gen_batch_size {
            return true;
        }
        // The next batch is opened only if the ones before have certainly fallen short: a batch for one
        // missing group is mostly thrown away. `Launch::OnDemand` launches ahead of that.
        let under_way = self.running + self.queued.len();
        let short = self.accepted_count + self.undecided.len() + under_way < self.target;
        short
            && match self.config.early_stop.rule().at_target {
                AtTarget::Stop => true,
                // Every group of a batch is awaited before the next batch.
                AtTarget::AwaitAll => under_way == 0,
            }
    }

    /// Whether the groups under way are expected to be too few for the steps up to `last`.
    fn flow_needs_more(&self, last: u64) -> bool {
        let steps_left = last.saturating_sub(self.step).saturating_add(1);
        let wanted = steps_left as f64 * self.target as f64;
        let sure = (self.accepted_count + self.undecided.len()) as f64;
        sure + self.accept_rate.expected_at_least(self.running + self.queued.len()) < wanted
    }

    /// The number of groups that may still be accepted.
    fn under_way(&self) -> usize {
        self.running + self.queued.len() + self.undecided.len()
    }

    /// What new prompts wait for before they are sent out; `None` if they wait for nothing. Only a flow waits
    /// for the trainer or the queue.
    pub(crate) fn hold(&self) -> Option<Hold> {
        if self.reward_is_out {
            return Some(Hold::Reward);
        }
        self.flow_until?;
        let target = self.target as u64;
        let place = self.step.saturating_sub(1) * target + (self.accepted_count + self.under_way()) as u64;
        if place >= self.config.staleness.admitted(self.policy_version, target) {
            return Some(Hold::Trainer);
        }
        // The queue may have groups that the trainer has not taken yet. Groups that are not in the queue yet
        // are bounded here.
        let ahead_max = target.saturating_mul(self.config.staleness.max + 1);
        ((self.not_put + self.under_way()) as u64 >= ahead_max).then_some(Hold::Queue)
    }

    /// What the whole step or flow waits for; `None` while a group runs.
    pub(crate) fn hold_of_all(&self) -> Option<Hold> {
        self.hold().filter(|_| self.running == 0)
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
    pub(crate) fn add_prompts(&mut self, wanted: usize, prompts: Vec<Drawn>) {
        self.source_exhausted = prompts.len() < wanted;
        self.fresh.extend(prompts);
    }
}
