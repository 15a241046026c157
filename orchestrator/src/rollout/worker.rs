//! An agent-loop worker. It keeps `max_concurrent_prompts` groups running, or as many samples as these groups have
//! ([`places`]), and starts the next group only when others have ended. So the samples of a prompt run and finish close
//! together.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use rolldock_dispatch::{CarriedSample, FinishReason};
use rolldock_reward::{GroupView, Rejection};

use crate::rollout::advantages::estimate;
use crate::rollout::board::{Dispatch, GroupEnd, Next};
use crate::rollout::carry::CarriedGroup;
use crate::rollout::grading::gate_row;
use crate::rollout::group::figures_of;
use crate::rollout::reasons::counted_as;
use crate::rollout::sample::{SampleRequest, StepContext, Unfinished};
use crate::rollout::waits::{Phase, Subject};
use crate::rollout::{Group, OnStale, RequestShape, RolloutConfig, Sample};

pub(crate) mod audited;
mod places;
mod state;

use places::{Counted, Places, Taken};

pub(crate) use state::{Signals, StepState};

/// The time that a group that is cut off has to collect its samples, beyond the grace period of its engine.
const CUT_SLACK: Duration = Duration::from_secs(1);

/// A worker of one step.
pub(crate) struct AgentLoopWorker {
    pub(crate) context: Arc<StepContext>,
    pub(crate) state: Arc<StepState>,
}

impl AgentLoopWorker {
    /// Runs until the step has nothing more to do and every group of this worker has ended.
    pub(crate) async fn run(self) {
        let mut running = FuturesUnordered::new();
        let RolloutConfig { fill, max_concurrent_prompts, samples_per_prompt, .. } = *self.context.config;
        let places = Arc::new(Places::new(fill, max_concurrent_prompts, samples_per_prompt as usize));
        let mut counted = Counted::new(&self.state.signals.held_workers);
        loop {
            // The waiter is registered before the board is read, so that it misses no change.
            let changed = self.state.signals.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let done = loop {
                // After an interrupt nothing more is sent out, even if the manager has not stopped the board
                // yet.
                if self.state.stop.is_cancelled() {
                    break true;
                }
                if !counted.note(places.room(running.len(), || self.is_fleet_full())) {
                    break false;
                }
                let (next, low) = {
                    let mut board = self.state.board.lock();
                    // The manager draws prompts, and ends a step whose last prompts were not sent out.
                    (board.next(), board.draw_wanted() > 0 || board.is_finished())
                };
                if low {
                    self.state.signals.low.notify_one();
                }
                match next {
                    Next::Run(dispatch) => {
                        let taken = places.take(self.samples_left(&dispatch));
                        running.push(self.run_group(dispatch, taken));
                    }
                    Next::Wait => break false,
                    Next::Done => break true,
                }
            };
            if done && running.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                Some((dispatch, end)) = running.next(), if !running.is_empty() => {
                    self.state.end(&self.context, &dispatch, end);
                }
                () = &mut changed => {}
                () = places.may_have_room() => {}
            }
        }
    }

    /// Whether the samples of a new group would wait.
    fn is_fleet_full(&self) -> bool {
        self.context.balancer.is_full(self.context.config.priority_new)
    }

    /// The number of samples that a dispatch still has to generate and grade.
    fn samples_left(&self, dispatch: &Dispatch) -> usize {
        let graded = dispatch.carried.as_ref().map_or(0, |carried| carried.graded.len());
        (self.context.config.samples_per_prompt as usize).saturating_sub(graded)
    }

    /// Runs a group to its end. If the group panics, the group fails and the worker continues.
    async fn run_group(&self, dispatch: Dispatch, taken: Taken) -> (Dispatch, GroupEnd) {
        if self.state.audits.takes(&dispatch) {
            return Box::pin(self.run_audited(dispatch, taken)).await;
        }
        let graded = Mutex::new(Vec::new());
        let end = self.end_of_group(&dispatch, &graded, &taken).await;
        if !matches!(end, GroupEnd::Cancelled) {
            return (dispatch, end);
        }
        let graded = graded.into_inner();
        if self.context.carries && !graded.is_empty() {
            let carried = CarriedGroup { graded, samples: Vec::new() };
            return (dispatch, GroupEnd::Carried(Box::new(carried)));
        }
        (dispatch, GroupEnd::Cancelled)
    }

    async fn end_of_group(
        &self,
        dispatch: &Dispatch,
        graded: &Mutex<Vec<Sample>>,
        taken: &Taken,
    ) -> GroupEnd {
        let finished = |samples: &[Sample]| self.state.finished(dispatch, samples);
        let work =
            AssertUnwindSafe(collect(&self.context, dispatch, graded, taken, &finished)).catch_unwind();
        tokio::pin!(work);
        let ended = tokio::select! {
            biased;
            end = &mut work => Some(end),
            () = self.state.stop.cancelled() => None,
            () = self.becomes_stale(dispatch) => return GroupEnd::Stale,
            () = self.is_given_up(dispatch) => return GroupEnd::GivenUp,
            () = self.is_surplus(dispatch) => return GroupEnd::Surplus,
        };
        let ended = match ended {
            // The group's requests see the cut, or the end of the run by a reward. They return the tokens
            // that they have.
            None if self.context.carries || self.context.grades.has_ended.is_cancelled() => {
                let limit = self.context.config.carry.grace + CUT_SLACK;
                tokio::time::timeout(limit, &mut work).await.ok()
            }
            ended => ended,
        };
        match ended {
            Some(Ok(end)) => end,
            Some(Err(panic)) => GroupEnd::Failed(panic_message(&*panic)),
            None => GroupEnd::Cancelled,
        }
    }

    /// Completes when the version with which the group began is too old for the servers' version.
    async fn becomes_stale(&self, dispatch: &Dispatch) {
        let matters = matches!(self.context.config.staleness.on_stale, OnStale::Drop | OnStale::Requeue);
        self.state.signals.fresh_from.until(|from| matters && dispatch.policy_version < from).await;
    }

    /// Completes when the step cannot need the group, and the next step could not use it.
    async fn is_surplus(&self, dispatch: &Dispatch) {
        self.state.signals.surplus_from.until(|from| dispatch.number >= from).await;
    }

    async fn is_given_up(&self, dispatch: &Dispatch) {
        self.state.signals.given_up.until(|id| id == Some(dispatch.id)).await;
    }
}

