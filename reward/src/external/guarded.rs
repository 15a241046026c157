//! The guard around a runner: it bounds concurrency, rate, attempts and time, and decides how a failure is
//! handled.
//!
//! A job passes three stages. The first stage is the cache: equal jobs share one score, and a job waits for
//! an equal job that is already being scored. In the second stage, the job waits for one of `concurrency`
//! permits. The third stage is the attempts. Each attempt waits for the rate limit, and then calls the runner
//! under the attempt's time limit. Only errors of the classes `Retryable` and `Backpressure` are tried again,
//! after a pause that doubles each time, or after the pause that the server asked for. Finally, [`OnFailure`]
//! is applied to a failure.
//!
//! The deadline counts from the first attempt, after the waits for the permit and the rate limit, so a burst
//! of jobs does not time out in the queue. The error names the stage in which the job waited.
//!
//! # Outages
//! A reward that answers no job is out (`breaker.rs`), and no sample is at fault. A job that fails during an
//! outage waits, and begins again when the reward answers, because a sample costs far more than its grading.
//! If an outage may have caused the failure of a job, the job is not at fault yet. It is at fault if it fails
//! again after the reward has answered another job. Only a few outages excuse a job, since the job may be
//! their cause. Jobs that two outages have excused are scored one at a time. A runner may also refuse a job
//! without scoring it. Such a job waits, and is tried again. If an outage lasts until its deadline, the
//! reward is given up, and every job gets [`RewardError::Outage`].
//!
//! Without a breaker, a job waits for its first attempt as long as other jobs are answered. It fails when no
//! job was answered for [`PATIENCE_DEADLINES`] deadlines.
//!
//! # Invariants
//! - As long as the reward answers other jobs, a job ends within two deadlines of its first attempt, or
//!   within one deadline without a breaker. All jobs end when the reward is given up, and immediately when
//!   the token is cancelled.
//! - A job ends after a bounded number of attempts, regardless of other jobs (`breaker.rs`).
//! - At most `concurrency` jobs are with the runner. A job keeps its permit during pauses, so a server in
//!   trouble gets fewer requests, not more.
//! - Failures are never cached. When a job is dropped, an equal job that waits takes over.
//!
//! # Deliberately absent
//! Pauses have no jitter, because this crate has no source of entropy. If a rate limit is set, it spreads the
//! attempts. `Retry-After` is not read as a date, because nothing in this crate reads the wall clock.

mod asked;
mod breaker;
mod cache;
mod rate;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{RewardHealth, RewardJob, RewardRunner};
use crate::{ErrorClass, RewardError, Score};
use asked::Asked;
use breaker::Failures;
use cache::Cache;
use rate::RateLimit;

pub(crate) use breaker::BreakerConfig;

/// The pause before the second attempt.
const RETRY_PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause after doubling.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(10);

/// A waiting job fails after this many deadlines in which no job was answered. A job that has begun its first
/// attempt is answered within one deadline or not at all.
const PATIENCE_DEADLINES: u32 = 2;

/// What happens to a job that has no score.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The sample fails with the job's error.
    #[default]
    FailSample,
    /// The sample gets this score. Its `acc` is derived from the score, as for a reply without an `acc`.
    Score(f64),
    /// The run ends with [`RewardError::Stop`].
    Stop,
}

impl OnFailure {
    fn apply(self, result: Result<Score, RewardError>) -> Result<Score, RewardError> {
        let error = match result {
            // `on_failure` does not apply if the job was cancelled, or if the reward was given up.
            Ok(_) | Err(RewardError::Cancelled | RewardError::Outage { .. }) => return result,
            Err(error) => error,
        };
        match self {
            Self::FailSample => Err(error),
            Self::Score(score) => {
                Ok(Score { score, acc: super::answer::acc_of(score), pred: None, ..Score::default() })
            }
            Self::Stop => Err(RewardError::Stop { reason: error.to_string() }),
        }
    }
}

/// The settings of [`Guarded`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Guard {
    /// Maximum number of jobs that are with the runner at a time; at least 1.
    pub concurrency: usize,
    /// Maximum number of attempts per second; no limit when absent.
    pub per_second: Option<f64>,
    /// Maximum number of attempts after the first one.
    pub retries: u32,
    /// The time limit of one attempt.
    pub attempt: Duration,
    /// The time limit of a job with all its attempts and pauses, from its first attempt on.
    pub deadline: Duration,
    /// The number of scores that the cache keeps; with 0, every job is scored again.
    pub cache_entries: usize,
    /// What happens to a job that has no score.
    pub on_failure: OnFailure,
    /// How outages are handled; when absent, every failure counts against its job.
    pub breaker: Option<BreakerConfig>,
}

