//! An agent-loop worker: keeps `max_concurrent_prompts` groups running and starts the next one only when one
//! ends, so that the samples of a prompt run close together and finish close together.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use rolldock_reward::{GateRow, GroupView};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::data::Prompt;
use crate::engine::FinishReason;
use crate::recipe::RequestShape;
use crate::rollout::board::{Board, Dispatch, GroupEnd, Next};
use crate::rollout::sample::{SampleRequest, StepContext};
use crate::rollout::{Group, Sample};

/// Failures of a step that are logged one by one; they tend to be alike, and all of them are counted.
const FAILURES_LOGGED_MAX: usize = 8;

/// What the workers and the manager of a step share.
pub(crate) struct StepState {
    pub(crate) board: Arc<Mutex<Board>>,
    /// The board has changed: there may be something to start, or nothing more to do.
    pub(crate) changed: Notify,
    /// Workers have taken prompts and the manager should draw more: nothing has ended, so nobody else would tell it.
    pub(crate) low: Notify,
    /// Cuts running groups off.
    pub(crate) stop: CancellationToken,
    /// Holds as many groups as the step may accept, so that handing one on never waits.
    pub(crate) accepted: mpsc::Sender<Group>,
    /// Groups that failed in this step.
    pub(crate) failures: AtomicUsize,
}

impl StepState {
    /// Hands on what has been accepted and tells everybody about the change.
    pub(crate) fn publish(&self, context: &StepContext, board: &mut Board) {
        while let Some(group) = board.take_accepted() {
            if let Some(rejection) = &group.set_aside {
                context.meter.group_kept(&group);
                context.config.gates.kept_if_short(rejection);
            }
            context.meter.group_accepted(&group);
            if let Err(error) = self.accepted.try_send(group) {
                // The receiver is gone only when the step was dropped, and with it whoever wanted its groups.
                tracing::error!(%error, "an accepted group had nobody to take it");
            }
        }
        if board.is_stopped() {
            self.stop.cancel();
        }
        self.changed.notify_waiters();
    }

    fn end(&self, context: &StepContext, dispatch: &Dispatch, end: GroupEnd) {
        if let GroupEnd::Failed(reason) = &end {
            let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
            if failures <= FAILURES_LOGGED_MAX {
                tracing::warn!(dispatch = %dispatch.id, prompt_uid = %dispatch.prompt.uid, %reason, "a group failed");
            }
        }
        let mut board = self.board.lock();
        board.end(dispatch.id, dispatch.number, end);
        self.publish(context, &mut board);
    }
}

/// See the module's documentation.
pub(crate) struct AgentLoopWorker {
    pub(crate) context: Arc<StepContext>,
    pub(crate) state: Arc<StepState>,
}

