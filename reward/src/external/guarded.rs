//! The promises around any runner: how many at a time, how fast, how often, how long, and what a failure means.
//!
//! A job passes, in this order: the cache (equal jobs share one answer, and one that runs already is waited for), a
//! place among `concurrency`, and for each attempt the rate limit and the runner under the attempt's limit. Only
//! errors that may pass (retryable, backpressure) are tried again, after a pause that doubles or that the other side
//! asked for. The rule for failures has the last word.
//!
//! The deadline counts from the job's turn, when it has its place and may ask, so that a burst of jobs costs none of
//! them. A job that waits for its turn goes on waiting while others are answered, since then its turn will come; it
//! gives up when for [`PATIENCE_DEADLINES`] deadlines nobody was. Both errors name what was waited for.
//!
//! # Invariants
//! - A call that has its turn ends within `deadline`, and one that waits ends when answers do not come any more; both at
//!   once when the token ends.
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
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{RewardJob, RewardRunner};
use crate::{ErrorClass, RewardError, Score, invariants};
use cache::Cache;
use rate::RateLimit;

/// The pause before the second attempt.
const RETRY_PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause that doubling leads to.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Deadlines without an answer to anybody after which a job does not wait for its turn any longer. Whoever has a place
/// is answered within one, or never.
const PATIENCE_DEADLINES: u32 = 2;

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
    /// Of everything together, from a job's turn on.
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
    /// When somebody was answered last.
    answered_at: Mutex<Option<Instant>>,
    token: CancellationToken,
}

impl Guarded {
    /// Guards `runner`; when `token` ends, so do all its jobs.
    pub fn new(runner: Arc<dyn RewardRunner>, guard: Guard, token: CancellationToken) -> Self {
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

    /// Ends when a job has waited too long for its turn, and never when it has had it. Cancel-safe.
    async fn out_of_patience(&self, progress: &Progress) -> RewardError {
        let asked_at = Instant::now();
        let patience = self.guard.deadline.saturating_mul(PATIENCE_DEADLINES);
        loop {
            let answered_at = *self.answered_at.lock();
            let last = answered_at.map_or(asked_at, |instant| instant.max(asked_at));
            // Beyond what the clock can say there is no limit.
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

    /// Cancel-safe: an equal job that waits goes on where this one is dropped.
    async fn cached(&self, job: &RewardJob, progress: &Progress) -> Result<Score, RewardError> {
        let Some(cache) = &self.cache else { return self.in_turn(job, progress).await };
        let cell = cache.cell(job.content_hash());
        progress.waits_for("an equal job");
        cell.get_or_try_init(|| self.in_turn(job, progress)).await.cloned()
    }

    /// Waits for the job's turn. Cancel-safe.
    async fn in_turn(&self, job: &RewardJob, progress: &Progress) -> Result<Score, RewardError> {
        progress.waits_for("a place among the jobs at a time");
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

    /// The first attempt is at once. Cancel-safe.
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

/// How far a job has come, for the error at its deadline.
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

    /// The error of a job that has not had its turn.
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
            Some(error) => format!("the attempt before failed: {error}"),
            None => "no attempt had failed".to_owned(),
        };
        RewardError::Deadline { after, waiting_for: stage.waiting_for, last_error }
    }
}

#[cfg(test)]
mod tests;
