//! The guard around a runner: it bounds concurrency, rate, attempts and time, and decides what a failure
//! means.
//!
//! A job passes three stages. The first is the cache: equal jobs share one score, and a job waits for an
//! equal job that is already being scored. In the second stage, the job waits for one of `concurrency`
//! permits. The third is its attempts, each of which waits for the rate limit and calls the runner under the
//! attempt's time limit. Only errors of the classes `Retryable` and `Backpressure` are tried again, after a
//! pause that doubles each time, or after the pause that the server asked for. Finally, [`OnFailure`] is
//! applied to a failure.
//!
//! The deadline counts from the first attempt, after the waits for the permit and the rate limit, so a burst
//! of jobs does not time out in the queue. A job before its first attempt keeps waiting as long as other jobs
//! are answered. It fails when no job was answered for [`PATIENCE_DEADLINES`] deadlines. Both errors name
//! what the job waited for.
//!
//! # Invariants
//! - A job ends within `deadline` of its first attempt. A job before its first attempt ends when answers
//!   stop. Both end at once when the token is cancelled.
//! - At most `concurrency` jobs are with the runner. A job keeps its permit during pauses, so a server in
//!   trouble gets fewer requests, not more.
//! - Failures are never cached. When a job is dropped, an equal job that waits takes over.
//!
//! # Deliberately absent
//! Pauses have no jitter: randomness is injected in this project, and the rate limit already spreads
//! attempts. `Retry-After` is not read as a date, because nothing in this crate reads the wall clock.

mod cache;
mod rate;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{RewardJob, RewardRunner};
use crate::{ErrorClass, RewardError, Score, invariants};
use cache::Cache;
use rate::RateLimit;

/// The pause before the second attempt.
const RETRY_PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause after doubling.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(10);

/// A waiting job fails after this many deadlines in which no job was answered. A job that has begun its first
/// attempt is answered within one deadline, or never.
const PATIENCE_DEADLINES: u32 = 2;

/// What happens to a job that has no score.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The sample fails with the job's error.
    #[default]
    FailSample,
    /// The sample gets this score, and the `acc` that an answer with this score alone would give.
    Score(f64),
    /// The run ends with [`RewardError::Stop`].
    Stop,
}

impl OnFailure {
    fn apply(self, result: Result<Score, RewardError>) -> Result<Score, RewardError> {
        let error = match result {
            // A cancelled job must become neither a score nor a stopped run.
            Ok(_) | Err(RewardError::Cancelled) => return result,
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
}

/// A runner behind a guard.
pub(crate) struct Guarded {
    runner: Arc<dyn RewardRunner>,
    guard: Guard,
    places: Semaphore,
    rate: Option<RateLimit>,
    cache: Option<Cache>,
    /// The time of the last answer.
    answered_at: Mutex<Option<Instant>>,
    token: CancellationToken,
}

impl Guarded {
    /// Guards `runner`; all its jobs end when `token` is cancelled.
    pub(crate) fn new(runner: Arc<dyn RewardRunner>, guard: Guard, token: CancellationToken) -> Self {
        Self {
            places: Semaphore::new(guard.concurrency.clamp(1, Semaphore::MAX_PERMITS)),
            rate: guard.per_second.map(RateLimit::new),
            cache: (guard.cache_entries > 0).then(|| Cache::new(guard.cache_entries)),
            answered_at: Mutex::default(),
            runner,
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

    /// Ends when a job has waited too long for its first attempt; never ends after that attempt. Cancel-safe.
    async fn out_of_patience(&self, progress: &Progress) -> RewardError {
        let asked_at = Instant::now();
        let patience = self.guard.deadline.saturating_mul(PATIENCE_DEADLINES);
        loop {
            let answered_at = *self.answered_at.lock();
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
        progress.waits_for("one of the jobs at a time to end");
        let _place = self.places.acquire().await.map_err(|_| RewardError::Cancelled)?;
        self.rate_allows(progress).await;
        progress.has_turn();
        match timeout(self.guard.deadline, self.attempts(job, progress)).await {
            Ok(result) => result,
            Err(_) => Err(progress.deadline(self.guard.deadline)),
        }
    }

    /// Cancel-safe.
    async fn rate_allows(&self, progress: &Progress) {
        if let Some(rate) = &self.rate {
            progress.waits_for("the rate limit");
            rate.turn().await;
        }
    }

    /// The first attempt starts at once; pauses separate the others. Cancel-safe.
    async fn attempts(&self, job: &RewardJob, progress: &Progress) -> Result<Score, RewardError> {
        let mut pause = RETRY_PAUSE_FIRST;
        let mut left = self.guard.retries;
        loop {
            progress.waits_for("an answer");
            let error = match self.attempt(job).await {
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
            self.rate_allows(progress).await;
        }
    }

    /// Cancel-safe.
    async fn attempt(&self, job: &RewardJob) -> Result<Score, RewardError> {
        let attempt = timeout(self.guard.attempt, self.runner.score(job)).await;
        let result = attempt.unwrap_or(Err(RewardError::TimedOut { after: self.guard.attempt }));
        let is_answer = result.as_ref().map_or_else(|error| error.class() != ErrorClass::Retryable, |_| true);
        if is_answer {
            *self.answered_at.lock() = Some(Instant::now());
        }
        let score = result?;
        invariants::score_is_sound(&score).map_err(|violation| RewardError::Nonsense {
            what: "the reward".into(),
            reason: "expected a score that is finite in 32 bits, and an acc from 0 to 1".into(),
            quote: violation.0,
        })?;
        Ok(score)
    }
}

impl RewardRunner for Guarded {
    fn score<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        Box::pin(async move {
            let result = tokio::select! {
                biased;
                () = self.token.cancelled() => Err(RewardError::Cancelled),
                result = self.patient(job) => result,
            };
            self.guard.on_failure.apply(result)
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), RewardError>> {
        Box::pin(async move {
            tokio::select! {
                biased;
                () = self.token.cancelled() => Err(RewardError::Cancelled),
                result = self.runner.check() => result,
            }
        })
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
