//! Says what a run waits for when nothing has happened for a while, and does what the recipe says then.
//!
//! Progress is anything that brings the run nearer to its end: a group ended, rows were put, servers were updated, a
//! version was announced. Without any for `silence` there is one report that names the wait that matters: the oldest one
//! of the group that the step cannot end without, and the oldest of every other kind.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::recipe::OnSilence;
use crate::rollout::board::{Board, Counts};
use crate::rollout::waits::{Phase, Waiting, Waits};
use crate::rollout::worker::Signals;
use crate::rollout::{DispatchId, Hold};

/// Looks in each `silence`; what is found is late by no more than that share of it.
const LOOKS: u32 = 8;

/// What a run waits for, after it has waited for too long.
#[derive(Debug, Clone)]
pub struct Silence {
    /// Since the last progress.
    pub lasted: Duration,
    /// The wait that everything else waits for.
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
            None => write!(f, "; nobody says what for")?,
        }
        let Counts { accepted, target, running, not_put, .. } = self.counts;
        write!(f, "; accepted={accepted} target={target} running={running} not_put={not_put}")?;
        for other in &self.others {
            write!(f, "; also {other}")?;
        }
        Ok(())
    }
}

/// See the module's documentation.
#[derive(Clone)]
pub struct Watchdog {
    pub(crate) waits: Arc<Waits>,
    pub(crate) board: Arc<Mutex<Board>>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) silence: Duration,
    pub(crate) action: OnSilence,
}

impl Watchdog {
    /// Watches until the run has to be stopped, which most recipes never ask for. Cancel-safe.
    pub async fn run(&self) -> Silence {
        let (mut seen, mut since) = (self.waits.progress(), Instant::now());
        loop {
            tokio::time::sleep(self.silence / LOOKS).await;
            let progress = self.waits.progress();
            if progress != seen {
                (seen, since) = (progress, Instant::now());
                continue;
            }
            if since.elapsed() < self.silence {
                continue;
            }
            let report = self.look(since.elapsed());
            tracing::warn!("{report}");
            metrics::counter!("rolldock_silences_total").increment(1);
            match self.action {
                OnSilence::Report => {}
                OnSilence::CancelAndRequeue => self.cancel(report.cause.as_ref()),
                OnSilence::Stop => return report,
            }
            since = Instant::now();
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
        // Outermost first: what is held back for the trainer or the queue cannot be blamed on an engine that works.
        let held_for = match counts.hold {
            Some(Hold::Trainer) if counts.running == 0 => of(Phase::Trainer),
            Some(Hold::Queue) if counts.running == 0 => of(Phase::Queue),
            _ => None,
        };
        let of_first = || first.and_then(|(id, _)| self.waits.of_dispatch(id));
        let cause = of(Phase::Update)
            .or(held_for)
            .or_else(of_first)
            .or_else(|| [Phase::Queue, Phase::Trainer].into_iter().find_map(of))
            .or_else(|| oldest.first().cloned());
        let is_other = |wait: &Waiting| Some(wait.phase) != cause.as_ref().map(|cause| cause.phase);
        let others = oldest.iter().filter(|wait| is_other(wait)).cloned().collect();
        Silence { lasted, cause, others, counts }
    }

    /// Gives the group up that is waited for; its prompt is sent out again.
    fn cancel(&self, cause: Option<&Waiting>) {
        let Some(DispatchId(id)) = cause.and_then(|cause| cause.subject.dispatch) else { return };
        self.signals.given_up.send_replace(Some(DispatchId(id)));
    }
}