/// A runner behind a guard.
pub(crate) struct Guarded {
    asked: Arc<Asked>,
    guard: Guard,
    places: Semaphore,
    /// The permit to score a job that may have caused an outage.
    suspects: Semaphore,
    rate: Option<RateLimit>,
    cache: Option<Cache>,
    token: CancellationToken,
}

impl Guarded {
    /// Guards `runner`; all its jobs end when `token` is cancelled. Its tasks run on `tracker`.
    pub(crate) fn new(
        runner: Arc<dyn RewardRunner>,
        guard: Guard,
        tracker: TaskTracker,
        token: CancellationToken,
    ) -> Self {
        // If the first failure ends the run, the guard does not wait for the end of an outage.
        let breaker = guard.breaker.filter(|_| guard.on_failure != OnFailure::Stop);
        Self {
            places: Semaphore::new(guard.concurrency.clamp(1, Semaphore::MAX_PERMITS)),
            suspects: Semaphore::new(1),
            rate: guard.per_second.map(RateLimit::new),
            cache: (guard.cache_entries > 0).then(|| Cache::new(guard.cache_entries)),
            asked: Arc::new(Asked::new(runner, guard.attempt, breaker, tracker, token.clone())),
            guard,
            token,
        }
    }

    /// Cancel-safe.
    async fn patient(&self, job: &RewardJob) -> Result<Score, RewardError> {
        let progress = Progress::default();
        tokio::select! {
            biased;
            result = self.cached(job, &progress) => result,
            error = self.out_of_patience(&progress) => Err(error),
        }
    }

    /// Ends when a job has waited too long for its first attempt. Never ends once that attempt has begun.
    /// With a breaker, it never ends either, because the breaker notices that jobs are not answered.
    /// Cancel-safe.
    async fn out_of_patience(&self, progress: &Progress) -> RewardError {
        if self.asked.has_breaker() {
            return std::future::pending().await;
        }
        let asked_at = Instant::now();
        let patience = self.guard.deadline.saturating_mul(PATIENCE_DEADLINES);
        loop {
            let answered_at = self.asked.answered_at();
            let last = answered_at.map_or(asked_at, |instant| instant.max(asked_at));
            // A limit beyond the clock's range is no limit.
            let Some(end) = last.checked_add(patience) else { return std::future::pending().await };
            if Instant::now() < end {
                sleep_until(end).await;
                continue;
            }
            match progress.no_turn(patience) {
                Some(error) => return error,
                None => return std::future::pending().await,
            }
        }
    }

    /// Cancel-safe: when this job is dropped, an equal job that waits takes over.
    async fn cached(&self, job: &RewardJob, progress: &Progress) -> Result<Score, RewardError> {
        let Some(cache) = &self.cache else { return self.in_turn(job, progress).await };
        let cell = cache.cell(job.content_hash());
        progress.waits_for("an equal job");
        cell.get_or_try_init(|| self.in_turn(job, progress)).await.cloned()
    }

    /// Waits for a permit, then scores the job. Cancel-safe.
    async fn in_turn(&self, job: &RewardJob, progress: &Progress) -> Result<Score, RewardError> {
        progress.waits_for("one of the running jobs to end");
        let _place = self.places.acquire().await.map_err(|_| RewardError::Cancelled)?;
        let mut failures = Failures::default();
        let mut alone = None;
        loop {
            if alone.is_none() && failures.is_suspect() {
                progress.waits_for("other jobs that may have brought the reward down");
                // The permit is kept until the job ends, so an outage that the job causes affects no other
                // suspect.
                alone = Some(self.suspects.acquire().await.map_err(|_| RewardError::Cancelled)?);
            }
            progress.waits_for("the reward to answer again");
            self.asked.ready().await?;
            self.rate_allows(progress).await;
            progress.has_turn();
            let attempts = self.attempts(job, progress, &mut failures);
            let error = match timeout(self.guard.deadline, attempts).await {
                Ok(Ok(score)) => return Ok(score),
                Ok(Err(error)) => error,
                Err(_) => {
                    let error = progress.deadline(self.guard.deadline);
                    self.asked.failed(&error, &mut failures);
                    error
                }
            };
            // If the reward is suspected, its probe shows whether the failure is the job's own.
            self.asked.ready().await?;
            if self.asked.blames_job(&error, &mut failures) {
                return Err(error);
            }
            sleep(RETRY_PAUSE_FIRST).await;
        }
    }

