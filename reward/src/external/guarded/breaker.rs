//! The circuit breaker of a reward. It distinguishes an outage of the reward from failures of single samples.
//!
//! ```text
//!               failures in a row                 the probe failed
//!     closed ----------------------> half-open --------------------> open ----> given up
//!       ^                             |     ^                       |  |  deadline
//!       |                             |     +-----------------------+  |
//!       |         any answer          |         back-off is over       |
//!       +-----------------------------+--------------------------------+
//! ```
//!
//! A failure counts only if it may have a reason outside of its sample ([`RewardError::may_be_outage`]). Any
//! answer sets the count back to zero. When the count reaches its bound, the reward is *suspected*. One
//! probe, which is a job that was answered before, then shows whether the reward is *out* or the samples are
//! at fault. While the reward is out, only probes are sent, with growing pauses between them.
//!
//! # Which failures are a job's own
//! The breaker also keeps the failures of each job ([`Failures`]). A job is at fault if it has failed, the
//! reward has then answered another job, and the job has failed again. An outage excuses the job's failures
//! before and during the outage. At most [`EXCUSES_MAX`] outages excuse the same job, because the job may be
//! their cause. After two excuses, the guard scores such jobs one at a time, so that only the job that causes
//! the outages is at fault. A refusal ([`RewardError::is_refusal`]) is not a failure of the job. It raises a
//! suspicion like any other failure, because the probe shows whether the reward answers.
//!
//! # Invariants
//! - There is at most one probe at a time. The result of a probe that began before the last answer has no
//!   effect.
//! - The reward is out only after a probe has failed. Samples that no reward could score therefore cause no
//!   outage.
//! - If each suspicion ends with an answer, every job is answered or at fault after a bounded number of
//!   attempts. The bound depends on the settings alone, not on other jobs.
//! - A reward that was given up stays given up.
//!
//! # Deliberately absent
//! The breaker does no I/O, starts no tasks and writes no log: [`super::asked`] sends the probes and reports
//! their results.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::RewardError;
use crate::external::{RewardHealth, RewardState};

/// The number of outages that may excuse the failures of one job. An unstable reward fails a few times before
/// it is repaired. A job that brings the reward down does so each time.
pub(super) const EXCUSES_MAX: u32 = 3;
/// After this number of excuses, a job is suspected of bringing the reward down. An outage also fails the
/// jobs that run at the same time.
const SUSPECT_EXCUSES: u32 = 2;

/// The settings of a [`Breaker`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BreakerConfig {
    /// The number of failures in a row after which the reward is suspected; at least 1.
    pub failures_max: u32,
    /// The pause after the first failed probe; the pause doubles from probe to probe.
    pub backoff_initial: Duration,
    /// The longest pause between two probes.
    pub backoff_max: Duration,
    /// The duration of an outage after which the reward is given up. It counts from the suspicion.
    pub deadline: Duration,
}

/// A breaker; every method may be called from any task.
#[derive(Debug)]
pub(super) struct Breaker {
    config: BreakerConfig,
    inner: Mutex<Inner>,
    health: watch::Sender<RewardHealth>,
}

#[derive(Debug)]
struct Inner {
    state: State,
    /// The number of answers so far.
    answers: u64,
    /// The number of times that the reward was suspected.
    suspicions: u64,
    outages: u64,
    /// The total time of the outages that are over.
    out: Duration,
}

#[derive(Debug)]
enum State {
    Closed {
        failures: u32,
    },
    /// A probe is being sent.
    HalfOpen(Suspicion),
    /// The next probe waits for the end of the back-off.
    Open(Suspicion),
    GivenUp,
}

#[derive(Debug, Clone, Copy)]
struct Suspicion {
    since: Instant,
    probes_failed: u32,
}

/// The consequence of a failed probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterProbe {
    /// The next probe is due at this time. `is_first` marks the beginning of the outage.
    Again { at: Instant, is_first: bool },
    /// The outage has lasted for too long.
    GivenUp,
    /// The reward has answered a job since the probe began.
    Answered,
}

/// The failures of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Failures {
    /// The number of answers to other jobs before the first failure that no outage has excused.
    answers_before: Option<u64>,
    /// Whether the job has failed again after an answer to another job.
    is_own: bool,
    /// The number of outages that have excused failures of the job.
    excuses: u32,
    /// The last outage that was considered, counted from 1.
    outage: u64,
    /// Whether that outage has excused the job.
    is_excused: bool,
}

impl Failures {
    /// Whether the job may have caused an outage, so it has to be scored apart from other such jobs.
    pub(super) fn is_suspect(&self) -> bool {
        self.excuses >= SUSPECT_EXCUSES
    }
}

impl Inner {
    /// Whether a probe has failed since the last answer.
    fn is_out(&self) -> bool {
        match self.state {
            State::HalfOpen(suspicion) | State::Open(suspicion) => suspicion.probes_failed > 0,
            State::Closed { .. } | State::GivenUp => false,
        }
    }

    /// Excuses the failures of a job if an outage has begun since the last call for this job. An outage that
    /// was over before the job's first failure excuses nothing.
    fn consider_outages(&self, of_job: &mut Failures) {
        if of_job.outage == self.outages {
            return;
        }
        of_job.outage = self.outages;
        let has_met_it = of_job.answers_before.is_some() || self.is_out();
        of_job.is_excused = has_met_it && of_job.excuses < EXCUSES_MAX;
        if of_job.is_excused {
            *of_job =
                Failures { answers_before: None, is_own: false, excuses: of_job.excuses + 1, ..*of_job };
        }
    }
}

