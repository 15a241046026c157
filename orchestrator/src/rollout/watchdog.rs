//! Says what a run waits for when nothing has happened for a while, and does what the recipe says then.
//!
//! Progress is anything that brings the run nearer to its end: a group ended, rows were put, servers were
//! updated, a version was announced. If there is none for `silence`, a report names the wait that matters
//! (see below) and the oldest wait of every other kind. The report is repeated after every further `silence`.
//!
//! An outage of a reward is no silence: its guard reports it and ends it, and the samples that wait for their
//! grades are worth keeping.
//!
//! # Which wait matters
//! The outermost wait matters: servers that are being updated; then, if no group runs, the trainer or the
//! queue; then the oldest wait of the first running group in dispatch order. A sample without a permit waits
//! for the samples that have one: as long as any request is with an engine, the engine is named. So the
//! watchdog only gives up a group that has a request with an engine or waits for a grade.

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

/// How often the watchdog looks in each `silence`: a report is late by at most that share of it.
const LOOKS: u32 = 8;

/// What a run waits for, after it has waited for too long.
#[derive(Debug, Clone)]
pub struct Silence {
    /// The time since the last progress.
    pub lasted: Duration,
    /// The wait that matters.
    pub cause: Option<Waiting>,
    /// The oldest wait of each other kind.
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

/// Reports what a run waits for, from the waits that are open and the board.
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
    /// Watches until the run has to be stopped, which happens only with `OnSilence::Stop`. Cancel-safe.
    pub async fn run(&self) -> Silence {
        // The counter begins at 0, so that there is a rate from the first report on.
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

    /// What is waited for now.
    pub fn look(&self, lasted: Duration) -> Silence {
        let (counts, first) = {
            let board = self.board.lock();
            (board.counts(), board.waits_for())
        };
        let oldest = self.waits.oldest();
        let of = |phase: Phase| oldest.iter().find(|wait| wait.phase == phase).cloned();
        // A group that is being put cannot be with the trainer yet.
        let is_putting = of(Phase::Queue).filter(|wait| wait.subject.dispatch.is_some());
        // If the trainer or the queue holds new groups back and none runs, no engine is the cause.
        let held_for = match counts.hold {
            Some(Hold::Trainer) if counts.running == 0 => is_putting.or_else(|| of(Phase::Trainer)),
            Some(Hold::Queue) if counts.running == 0 => of(Phase::Queue),
            _ => None,
        };
        let of_first = || first.and_then(|(id, _)| self.waits.of_dispatch(id));
        // A request returns its permit when its engine answers: as long as an engine has a request, a sample
        // that waits for a permit waits for an engine.
        let behind_permits = |wait: Waiting| match wait.phase {
            Phase::Permit => of(Phase::Engine).unwrap_or(wait),
            _ => wait,
        };
        let by_itself = [Phase::Queue, Phase::Trainer, Phase::Engine, Phase::Reward, Phase::Permit];
        let cause = of(Phase::Update)
            .or(held_for)
            .or_else(|| of_first().map(behind_permits))
            .or_else(|| by_itself.into_iter().find_map(of));
        let is_other = |wait: &Waiting| Some(wait.phase) != cause.as_ref().map(|cause| cause.phase);
        let others = oldest.iter().filter(|wait| is_other(wait)).cloned().collect();
        Silence { lasted, cause, others, counts }
    }

    /// Gives up the group that is waited for; its prompt is sent out again. A group that waits for a permit
    /// is not given up: it would wait again after that, and its wait has a deadline of its own.
    fn cancel(&self, cause: Option<&Waiting>) {
        let stuck = cause.filter(|cause| matches!(cause.phase, Phase::Engine | Phase::Reward));
        let Some(id) = stuck.and_then(|cause| cause.subject.dispatch) else { return };
        self.signals.given_up.send_replace(Some(id));
    }
}