/// The requests of a dispatch. If an earlier dispatch left samples, each sample that is not graded has its
/// own request. Otherwise the recipe sets whether a request asks for one sample or for the whole group.
fn requests<'a>(
    context: &'a StepContext,
    dispatch: &'a Dispatch,
    group_started: &'a Arc<AtomicBool>,
) -> Vec<SampleRequest<'a>> {
    let samples = context.config.samples_per_prompt;
    let request = |first: u32, count: u32, carried: Option<CarriedSample>| SampleRequest {
        context,
        dispatch,
        group_started,
        first,
        count,
        carried,
        turn: None,
    };
    let Some(carried) = &dispatch.carried else {
        let count = match context.config.request {
            RequestShape::Group if context.trajectories.is_none() => samples,
            RequestShape::Sample | RequestShape::Group => 1,
        };
        return (0..samples).step_by(count as usize).map(|first| request(first, count, None)).collect();
    };
    let is_graded = |index: &u32| carried.graded.iter().any(|sample| sample.index == *index);
    let left = (0..samples).filter(|index| !is_graded(index));
    left.map(|index| request(index, 1, carried.sample(index).cloned())).collect()
}

/// Runs a request. If the run has a trajectory runner, the sample is run as a trajectory.
async fn run_sample(request: &SampleRequest<'_>) -> Result<Vec<Sample>, Unfinished> {
    match &request.context.trajectories {
        Some(runner) => Box::pin(request.run_trajectory(&**runner)).await,
        None => request.run().await,
    }
}

