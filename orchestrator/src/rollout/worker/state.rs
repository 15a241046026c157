//! The state that the workers and the manager of a step share, and the signals by which they wake each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rolldock_dispatch::{DispatchId, StepEnd};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::audited::Audits;
use super::places::HeldWorkers;
use crate::rollout::Sample;
use crate::rollout::board::{Board, Decided, Dispatch, GroupEnd};
use crate::rollout::sample::StepContext;
use crate::rollout::signal::Signal;
use crate::rollout::step_ends::{Handed, StepEnds};

/// The maximum number of failures of a step that are logged one by one. Failures tend to be alike, so a later
/// failure is logged only when the number of failures has doubled. All failures are counted.
const FAILURES_LOGGED_MAX: usize = 8;
/// Wakes the tasks that wait for the board.
#[derive(Debug)]
pub(crate) struct Signals {
    /// The board has changed. There may be a group to start, or the step may be over.
    pub(crate) changed: Notify,
    /// Workers have taken prompts, and the manager should draw more. No other signal wakes the manager,
    /// because no group has ended.
    pub(crate) low: Notify,
    /// The oldest version that is still fresh enough for running groups.
    pub(crate) fresh_from: Signal<u64>,
    /// The last group that the watchdog has given up.
    pub(crate) given_up: Signal<Option<DispatchId>>,
    /// The first dispatch number that the step cannot need.
    pub(crate) surplus_from: Signal<u64>,
    /// The workers that may start no group. The status shows them; a change of these counts wakes no worker.
    pub(crate) held_workers: HeldWorkers,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            changed: Notify::new(),
            low: Notify::new(),
            fresh_from: Signal::new(0),
            given_up: Signal::new(None),
            surplus_from: Signal::new(u64::MAX),
            held_workers: HeldWorkers::default(),
        }
    }
}

/// The state that the workers and the manager of a step, or of a flow of steps, share.
pub(crate) struct StepState {
    pub(crate) board: Arc<Mutex<Board>>,
    pub(crate) signals: Arc<Signals>,
    /// Cancelled to cut off running groups.
    pub(crate) stop: CancellationToken,
    /// The channel of accepted groups. The bounds of the board limit its length: the channel never holds more
    /// groups than may be accepted.
    pub(crate) handed: mpsc::UnboundedSender<Handed>,
    /// Groups that failed in this step.
    pub(crate) failures: AtomicUsize,
    pub(crate) step_ends: StepEnds,
    pub(crate) audits: Arc<Audits>,
}

impl StepState {
    /// Sends the board's decisions to the channel, and wakes all tasks that wait for a change.
    pub(crate) fn publish(&self, context: &StepContext, board: &mut Board) {
        while let Some(decided) = board.take_decided() {
            let handed = match decided {
                Decided::Group(group) => {
                    if let Some(rejection) = &group.set_aside {
                        context.config.gates.kept_if_short(rejection);
                    }
                    Handed::Group(group)
                }
                Decided::StepEnd(record) => {
                    context.count_probes();
                    let bias = board.dispatches().bias();
                    let metrics = self.step_ends.metrics(*record, StepEnd::Reached, bias, context);
                    context.meter.begin_step();
                    if let Some(early_stop) = metrics.guarded {
                        board.set_early_stop(early_stop);
                    }
                    self.failures.store(0, Ordering::Relaxed);
                    Handed::StepEnd(Box::new(metrics))
                }
            };
            if let Err(error) = self.handed.send(handed) {
                // The receiver was dropped only if the step was dropped, so the caller does not need the
                // groups.
                tracing::error!(%error, "an accepted group was lost: its receiver was dropped");
            }
        }
        if board.is_stopped() {
            self.stop.cancel();
        }
        self.tell_surplus(board);
        self.signals.changed.notify_waiters();
    }

    /// Tells the board about finished samples of a group. Their values may prove that the group is valid. Returns whether
    /// the group is stopped because it is unlikely to become valid.
    pub(super) fn finished(&self, dispatch: &Dispatch, samples: &[Sample]) -> bool {
        let heard = {
            let mut board = self.board.lock();
            let heard = board.finished(dispatch.id, dispatch.number, samples);
            self.tell_surplus(&board);
            heard
        };
        if heard.needs_more {
            self.signals.changed.notify_waiters();
        }
        heard.stops_group
    }

    /// Cuts off the groups that the step cannot need.
    fn tell_surplus(&self, board: &Board) {
        self.signals.surplus_from.set(board.surplus_from());
    }

    pub(super) fn end(&self, context: &StepContext, dispatch: &Dispatch, end: GroupEnd) {
        if let GroupEnd::Failed(reason) = &end {
            let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
            if is_logged(failures) {
                let (id, prompt_uid) = (dispatch.id, dispatch.prompt.uid);
                tracing::warn!(dispatch = %id, %prompt_uid, failures, %reason, "a group failed");
            }
        }
        context.waits.progressed();
        let mut board = self.board.lock();
        board.end(dispatch.id, dispatch.number, end);
        self.publish(context, &mut board);
    }
}

/// Whether the failure with this number (from 1) in its step is logged.
fn is_logged(failures: usize) -> bool {
    failures <= FAILURES_LOGGED_MAX || failures.is_power_of_two()
}

#[cfg(test)]
mod tests;
