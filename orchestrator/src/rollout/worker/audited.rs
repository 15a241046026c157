//! Audits: groups that run on after an early stop has cut them off, so that the bias meter can record how
//! they end.
//!
//! The early stop of [`EarlyStop::First`](crate::rollout::EarlyStop::First) prefers groups that end early.
//! With `discard`, the lengths of the other groups would never be known. So a random share of the groups is
//! drawn when they are sent out; the draw depends only on the run's seed and the dispatch number. A drawn
//! group runs in its own task. If the group ends before the cut, it is treated like any other group. If it is
//! cut off, its fate is `cancelled` immediately, as for other groups, but its task continues during later
//! steps. Only the bias meter sees its end.
//!
//! # Invariants
//! - The end of a step does not wait for audits.
//! - A drawn group counts on its own meter and gates. If the group ends before a cut, these counts are added
//!   to the counts of the run. If it is cut off, they are dropped, and all its tokens count as audit.
//! - A drawn group has the same time-outs as every other group, so every audit ends.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use futures::FutureExt;
use parking_lot::Mutex;
use rolldock_dispatch::draw::uniform;
use rolldock_reward::Gates;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::places::Taken;
use super::{AgentLoopWorker, collect, panic_message};
use crate::rollout::board::{Board, Dispatch, GroupEnd};
use crate::rollout::meter::Meter;
use crate::rollout::sample::StepContext;
use crate::rollout::{RolloutConfig, Sample};
use crate::scope::Scope;

/// Draws the groups that run on if they are cut off, and owns the tasks of the running audits.
pub(crate) struct Audits {
    share: f64,
    seed: u64,
    scope: Scope,
    running: Mutex<Vec<AbortOnDropHandle<()>>>,
}

impl Audits {
    /// The audits of a run. Their tasks run in `scope`, and end when the value is dropped.
    pub(crate) fn new(config: &RolloutConfig, scope: Scope) -> Self {
        Self { share: config.audit_share(), seed: config.seed, scope, running: Mutex::default() }
    }

    /// Whether the group runs on if it is cut off.
    pub(super) fn takes(&self, dispatch: &Dispatch) -> bool {
        self.share > 0.0 && drawn(self.seed, dispatch.number) < self.share
    }

    fn keep(&self, task: AbortOnDropHandle<()>) {
        let mut running = self.running.lock();
        running.retain(|task| !task.is_finished());
        running.push(task);
    }

    /// Aborts the running audits, and returns when their requests have counted their tokens.
    pub(crate) async fn end(&self) {
        let running = std::mem::take(&mut *self.running.lock());
        running.iter().for_each(AbortOnDropHandle::abort);
        // An aborted task drops its requests only when the runtime polls it next.
        futures::future::join_all(running).await;
    }
}

/// A pseudo-random number in [0, 1) for a dispatch number.
fn drawn(seed: u64, number: u64) -> f64 {
    let mut key = *b"audit...........";
    key[8..].copy_from_slice(&number.to_le_bytes());
    uniform(seed, &key)
}

/// Whether a group ended or was cut off first. Only the first change has an effect.
#[derive(Debug, Default)]
struct Outcome(AtomicU8);

impl Outcome {
    const RUNNING: u8 = 0;
    const ENDED: u8 = 1;
    const CUT: u8 = 2;

