//! Calls the runner for the guard, one attempt at a time. The breaker counts the outcomes of the attempts. A
//! separate task sends the breaker's probes, so an outage ends even if no job waits for its end.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::breaker::{AfterProbe, Breaker, BreakerConfig, Failures};
use crate::external::{RewardHealth, RewardJob, RewardRunner, RewardState};
use crate::{RewardError, Score, invariants, tasks};

/// A runner with the time limit of an attempt, and with a breaker if the recipe has one.
pub(super) struct Asked {
    runner: Arc<dyn RewardRunner>,
    attempt: Duration,
    breaker: Option<Breaker>,
    /// The last job that got a score, or else the first job that was answered. The breaker's probe asks about
    /// this job again: if the job fails now, the reward has changed.
    canary: Mutex<Option<RewardJob>>,
    /// The time of the last answer.
    answered_at: Mutex<Option<Instant>>,
    tracker: TaskTracker,
    token: CancellationToken,
}

impl Asked {
    /// Probes run on `tracker` until `token` is cancelled.
    pub(super) fn new(
        runner: Arc<dyn RewardRunner>,
        attempt: Duration,
        breaker: Option<BreakerConfig>,
        tracker: TaskTracker,
        token: CancellationToken,
    ) -> Self {
        Self {
            runner,
            attempt,
            breaker: breaker.map(Breaker::new),
            canary: Mutex::default(),
            answered_at: Mutex::default(),
            tracker,
            token,
        }
    }

    /// Checks that jobs can be scored, with [`RewardRunner::check`].
    pub(super) async fn check(&self) -> Result<(), RewardError> {
        self.runner.check().await
    }

    pub(super) fn health(&self) -> Option<watch::Receiver<RewardHealth>> {
        self.breaker.as_ref().map(Breaker::health)
    }

    pub(super) fn has_breaker(&self) -> bool {
        self.breaker.is_some()
    }

    pub(super) fn answered_at(&self) -> Option<Instant> {
        *self.answered_at.lock()
    }

    /// Waits while the reward is suspected or out. An error is final. Cancel-safe.
    pub(super) async fn ready(&self) -> Result<(), RewardError> {
        match &self.breaker {
            Some(breaker) => breaker.ready().await,
            None => Ok(()),
        }
    }

    /// Whether a job whose last failure is `error` is at fault itself. Without a breaker, the job is always
    /// at fault. A job that was refused is not at fault, because the runner has not scored it yet.
    pub(super) fn blames_job(&self, error: &RewardError, failures: &mut Failures) -> bool {
        let breaker = self.breaker.as_ref().filter(|_| error.may_be_outage());
        breaker.is_none_or(|breaker| !error.is_refusal() && breaker.blames_job(failures))
    }

    /// Asks once for the score of a job. A failure that may be an outage is counted in `failures`, the
    /// failures of the job. Cancel-safe.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        job: &RewardJob,
        failures: &mut Failures,
    ) -> Result<Score, RewardError> {
        let result = self.in_time(self.runner.score(job)).await;
        match &result {
            Ok(_) => self.answered(job, true),
            Err(error) if error.may_be_outage() => self.failed(error, failures),
            Err(RewardError::Cancelled) => {}
            Err(_) => self.answered(job, false),
        }
        let score = result?;
        invariants::score_is_sound(&score).map_err(|violation| RewardError::Nonsense {
            what: "the reward".into(),
            reason: "expected a score that is finite in 32 bits, and an acc from 0 to 1".into(),
            quote: violation.0,
        })?;
        Ok(score)
    }

    /// Counts a failure of a job if it may be an outage.
    pub(super) fn failed(self: &Arc<Self>, error: &RewardError, failures: &mut Failures) {
        let Some(breaker) = self.breaker.as_ref().filter(|_| error.may_be_outage()) else { return };
        let suspicion = if error.is_refusal() { breaker.refused() } else { breaker.failed(failures) };
        if let Some(suspicion) = suspicion {
            let asked = Arc::clone(self);
            tasks::spawn(&self.tracker, "reward probe", async move {
                let token = asked.token.clone();
                token.run_until_cancelled(asked.probe_until_answered(suspicion)).await;
            });
        }
    }

    /// Asks the reward about a job once, and checks whether it answers. Cancel-safe.
    pub(super) async fn probe(&self, job: &RewardJob) -> Result<(), RewardError> {
        self.in_time(self.runner.probe(job)).await?;
        self.answered(job, false);
        Ok(())
    }

    /// Ends `work` after the time limit of an attempt. Cancel-safe if `work` is.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, RewardError>>) -> Result<T, RewardError> {
        timeout(self.attempt, work).await.unwrap_or(Err(RewardError::TimedOut { after: self.attempt }))
    }

    /// Notes that the reward has answered a job. `is_scored` tells whether the answer was a score.
    fn answered(&self, job: &RewardJob, is_scored: bool) {
        *self.answered_at.lock() = Some(Instant::now());
        let Some(breaker) = &self.breaker else { return };
        let mut canary = self.canary.lock();
        if is_scored || canary.is_none() {
            *canary = Some(job.clone());
        }
        drop(canary);
        if let Some(lasted) = breaker.answered() {
            tracing::info!(out_s = lasted.as_secs_f64(), "the reward answers again");
        }
    }

    /// Sends probes until the reward answers or is given up. Cancel-safe.
    async fn probe_until_answered(&self, suspicion: u64) {
        let Some(breaker) = &self.breaker else { return };
        loop {
            let Err(error) = self.probe_again().await else { return };
            match breaker.probe_failed(suspicion, &error, error.retry_after()) {
                AfterProbe::Answered => return,
                AfterProbe::GivenUp => {
                    return tracing::error!(%error, "the reward is given up: it was out for too long");
                }
                AfterProbe::Again { at, is_first } => {
                    let next_try_s = (at - Instant::now()).as_secs_f64();
                    match is_first {
                        true => {
                            tracing::warn!(%error, next_try_s, "the reward is out; samples wait to be graded again")
                        }
                        false => tracing::warn!(%error, next_try_s, "the reward is still out"),
                    }
                    let mut health = breaker.health();
                    let answers = health.wait_for(|health| health.state == RewardState::Answering);
                    tokio::select! {
                        biased;
                        _ = answers => return,
                        () = sleep_until(at) => {}
                    }
                }
            }
            if !breaker.begin_probe(suspicion) {
                return;
            }
        }
    }

    /// Asks again about a job that was answered before. Before the first answer there is no such job. The
    /// suspicion then ends, and failures count against their jobs.
    async fn probe_again(&self) -> Result<(), RewardError> {
        let canary = self.canary.lock().clone();
        match (canary, &self.breaker) {
            (Some(job), _) => self.probe(&job).await,
            (None, Some(breaker)) => {
                breaker.answered();
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }
}