/// Collects the samples of a group, filters the group and computes its advantages. Graded samples are passed
/// to `hear` immediately, which returns whether the group is stopped. If the group is cut off, its graded samples stay in `graded`. Each sample that ends gives its
/// place in `taken` back.
async fn collect(
    context: &StepContext,
    dispatch: &Dispatch,
    graded: &Mutex<Vec<Sample>>,
    taken: &Taken,
    hear: &(dyn Fn(&[Sample]) -> bool + Sync),
) -> GroupEnd {
    let dispatched_at = context.epoch.elapsed();
    let _running = context.waits.begin_group(dispatch.id);
    let group_started = Arc::new(AtomicBool::new(false));
    if let Some(carried) = &dispatch.carried {
        graded.lock().extend(carried.graded.iter().cloned());
    }
    let requests = requests(context, dispatch, &group_started);
    let mut cut_off = Vec::new();
    let mut is_cut = false;
    let mut spare = spare_samples(context);
    let run = |request| async move { (request, run_sample(request).await) };
    let mut pending: FuturesUnordered<_> = requests.iter().map(run).collect();
    while let Some((request, finished)) = pending.next().await {
        taken.ended(request.count);
        match finished {
            Ok(finished) => {
                let is_stopped = hear(&finished);
                graded.lock().extend(finished);
                if is_stopped {
                    // The requests of its other samples are dropped, which cancels them.
                    return GroupEnd::Unlikely(figures_of(&graded.lock()));
                }
            }
            Err(Unfinished::Cut(sample)) => {
                is_cut = true;
                cut_off.extend(sample.map(|sample| *sample));
            }
            Err(Unfinished::Failed(reason)) => match spare.checked_sub(request.count) {
                Some(left) => {
                    spare = left;
                    tracing::warn!(dispatch = %dispatch.id, reason, "a sample has failed, and its group continues without it");
                }
                // The group has too few samples to be accepted, so its other requests are dropped, which
                // cancels them.
                None => return GroupEnd::Failed(reason),
            },
        }
    }
    let mut samples = std::mem::take(&mut *graded.lock());
    samples.sort_by_key(|sample| sample.index);
    if is_cut {
        let carried = CarriedGroup { graded: samples, samples: cut_off };
        return if carried.is_empty() { GroupEnd::Cancelled } else { GroupEnd::Carried(Box::new(carried)) };
    }
    let group = Group {
        dispatch: dispatch.id,
        number: dispatch.number,
        prompt: Arc::clone(&dispatch.prompt),
        samples,
        dispatched_at,
        ended_at: context.epoch.elapsed(),
        set_aside: None,
        step: 0,
        staleness: 0,
        is_stale: false,
        mask_before: 0,
        inclusion: dispatch.inclusion,
        is_weighted: context.config.weights_groups(),
        returns: dispatch.returns,
    };
    context.tokens.complete(dispatch.id, group.tokens());
    context.timeline.completed(&group);
    judge(context, dispatch, group).await
}

/// The number of samples that may fail without a failure of the group. It is 0 unless a gate sets how many
/// samples a group needs.
fn spare_samples(context: &StepContext) -> u32 {
    let samples = context.config.samples_per_prompt;
    let needed = context.config.gates.samples_min().map_or(samples, |needed| needed.max(1) as u32);
    samples.saturating_sub(needed)
}

/// Asks the gates for their decision, and computes the advantages of a group that may be accepted. Advantages
/// that need the whole batch stay 0 here.
async fn judge(context: &StepContext, dispatch: &Dispatch, mut group: Group) -> GroupEnd {
    let samples = &group.samples;
    let rewards: Vec<f32> = samples.iter().map(|sample| sample.reward).collect();
    let accs: Vec<f32> = samples.iter().map(|sample| sample.acc).collect();
    let truncated: Vec<bool> =
        samples.iter().map(|sample| sample.finish_reason == FinishReason::Length).collect();
    let tokens: Vec<u32> = samples.iter().map(|sample| sample.response_ids.len() as u32).collect();
    let view = GroupView { accs: &accs, rewards: &rewards, truncated: &truncated, tokens: &tokens };
    let gates = &context.config.gates;
    let is_counted = !dispatch.was_judged;
    let mut verdict = gates.check(&view, is_counted);
    if gates.asks_after(&verdict) {
        let subject = Subject {
            dispatch: Some(group.dispatch),
            prompt_uid: Some(group.prompt.uid),
            detail: Some("gate outside".into()),
            ..Subject::default()
        };
        let _in_gate = context.waits.enter(Phase::Reward, subject);
        let row = gate_row(&group.prompt);
        let said = tokio::select! {
            biased;
            said = gates.ask(&view, &row, is_counted) => said,
            () = context.is_cut() => return carried_whole(group),
        };
        match said {
            Ok(said) => verdict = Rejection::of_both(verdict, said),
            Err(error) if error.ends_run() => {
                context.grades.end(&error);
                return carried_whole(group);
            }
            Err(error) => return GroupEnd::Failed(error.to_string()),
        }
    }
    group.set_aside = verdict.err();
    if let Some(rejection) = &group.set_aside
        && !rejection.yields
    {
        return GroupEnd::Filtered(counted_as(rejection), (&group).into());
    }
    let rewards = context.config.shaping.normalised(&rewards);
    for (sample, reward) in group.samples.iter_mut().zip(&rewards) {
        sample.reward = *reward;
    }
    estimate(&mut group.samples, context.config.advantage);
    if group.set_aside.is_some() {
        return GroupEnd::SetAside(Box::new(group));
    }
    GroupEnd::Valid(Box::new(group))
}

/// The end of a group that lacks only the decision of a gate.
fn carried_whole(group: Group) -> GroupEnd {
    GroupEnd::Carried(Box::new(CarriedGroup { graded: group.samples, samples: Vec::new() }))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    format!("panicked: {message}")
}
