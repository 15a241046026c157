//! The times of a step: when each request ran on its server, and for how long no group ran because new groups
//! were held back.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_dispatch::{DispatchId, FinishReason, PromptUid};
use tokio::time::Instant;

use crate::rollout::{Group, Hold};

/// Maximum number of requests of a step whose times are kept. Further requests are only counted.
const REQUESTS_MAX: usize = 16_384;

/// Maximum number of complete groups of a step whose lengths are kept.
const GROUPS_MAX: usize = 16_384;

/// How a request to a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestEnd {
    /// The server answered.
    Answered,
    /// The server failed or was lost.
    Failed,
    /// The run cut the request off.
    CutOff,
}

/// A request on a server. Times are relative to the start of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestTimes {
    /// The server.
    pub server: Arc<str>,
    /// The dispatch to which the request belongs.
    pub dispatch: DispatchId,
    /// The number of samples of the request.
    pub samples: u32,
    /// When it was sent.
    pub began: Duration,
    /// When it ended.
    pub ended: Duration,
    /// How it ended.
    pub end: RequestEnd,
}

/// The lengths and the results of a complete group's samples, for a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRecord {
    /// Its number in dispatch order.
    pub number: u64,
    /// The prompt.
    pub prompt_uid: PromptUid,
    /// Length of the prompt in tokens.
    pub prompt_tokens: u32,
    /// The response tokens of each sample.
    pub tokens: Vec<u32>,
    /// Whether each sample is right.
    pub right: Vec<bool>,
    /// Whether the token limit ended each sample.
    pub truncated: Vec<bool>,
}

/// The time for which no group ran because new groups were held back, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldTimes {
    /// The trainer's next version was awaited.
    pub trainer: Duration,
    /// The queue was full.
    pub queue: Duration,
    /// A reward was in an outage.
    pub reward: Duration,
}

/// The times of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepTimeline {
    /// When the step began, since the start of the run.
    pub began: Duration,
    /// When the step ended, since the start of the run.
    pub ended: Duration,
    /// The times for which new groups were held back (see [`HeldTimes`]).
    pub held: HeldTimes,
    /// The requests that ended in the step, in the order of their ends.
    pub requests: Vec<RequestTimes>,
    /// Requests that ended in the step and are not in `requests`, because there were too many.
    pub left_out: u64,
    /// The groups that were complete in the step, valid or not, in the order of their ends.
    pub groups: Vec<GroupRecord>,
}

#[derive(Debug)]
struct Inner {
    step: StepTimeline,
    /// The reason why new groups are held back, and the moment up to which the time is counted.
    hold: Option<(Hold, Instant)>,
}

impl Inner {
    /// Adds the time since the last call to the held time of the present reason.
    fn count_hold(&mut self, now: Instant) {
        let Some((hold, since)) = &mut self.hold else { return };
        let held = &mut self.step.held;
        let time = match hold {
            Hold::Trainer => &mut held.trainer,
            Hold::Queue => &mut held.queue,
            Hold::Reward => &mut held.reward,
        };
        *time += now - *since;
        *since = now;
    }
}

/// Collects the times of the step in progress.
#[derive(Debug)]
pub(crate) struct Timeline {
    /// The start of the run.
    epoch: Instant,
    inner: Mutex<Inner>,
}

impl Timeline {
    pub(crate) fn new(epoch: Instant) -> Self {
        Self { epoch, inner: Mutex::new(Inner { step: StepTimeline::default(), hold: None }) }
    }

    /// The start of the run.
    pub(crate) fn epoch(&self) -> Instant {
        self.epoch
    }

    /// Starts a step. Times that were collected before belong to no step, and are dropped.
    pub(crate) fn begin_step(&self) {
        self.take();
    }