    /// Sets the outcome, and returns whether it was open.
    fn set(&self, outcome: u8) -> bool {
        self.0.compare_exchange(Self::RUNNING, outcome, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn is_cut(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::CUT
    }
}

/// The counts of a group whose outcome is open. When the value is dropped, the counts are added to the run,
/// unless the group was cut off.
struct Books {
    outcome: Arc<Outcome>,
    meter: Arc<Meter>,
    gates: Arc<Gates>,
    meter_of_run: Arc<Meter>,
    gates_of_run: Arc<Gates>,
}

impl Drop for Books {
    fn drop(&mut self) {
        if !self.outcome.is_cut() {
            self.meter_of_run.join(&self.meter);
            self.gates_of_run.add_counts(&self.gates);
        }
    }
}

impl Books {
    /// Creates the counts of a group, and a context in which the group uses these counts.
    fn open(context: &StepContext, outcome: Arc<Outcome>) -> (Self, StepContext) {
        let meter = Arc::new(context.meter.apart());
        let gates = Arc::new(context.config.gates.with_own_counts());
        let config = RolloutConfig { gates: Arc::clone(&gates), ..(*context.config).clone() };
        let of_group = StepContext { config: Arc::new(config), meter: Arc::clone(&meter), ..context.clone() };
        let (meter_of_run, gates_of_run) = (Arc::clone(&context.meter), Arc::clone(&context.config.gates));
        (Self { outcome, meter, gates, meter_of_run, gates_of_run }, of_group)
    }
}

/// A drawn group, as its task runs it.
struct Audited {
    context: StepContext,
    dispatch: Dispatch,
    taken: Taken,
    outcome: Arc<Outcome>,
    books: Books,
    board: Arc<Mutex<Board>>,
}

impl Audited {
    async fn run(self, ended: oneshot::Sender<GroupEnd>) {
        let Self { context, dispatch, taken, outcome, books, board } = self;
        let graded = Mutex::new(Vec::new());
        // No worker is woken here. If more groups are needed, workers start them when the next group ends.
        let hear =
            |samples: &[Sample]| board.lock().finished(dispatch.id, dispatch.number, samples).stops_group;
        let work = collect(&context, &dispatch, &graded, &taken, &hear);
        let end = match AssertUnwindSafe(work).catch_unwind().await {
            Ok(end) => end,
            Err(panic) => GroupEnd::Failed(panic_message(&*panic)),
        };
        let in_time = outcome.set(Outcome::ENDED);
        drop(books);
        if in_time {
            // The receiver was dropped only if the group was given up at the same moment.
            let _ = ended.send(end);
            return;
        }
        board.lock().audit_ended(dispatch.number, &end);
        context.tokens.audit_ended(dispatch.id);
        context.waits.audit_ended(dispatch.id);
    }
}

impl AgentLoopWorker {
    /// Runs a group that [was drawn](Audits::takes). At a cut the call returns immediately, and the group
    /// runs on.
    pub(super) async fn run_audited(&self, dispatch: Dispatch, taken: Taken) -> (Dispatch, GroupEnd) {
        let outcome = Arc::<Outcome>::default();
        let (books, context) = Books::open(&self.context, Arc::clone(&outcome));
        let group = Audited {
            context,
            dispatch: dispatch.clone(),
            taken,
            outcome: Arc::clone(&outcome),
            books,
            board: Arc::clone(&self.state.board),
        };
        let (sender, mut ended) = oneshot::channel();
        let task = self.state.audits.scope.spawn("group of an audit", group.run(sender));
        let given_up = tokio::select! {
            biased;
            end = &mut ended => return (dispatch, end.unwrap_or(GroupEnd::Cancelled)),
            () = self.state.stop.cancelled() => None,
            () = self.becomes_stale(&dispatch) => Some(GroupEnd::Stale),
            () = self.is_given_up(&dispatch) => Some(GroupEnd::GivenUp),
        };
        if given_up.is_some() || !self.begin_audit(&dispatch) {
            // The permits and requests of the group are returned when its task has ended.
            task.abort();
            let _ = task.await;
            return (dispatch, given_up.unwrap_or(GroupEnd::Cancelled));
        }
        if !outcome.set(Outcome::CUT) {
            // The group ended at the moment of the cut.
            self.context.tokens.audit_ended(dispatch.id);
            self.context.waits.audit_ended(dispatch.id);
            return (dispatch, ended.await.unwrap_or(GroupEnd::Cancelled));
        }
        self.state.audits.keep(task);
        (dispatch, GroupEnd::Cancelled)
    }

    /// Notes that a group runs on after its cut. Returns `false` if it must not run on: the run was
    /// interrupted, or the bias guard has changed the rule.
    fn begin_audit(&self, dispatch: &Dispatch) -> bool {
        let mut board = self.state.board.lock();
        if !board.is_audited() || self.state.audits.scope.token().is_cancelled() {
            return false;
        }
        board.audit_began(dispatch.number);
        self.context.tokens.audit_began(dispatch.id);
        self.context.waits.audit_began(dispatch.id);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Outcome, drawn};

    #[test]
    fn the_share_that_is_drawn_is_the_share_asked_for() {
        for seed in 0..4 {
            let share = |most: f64| (0..10_000).filter(|number| drawn(seed, *number) < most).count();
            assert_eq!((share(0.0), share(1.0)), (0, 10_000));
            assert!((900..1100).contains(&share(0.1)), "seed={seed}: {}", share(0.1));
        }
        assert_ne!(drawn(1, 7), drawn(2, 7));
    }

    #[test]
    fn an_outcome_is_decided_once() {
        let outcome = Outcome::default();
        assert!(outcome.set(Outcome::CUT) && !outcome.set(Outcome::ENDED) && outcome.is_cut());
    }
}
