//! Reports the waits of a run that has made no progress for a while, and takes the action that the recipe
//! sets.
//!
//! Progress is anything that brings the run nearer to its end: a group ended, rows were put, servers were
//! updated, a version was announced. After `silence` without progress, a report names the wait that matters
//! (see below) and the oldest wait of every other phase. The report is repeated after every further
//! `silence`.
//!
//! The outage of a reward does not count as silence. The reward's guard reports the outage and limits its
//! length, and the samples that wait for grades must be kept.
//!
//! # Which wait matters
//! The outermost wait matters. The order is: an update of the servers; if no group runs, the wait for the
//! trainer or the queue; the oldest wait of the first running group in dispatch order. A sample without a
//! permit waits for the samples with permits, so the engine is named as long as any request is with an
//! engine. In the same way, a sample whose agent or environment has not started waits for agents and
//! environments that have started. The watchdog gives up a group only if it has a request with an engine, has
//! started an agent or an environment, or waits for a grade.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_dispatch::modes::OnSilence;
use tokio::time::Instant;

use crate::rollout::Hold;
use crate::rollout::board::{Board, Counts};
use crate::rollout::outage::RewardWatch;
use crate::rollout::waits::{Phase, Waiting, Waits};
use crate::rollout::worker::Signals;

/// The number of checks in each `silence`. A report is late by at most one interval between checks.
const LOOKS: u32 = 8;

/// The report about a run without progress, with its waits.
#[derive(Debug, Clone)]
pub struct Silence {
    /// The time since the last progress.
    pub lasted: Duration,
    /// The wait that matters.
    pub cause: Option<Waiting>,
    /// The oldest wait of each other phase.
    pub others: Vec<Waiting>,
    /// Groups by state.
    pub counts: Counts,
}

impl std::fmt::Display for Silence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "nothing has happened for {:.0} s", self.lasted.as_secs_f64())?;
        match &self.cause {
            Some(cause) => write!(f, "; the run waits for {} ({cause})", cause.phase)?,
            None => write!(f, "; no wait is entered")?,
        }
        let Counts { accepted, target, running, not_put, .. } = self.counts;
        write!(f, "; accepted={accepted} target={target} running={running} not_put={not_put}")?;
        for other in &self.others {
            write!(f, "; also {other}")?;
        }
        Ok(())
    }
}

/// Watches the progress of a run, and reports from the open waits and the board.
#[derive(Clone)]
pub struct Watchdog {
    pub(crate) waits: Arc<Waits>,
    pub(crate) board: Arc<Mutex<Board>>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) rewards: RewardWatch,
    pub(crate) silence: Duration,
    pub(crate) action: OnSilence,
}

impl Watchdog {
    /// Watches until the run has to stop. Only `OnSilence::Stop` stops a run. Cancel-safe.
    pub async fn run(&self) -> Silence {
        // The counter is created with the value 0, so that its rate shows the first report.
        metrics::counter!("rolldock_silences_total").increment(0);
        let mut seen = self.waits.progress();
        let mut quiet_since = Instant::now();
        let mut told_at = quiet_since;
        loop {
            tokio::time::sleep(self.silence / LOOKS).await;
            let progress = self.waits.progress();
            if progress != seen || !self.rewards.all_answer() {
                seen = progress;
                quiet_since = Instant::now();
                told_at = quiet_since;
                continue;
            }
            if told_at.elapsed() < self.silence {
                continue;
            }
            let report = self.look(quiet_since.elapsed());
            tracing::warn!("{report}");
            metrics::counter!("rolldock_silences_total").increment(1);
            match self.action {
                OnSilence::Report => {}
                OnSilence::CancelAndRequeue => self.cancel(report.cause.as_ref()),
                OnSilence::Stop => return report,
            }
            told_at = Instant::now();
        }
    }

    /// The report about the present waits.
    pub fn look(&self, lasted: Duration) -> Silence {
        let (counts, first) = {
            let board = self.board.lock();
            (board.counts(), board.waits_for())
        };
        let oldest = self.waits.oldest();
        let of = |phase: Phase| oldest.iter().find(|wait| wait.phase == phase).cloned();
        // While a group is being put into the queue, the trainer cannot take it.
        let is_putting = of(Phase::Queue).filter(|wait| wait.subject.dispatch.is_some());
        // If the trainer or the queue holds new groups back and no group runs, the cause is not an engine.
        let held_for = match counts.hold {
            Some(Hold::Trainer) if counts.running == 0 => is_putting.or_else(|| of(Phase::Trainer)),
            Some(Hold::Queue) if counts.running == 0 => of(Phase::Queue),
            _ => None,
        };
        let of_first = || first.and_then(|(id, _)| self.waits.of_dispatch(id));
        // A request returns its permit when its engine answers. So as long as an engine has a request, a wait
        // for a permit is a wait for an engine.
        let behind_others = |wait: Waiting| match wait.phase {
            Phase::Permit => of(Phase::Engine).unwrap_or(wait),
            Phase::Start => of(Phase::Environment).unwrap_or(wait),
            _ => wait,
        };
        let by_itself = [
            Phase::Queue,
            Phase::Trainer,
            Phase::Engine,
            Phase::Environment,
            Phase::Reward,
            Phase::Start,
            Phase::Permit,
        ];
        let cause = of(Phase::Update)
            .or(held_for)
            .or_else(|| of_first().map(behind_others))
            .or_else(|| by_itself.into_iter().find_map(of));
        let is_other = |wait: &Waiting| Some(wait.phase) != cause.as_ref().map(|cause| cause.phase);
        let others = oldest.iter().filter(|wait| is_other(wait)).cloned().collect();
        Silence { lasted, cause, others, counts }
    }

    /// Gives up the group that the run waits for, so that its prompt is sent out again. A group in line is
    /// not given up: its next dispatch would wait too, and its wait has a deadline.
    fn cancel(&self, cause: Option<&Waiting>) {
        let stuck =
            cause.filter(|cause| matches!(cause.phase, Phase::Engine | Phase::Environment | Phase::Reward));
        let Some(id) = stuck.and_then(|cause| cause.subject.dispatch) else { return };
        self.signals.given_up.set(Some(id));
    }
}