impl AgentLoopWorker {
    /// Runs until the step has nothing more to do and every group of this worker has ended.
    pub(crate) async fn run(self) {
        let mut running = FuturesUnordered::new();
        loop {
            // Registered before the board is read, so that no change between the two is missed.
            let changed = self.state.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let done = loop {
                if running.len() >= self.context.config.max_concurrent_prompts {
                    break false;
                }
                let (next, low) = {
                    let mut board = self.state.board.lock();
                    (board.next(), board.draw_wanted() > 0)
                };
                if low {
                    self.state.low.notify_one();
                }
                match next {
                    Next::Run(dispatch) => running.push(self.run_group(dispatch)),
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
            }
        }
    }

    /// Runs a group to its end. A panic in it is its fate, not the worker's.
    async fn run_group(&self, dispatch: Dispatch) -> (Dispatch, GroupEnd) {
        let mut samples = Vec::with_capacity(self.context.config.samples_per_prompt as usize);
        let end = {
            let work = AssertUnwindSafe(collect(&self.context, &dispatch, &mut samples)).catch_unwind();
            tokio::select! {
                biased;
                end = work => end.unwrap_or_else(|panic| GroupEnd::Failed(panic_message(&*panic))),
                () = self.state.stop.cancelled() => GroupEnd::Cancelled,
            }
        };
        if matches!(end, GroupEnd::Cancelled) {
            self.context.meter.group_cut(&samples);
        }
        (dispatch, end)
    }
}

/// Collects the samples of a group into `samples`, filters it and computes its advantages.
async fn collect(context: &StepContext, dispatch: &Dispatch, samples: &mut Vec<Sample>) -> GroupEnd {
    let config = &context.config;
    let dispatched_at = context.epoch.elapsed();
    let count_per_request = match config.request {
        RequestShape::Sample => 1,
        RequestShape::Group => config.samples_per_prompt,
    };
    let group_started = AtomicBool::new(false);
    let requests: Vec<SampleRequest<'_>> = (0..config.samples_per_prompt)
        .step_by(count_per_request as usize)
        .map(|first| SampleRequest {
            context,
            dispatch,
            group_started: &group_started,
            first,
            count: count_per_request,
        })
        .collect();
    let mut pending: FuturesUnordered<_> = requests.iter().map(SampleRequest::run).collect();
    while let Some(finished) = pending.next().await {
        match finished {
            Ok(finished) => samples.extend(finished),
            // Dropping the rest cancels it: a group with a hole teaches nothing.
            Err(reason) => return GroupEnd::Failed(reason),
        }
    }
    samples.sort_by_key(|sample| sample.index);
    let group = Group {
        dispatch: dispatch.id,
        number: dispatch.number,
        prompt: Arc::clone(&dispatch.prompt),
        samples: std::mem::take(samples),
        dispatched_at,
        ended_at: context.epoch.elapsed(),
        set_aside: None,
    };
    judge(context, group).await
}

/// The gates' verdict, and the advantages of a group that may be accepted. Those that need the whole batch stay 0 here.
async fn judge(context: &StepContext, mut group: Group) -> GroupEnd {
    let samples = &group.samples;
    let rewards: Vec<f32> = samples.iter().map(|sample| sample.reward).collect();
    let accs: Vec<f32> = samples.iter().map(|sample| sample.acc).collect();
    let truncated: Vec<bool> =
        samples.iter().map(|sample| sample.finish_reason == FinishReason::Length).collect();
    let tokens: Vec<u32> = samples.iter().map(|sample| sample.response_ids.len() as u32).collect();
    let view = GroupView { accs: &accs, rewards: &rewards, truncated: &truncated, tokens: &tokens };
    let gates = &context.config.gates;
    let mut verdict = gates.check(&view);
    if verdict.is_ok() && gates.has_outside() {
        match gates.ask(&view, &gate_row(&group.prompt)).await {
            Ok(said) => verdict = said,
            Err(error) => return GroupEnd::Failed(context.grades.note(error)),
        }
    }
    group.set_aside = verdict.err();
    if let Some(rejection) = &group.set_aside {
        context.meter.group_filtered(group.tokens());
        if !rejection.yields {
            return GroupEnd::Filtered(rejection.reason);
        }
    }
    let rewards = context.config.shaping.normalised(&rewards);
    for (sample, reward) in group.samples.iter_mut().zip(&rewards) {
        sample.reward = *reward;
    }
    if let Some(advantage) = context.config.advantage.per_group() {
        for (sample, advantage) in group.samples.iter_mut().zip(advantage.of_group(&rewards)) {
            sample.advantage = advantage;
        }
    }
    if group.set_aside.is_some() {
        return GroupEnd::SetAside(Box::new(group));
    }
    context.meter.group_valid(&group);
    GroupEnd::Valid(Box::new(group))
}

fn gate_row(prompt: &Prompt) -> GateRow {
    GateRow {
        ground_truth: Arc::clone(&prompt.answer),
        data_source: Arc::clone(&prompt.source),
        prompt: Arc::clone(&prompt.text),
        row: prompt.fields.extra_info(),
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    format!("panicked: {message}")
}