impl Breaker {
    pub(super) fn new(config: BreakerConfig) -> Self {
        let inner = Inner {
            state: State::Closed { failures: 0 },
            answers: 0,
            suspicions: 0,
            outages: 0,
            out: Duration::ZERO,
        };
        Self { config, inner: Mutex::new(inner), health: watch::Sender::default() }
    }

    /// Reports the health, also to receivers that subscribe later.
    pub(super) fn health(&self) -> watch::Receiver<RewardHealth> {
        self.health.subscribe()
    }

    /// Counts a failure that may be an outage. Adds it to the failures of its job, unless an outage excuses
    /// it. If the failure raises a suspicion, returns the number of the suspicion, and the caller has to send
    /// a probe.
    pub(super) fn failed(&self, of_job: &mut Failures) -> Option<u64> {
        let mut inner = self.inner.lock();
        inner.consider_outages(of_job);
        if !(inner.is_out() && of_job.is_excused) {
            let answers_before = *of_job.answers_before.get_or_insert(inner.answers);
            of_job.is_own |= inner.answers > answers_before;
        }
        self.suspect(&mut inner)
    }

    /// Counts a refusal, which is not a failure of its job. Returns a suspicion like [`Self::failed`].
    pub(super) fn refused(&self) -> Option<u64> {
        self.suspect(&mut self.inner.lock())
    }

    fn suspect(&self, inner: &mut Inner) -> Option<u64> {
        let State::Closed { failures } = &mut inner.state else { return None };
        *failures += 1;
        if *failures < self.config.failures_max {
            return None;
        }
        inner.state = State::HalfOpen(Suspicion { since: Instant::now(), probes_failed: 0 });
        inner.suspicions += 1;
        self.publish(inner, RewardState::Suspected);
        Some(inner.suspicions)
    }

    /// Whether a job is at fault: apart from excused failures, it has failed both before and after an answer
    /// to another job.
    pub(super) fn blames_job(&self, of_job: &mut Failures) -> bool {
        self.inner.lock().consider_outages(of_job);
        of_job.is_own
    }

    /// Notes an answer to any job or probe. If the answer ends an outage, returns how long the outage lasted.
    pub(super) fn answered(&self) -> Option<Duration> {
        let mut inner = self.inner.lock();
        inner.answers += 1;
        let suspicion = match &mut inner.state {
            State::Closed { failures } => {
                *failures = 0;
                return None;
            }
            State::GivenUp => return None,
            State::HalfOpen(suspicion) | State::Open(suspicion) => *suspicion,
        };
        inner.state = State::Closed { failures: 0 };
        let lasted = (suspicion.probes_failed > 0).then(|| suspicion.since.elapsed());
        inner.out += lasted.unwrap_or_default();
        self.publish(&inner, RewardState::Answering);
        lasted
    }

    /// Notes that the probe of a suspicion has failed. `asked_pause` is the pause that the reward asked for.
    pub(super) fn probe_failed(
        &self,
        suspicion: u64,
        error: &RewardError,
        asked_pause: Option<Duration>,
    ) -> AfterProbe {
        let mut inner = self.inner.lock();
        let trip = match inner.state {
            State::HalfOpen(trip) if inner.suspicions == suspicion => trip,
            _ => return AfterProbe::Answered,
        };
        let BreakerConfig { backoff_initial, backoff_max, deadline, .. } = self.config;
        let is_first = trip.probes_failed == 0;
        inner.outages += u64::from(is_first);
        let left = deadline.saturating_sub(trip.since.elapsed());
        if left.is_zero() {
            inner.state = State::GivenUp;
            inner.out += trip.since.elapsed();
            let outage = RewardError::Outage { after: deadline, last_error: error.to_string() };
            self.publish(&inner, RewardState::GivenUp(outage));
            return AfterProbe::GivenUp;
        }
        let doubled = backoff_initial.saturating_mul(1_u32 << trip.probes_failed.min(31)).min(backoff_max);
        let pause = asked_pause.map_or(doubled, |asked| asked.max(doubled)).min(left);
        inner.state = State::Open(Suspicion { probes_failed: trip.probes_failed.saturating_add(1), ..trip });
        self.publish(&inner, RewardState::Out);
        AfterProbe::Again { at: Instant::now() + pause, is_first }
    }

    /// Begins the next probe of an outage. Returns false if no probe is needed any more.
    pub(super) fn begin_probe(&self, suspicion: u64) -> bool {
        let mut inner = self.inner.lock();
        match inner.state {
            State::Open(trip) if inner.suspicions == suspicion => {
                inner.state = State::HalfOpen(trip);
                true
            }
            _ => false,
        }
    }

    /// Waits until the reward is neither suspected nor out. An error is final. Cancel-safe.
    pub(super) async fn ready(&self) -> Result<(), RewardError> {
        let mut health = self.health.subscribe();
        let is_settled =
            |health: &RewardHealth| matches!(health.state, RewardState::Answering | RewardState::GivenUp(_));
        // `self` has the sender, so the wait ends only with a state.
        match health.wait_for(is_settled).await.as_deref() {
            Ok(RewardHealth { state: RewardState::GivenUp(error), .. }) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn publish(&self, inner: &Inner, state: RewardState) {
        self.health.send_replace(RewardHealth { state, outages: inner.outages, out: inner.out });
    }
}

#[cfg(test)]
mod tests;