    /// Notes why new groups are held back while no group runs; `None` if they are not held back.
    pub(crate) fn hold(&self, hold: Option<Hold>) {
        let mut inner = self.inner.lock();
        if inner.hold.map(|(hold, _)| hold) == hold {
            return;
        }
        let now = Instant::now();
        inner.count_hold(now);
        inner.hold = hold.map(|hold| (hold, now));
    }

    /// Notes that a request that was sent at `began` has ended now.
    pub(crate) fn ended(
        &self,
        server: &Arc<str>,
        dispatch: DispatchId,
        samples: u32,
        began: Instant,
        end: RequestEnd,
    ) {
        let (began, ended) = (began - self.epoch, self.epoch.elapsed());
        let step = &mut self.inner.lock().step;
        if step.requests.len() == REQUESTS_MAX {
            step.left_out += 1;
            return;
        }
        step.requests.push(RequestTimes { server: Arc::clone(server), dispatch, samples, began, ended, end });
    }

    /// Notes that all samples of a group have ended.
    pub(crate) fn completed(&self, group: &Group) {
        let record = GroupRecord {
            number: group.number,
            prompt_uid: group.prompt.uid,
            prompt_tokens: group.prompt.ids.len() as u32,
            tokens: group.samples.iter().map(|sample| sample.response_ids.len() as u32).collect(),
            right: group.samples.iter().map(|sample| sample.acc == 1.0).collect(),
            truncated: group
                .samples
                .iter()
                .map(|sample| sample.finish_reason == FinishReason::Length)
                .collect(),
        };
        let groups = &mut self.inner.lock().step.groups;
        if groups.len() < GROUPS_MAX {
            groups.push(record);
        }
    }

    /// Ends the step and returns its times. The next step begins.
    pub(crate) fn take(&self) -> StepTimeline {
        let now = Instant::now();
        let mut inner = self.inner.lock();
        inner.count_hold(now);
        let next = StepTimeline { began: now - self.epoch, ..StepTimeline::default() };
        let ended = std::mem::replace(&mut inner.step, next);
        StepTimeline { ended: now - self.epoch, ..ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn requests_and_holds_count_for_the_step_in_which_they_end() {
        let timeline = Timeline::new(Instant::now());
        let server: Arc<str> = "a".into();
        tokio::time::advance(SECOND).await;
        timeline.begin_step();
        let sent = Instant::now();
        timeline.hold(Some(Hold::Queue));
        tokio::time::advance(2 * SECOND).await;
        timeline.hold(Some(Hold::Trainer));
        tokio::time::advance(3 * SECOND).await;
        timeline.ended(&server, DispatchId(7), 4, sent, RequestEnd::Answered);
        let first = timeline.take();
        assert_eq!((first.began, first.ended), (SECOND, 6 * SECOND));
        let held = HeldTimes { trainer: 3 * SECOND, queue: 2 * SECOND, reward: Duration::ZERO };
        assert_eq!(first.held, held);
        let [request] = first.requests.as_slice() else { panic!("{first:?}") };
        assert_eq!((request.dispatch, request.samples), (DispatchId(7), 4));
        assert_eq!((request.began, request.ended), (SECOND, 6 * SECOND));

        tokio::time::advance(SECOND).await;
        timeline.hold(None);
        tokio::time::advance(SECOND).await;
        let second = timeline.take();
        assert_eq!((second.began, second.ended), (6 * SECOND, 8 * SECOND));
        assert_eq!(second.held, HeldTimes { trainer: SECOND, ..HeldTimes::default() });
        assert_eq!(second.requests, []);
    }

    #[tokio::test(start_paused = true)]
    async fn the_memory_of_a_step_is_bounded() {
        let timeline = Timeline::new(Instant::now());
        let server: Arc<str> = "a".into();
        for id in 0..REQUESTS_MAX as u64 + 3 {
            timeline.ended(&server, DispatchId(id), 1, Instant::now(), RequestEnd::CutOff);
        }
        let step = timeline.take();
        assert_eq!((step.requests.len(), step.left_out), (REQUESTS_MAX, 3));
    }
}