    /// Cancel-safe.
    async fn rate_allows(&self, progress: &Progress) {
        if let Some(rate) = &self.rate {
            progress.waits_for("the rate limit");
            rate.turn().await;
        }
    }

    /// The first attempt starts immediately. A pause precedes each further attempt. Cancel-safe.
    async fn attempts(
        &self,
        job: &RewardJob,
        progress: &Progress,
        failures: &mut Failures,
    ) -> Result<Score, RewardError> {
        let mut pause = RETRY_PAUSE_FIRST;
        let mut left = self.guard.retries;
        loop {
            progress.waits_for("an answer");
            let error = match self.asked.attempt(job, failures).await {
                Ok(score) => return Ok(score),
                Err(error) => error,
            };
            let may_pass = matches!(error.class(), ErrorClass::Retryable | ErrorClass::Backpressure);
            if left == 0 || !may_pass {
                return Err(error);
            }
            left -= 1;
            progress.failed(&error);
            sleep(error.retry_after().unwrap_or(pause)).await;
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
            self.asked.ready().await?;
            self.rate_allows(progress).await;
        }
    }

    /// Asks whether the reward answers `job`, with the guard's attempts. Cancel-safe.
    async fn probed(&self, job: &RewardJob) -> Result<(), RewardError> {
        let progress = Progress::default();
        let probing = async {
            let mut pause = RETRY_PAUSE_FIRST;
            for left in (0..=self.guard.retries).rev() {
                progress.waits_for("an answer");
                match self.asked.probe(job).await {
                    Ok(()) => break,
                    Err(error) if left == 0 => return Err(error),
                    Err(error) => progress.failed(&error),
                }
                sleep(pause).await;
                pause = (pause * 2).min(RETRY_PAUSE_MAX);
            }
            Ok(())
        };
        let in_time = timeout(self.guard.deadline, probing).await;
        in_time.unwrap_or_else(|_| Err(progress.deadline(self.guard.deadline)))
    }

    /// Runs `work` until the token is cancelled.
    async fn until_closed<T>(
        &self,
        work: impl Future<Output = Result<T, RewardError>>,
    ) -> Result<T, RewardError> {
        self.token.run_until_cancelled(work).await.unwrap_or(Err(RewardError::Cancelled))
    }
}

impl RewardRunner for Guarded {
    fn score<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        Box::pin(async move {
            let result = self.until_closed(self.patient(job)).await;
            self.guard.on_failure.apply(result)
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), RewardError>> {
        Box::pin(self.until_closed(self.asked.check()))
    }

    fn probe<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<(), RewardError>> {
        match self.guard.breaker {
            Some(_) => Box::pin(self.until_closed(self.probed(job))),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }

    fn health(&self) -> Option<watch::Receiver<RewardHealth>> {
        self.asked.health()
    }
}

/// The stage that a job has reached, for its error messages.
#[derive(Default)]
struct Progress(Mutex<Stage>);

#[derive(Default)]
struct Stage {
    has_turn: bool,
    waiting_for: &'static str,
    last_error: Option<String>,
}

impl Progress {
    fn waits_for(&self, what: &'static str) {
        self.0.lock().waiting_for = what;
    }

    fn has_turn(&self) {
        self.0.lock().has_turn = true;
    }

    /// The error of a job that has waited too long for its first attempt; `None` after that attempt has
    /// begun.
    fn no_turn(&self, after: Duration) -> Option<RewardError> {
        let stage = self.0.lock();
        (!stage.has_turn).then_some(RewardError::NoTurn { after, waiting_for: stage.waiting_for })
    }

    fn failed(&self, error: &RewardError) {
        let mut stage = self.0.lock();
        stage.waiting_for = "the pause before the next attempt";
        stage.last_error = Some(error.to_string());
    }

    fn deadline(&self, after: Duration) -> RewardError {
        let stage = self.0.lock();
        let last_error = match &stage.last_error {
            Some(error) => format!("the previous attempt failed: {error}"),
            None => "no attempt had failed".to_owned(),
        };
        RewardError::Deadline { after, waiting_for: stage.waiting_for, last_error }
    }
}

#[cfg(test)]
mod tests;
