//! The promises around any runner: how many at a time, how fast, how often, how long, and what a failure means.
//!
//! A job passes, in this order: the cache (equal jobs share one answer, and one that runs already is waited for), a
//! place among `concurrency`, and for each attempt the rate limit and the runner under the attempt's limit. Only
//! errors that may pass (retryable, backpressure) are tried again, after a pause that doubles or that the other side
//! asked for. The deadline counts from the call to the end, waiting included, and its error names what was waited
//! for. The rule for failures has the last word.
//!
//! # Invariants
//! - A call ends within `deadline`, or at once when the token ends.
//! - At most `concurrency` jobs are with the runner; a place is kept over the pauses, so that a server in trouble
//!   gets fewer questions and not more.
//! - Failures are never cached. A dropped job hands its turn to an equal one that waits.
//!
//! # Deliberately absent
//! Jitter: randomness is injected in this project, and the rate limit already spreads attempts. `Retry-After` as a
//! date: nothing here reads the wall clock.

mod cache;
mod rate;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{RewardJob, RewardRunner};
use crate::{ErrorClass, RewardError, Score, invariants};
use cache::Cache;
use rate::RateLimit;

/// The pause before the second attempt.
const RETRY_PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause that doubling leads to.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(10);

/// What becomes of a job that has no score.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The error is the job's: its sample fails.
    #[default]
    FailSample,
    /// It gets this score, and as much `acc` as such a score has.
    Score(f64),
    /// The run ends: [`RewardError::Stop`].
    Stop,
}

impl OnFailure {
    fn apply(self, result: Result<Score, RewardError>) -> Result<Score, RewardError> {
        let error = match result {
            // The end was asked for: no rule may turn it into a score or into an alarm.
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
pub struct Guard {
    /// Jobs with the runner at a time, at least 1.
    pub concurrency: usize,
    /// Attempts a second; no limit when absent.
    pub per_second: Option<f64>,
    /// Attempts after the first.
    pub retries: u32,
    /// Of one attempt.
    pub attempt: Duration,
    /// Of everything together.
    pub deadline: Duration,
    /// Scores that are kept; 0 asks for every job anew, equal or not.
    pub cache_entries: usize,
    /// See [`OnFailure`].
    pub on_failure: OnFailure,
}

/// A runner behind its guard; see the module's documentation.
pub struct Guarded {
    runner: Arc<dyn RewardRunner>,
    guard: Guard,
    places: Semaphore,
    rate: Option<RateLimit>,
    cache: Option<Cache>,
    token: CancellationToken,
}

impl Guarded {
    /// Guards `runner`; when `token` ends, so do all its jobs.
    pub fn new(runner: Arc<dyn RewardRunner>, guard: Guard, token: CancellationToken) -> Self {
        Self {
            places: Semaphore::new(guard.concurrency.clamp(1, Semaphore::MAX_PERMITS)),
            rate: guard.per_second.map(RateLimit::new),
            cache: (guard.cache_entries > 0).then(|| Cache::new(guard.cache_entries)),
            runner,
            guard,
            token,
        }
    }

    /// Cancel-safe.
    async fn timed(&self, job: &RewardJob) -> Result<Score, RewardError> {
        let progress = Progress::default();
        match timeout(self.guard.deadline, self.cached(job, &progress)).await {
            Ok(result) => result,
            Err(_) => Err(progress.deadline(self.guard.deadline)),
        }
    }

    /// Cancel-safe: an equal job that waits goes on where this one is dropped.
    async fn cached(&self, job: &RewardJob, progress: &Progress) -> Result<Score, RewardError> {
        let Some(cache) = &self.cache else { return self.attempts(job, progress).await };
        let cell = cache.cell(job.content_hash());
        progress.waits_for("an equal job");
        cell.get_or_try_init(|| self.attempts(job, progress)).await.cloned()
    }

    /// Cancel-safe.
    async fn attempts(&self, job: &RewardJob, progress: &Progress) -> Result<Score, RewardError> {
        progress.waits_for("a place among the jobs at a time");
        let _place = self.places.acquire().await.map_err(|_| RewardError::Cancelled)?;
        let mut pause = RETRY_PAUSE_FIRST;
        let mut left = self.guard.retries;
        loop {
            if let Some(rate) = &self.rate {
                progress.waits_for("the rate limit");
                rate.turn().await;
            }
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
        }
    }

    /// Cancel-safe.
    async fn attempt(&self, job: &RewardJob) -> Result<Score, RewardError> {
        let attempt = timeout(self.guard.attempt, self.runner.score(job)).await;
        let score = attempt.unwrap_or(Err(RewardError::TimedOut { after: self.guard.attempt }))?;
        invariants::score_is_sound(&score).map_err(|violation| RewardError::Nonsense {
            what: "the reward".into(),
            reason: "expected a finite score and an acc from 0 to 1".into(),
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
                result = self.timed(job) => result,
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

/// How far a job has come, for the error at its deadline.
#[derive(Default)]
struct Progress(Mutex<Stage>);

#[derive(Default)]
struct Stage {
    waiting_for: &'static str,
    last_error: Option<String>,
}

impl Progress {
    fn waits_for(&self, what: &'static str) {
        self.0.lock().waiting_for = what;
    }

    fn failed(&self, error: &RewardError) {
        let mut stage = self.0.lock();
        stage.waiting_for = "the pause before the next attempt";
        stage.last_error = Some(error.to_string());
    }

    fn deadline(&self, after: Duration) -> RewardError {
        let stage = self.0.lock();
        let last_error = match &stage.last_error {
            Some(error) => format!("the attempt before failed: {error}"),
            None => "no attempt had failed".to_owned(),
        };
        RewardError::Deadline { after, waiting_for: stage.waiting_for, last_error }
    }
}

#[cfg(test)]
mod tests;
