//! Prompts that are sent out, and what their finished samples show.

use std::sync::Arc;

use rolldock_dispatch::{DispatchId, Inclusion};

use super::{Board, Dispatch, Heard, Next, Requeued, Slot};
use crate::rollout::Sample;
use crate::rollout::dispatches::SentOut;
use crate::rollout::feed::Drawn;

impl Board {
    /// The next group for a worker with a free place.
    pub(crate) fn next(&mut self) -> Next {
        if self.stopped {
            return Next::Done;
        }
        if self.reward_is_out || self.sends_stale() {
            return Next::Wait;
        }
        if self.queued.first().is_some_and(|first| *first >= self.surplus_from()) {
            return Next::Wait;
        }
        if let Some(number) = self.queued.pop_first() {
            // A queued prompt needs no check by `may_dispatch_new`: every later group waits for its decision.
            let Some(Slot::Queued(requeued)) = self.slots.remove(&number) else { return Next::Wait };
            return Next::Run(self.send_out_again(number, requeued));
        }
        if !self.may_dispatch_new() {
            return Next::Wait;
        }
        let Some((Drawn { prompt, drawn_to, counts }, chance)) = self.next_fresh() else { return Next::Wait };
        self.dispatched_new += 1;
        self.batches_opened = self.dispatched_new.div_ceil(self.config.gen_batch_size);
        let number = self.next_number;
        self.next_number += 1;
        let policy_version = self.policy_version;
        let id = self.dispatches.dispatch(SentOut {
            number,
            parent: None,
            prompt: &prompt,
            step: self.step,
            policy_version,
            first_attempt: 0,
            returns: 0,
            drawn_to,
            chance,
            brought: None,
        });
        self.note_drawn(counts);
        let prompt = Arc::new(prompt);
        Next::Run(self.send_out(Dispatch {
            id,
            number,
            prompt,
            first_attempt: 0,
            policy_version,
            carried: None,
            returns: 0,
            was_judged: false,
            inclusion: Inclusion::chosen(chance),
        }))
    }

    fn send_out_again(&mut self, number: u64, requeued: Requeued) -> Dispatch {
        let Requeued { parent, prompt, first_attempt, carried, kept_in, returns, was_judged, inclusion } =
            requeued;
        // If a carried token is too old, all carried tokens are dropped and the group starts again.
        let fresh_from = self.config.staleness.fresh_from(self.claim_version());
        let tokens = carried.as_ref().map_or(0, |group| group.tokens());
        let carried = carried.filter(|group| group.policy_version_min() >= fresh_from);
        if carried.is_none() {
            self.dispatches.tokens().kept_in_vain(kept_in, tokens);
        }
        let brought = carried.is_some().then_some((kept_in, tokens));
        let oldest = carried.as_ref().map_or(u64::MAX, |group| group.policy_version_min());
        let policy_version = self.policy_version.min(oldest);
        let id = self.dispatches.dispatch(SentOut {
            number,
            parent: Some(parent),
            prompt: &prompt,
            step: self.step,
            policy_version,
            first_attempt,
            returns,
            drawn_to: None,
            chance: inclusion.chance,
            brought,
        });
        // Without its carried tokens, the group is generated and judged anew.
        let was_judged = was_judged && carried.is_some();
        self.send_out(Dispatch {
            id,
            number,
            prompt,
            first_attempt,
            policy_version,
            carried,
            returns,
            was_judged,
            inclusion,
        })
    }

    fn send_out(&mut self, dispatch: Dispatch) -> Dispatch {
        let graded = dispatch.carried.iter().flat_map(|carried| &carried.graded);
        let graded = graded.map(|sample| (sample.acc, sample.reward));
        let standing = self.outlook.enter(&self.config.gates, graded);
        self.slots.insert(dispatch.number, Slot::Running(dispatch.clone(), standing));
        self.running += 1;
        dispatch
    }

    /// Notes samples of a running group that have finished. The cost is constant for each sample, except for the sample
    /// that proves its group valid when enough groups are certain. If unlikely groups are stopped, a sample of a group
    /// that is not proven costs as many steps as a group has samples.
    pub(crate) fn finished(&mut self, id: DispatchId, number: u64, samples: &[Sample]) -> Heard {
        let were_needed = self.wants_new();
        let Some(Slot::Running(dispatch, standing)) = self.slots.get_mut(&number) else {
            return Heard::default();
        };
        if dispatch.id != id {
            return Heard::default();
        }
        let was_certain = self.outlook.is_certain(standing);
        for sample in samples {
            self.outlook.finish(&self.config.gates, standing, sample.acc, sample.reward);
        }
        if !was_certain && self.outlook.is_certain(standing) {
            self.note_surplus();
        }
        let stops_group = self.stops_unlikely(number);
        let needs_more = !self.stopped && !were_needed && self.wants_new();
        Heard { needs_more, stops_group }
    }
}
