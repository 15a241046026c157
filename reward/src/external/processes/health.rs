//! The health of a pool's workers: their deaths delay or forbid the next starts.

use std::time::Duration;

use tokio::time::Instant;

use super::worker::Death;
use crate::RewardError;

/// Jobs are refused after this many deaths in a row without an answer, or two per worker if that is more.
pub(super) const DEATHS_IN_A_ROW_MAX: u32 = 8;
/// The pause before the start that follows the first death.
const START_PAUSE_FIRST: Duration = Duration::from_millis(20);
/// The longest pause before a start.
const START_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Maximum number of doublings of the pause; the longest pause is reached earlier.
const DOUBLINGS_MAX: u32 = 16;

/// When a worker is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::external) enum Start {
    /// After the pause that earlier deaths have caused. While jobs are refused, no worker is started.
    Paced,
    /// Immediately. A probe has to show whether workers survive, regardless of earlier deaths.
    AtOnce,
}

/// The deaths of a pool's workers.
#[derive(Debug)]
pub(in crate::external) struct Health {
    /// The name of the pool in errors.
    what: String,
    /// Jobs are refused after this many deaths in a row.
    deaths_max: u32,
    /// Deaths since the last answer.
    pub(super) deaths: u32,
    /// The time before which no worker is started.
    pub(super) next_start: Option<Instant>,
    last: Death,
    /// The reason why no worker could start.
    unloadable: Option<RewardError>,
}

impl Health {
    pub(in crate::external) fn new(what: String, workers: usize) -> Self {
        // One cause can kill all workers of a pool at the same time. This alone is no reason to refuse jobs.
        let two_rounds = u32::try_from(workers.saturating_mul(2)).unwrap_or(u32::MAX);
        Self {
            what,
            deaths_max: two_rounds.max(DEATHS_IN_A_ROW_MAX),
            deaths: 0,
            next_start: None,
            last: Death::default(),
            unloadable: None,
        }
    }

    /// Notes that a worker has answered.
    pub(in crate::external) fn answered(&mut self) {
        self.deaths = 0;
        self.next_start = None;
    }

    /// Notes that a worker has started.
    pub(super) fn started(&mut self) {
        self.unloadable = None;
    }

    /// Notes that a worker has died without an answer.
    pub(in crate::external) fn died(&mut self, death: &Death) {
        let doublings = self.deaths.min(DOUBLINGS_MAX);
        let pause = (START_PAUSE_FIRST * (1 << doublings)).min(START_PAUSE_MAX);
        self.deaths = self.deaths.saturating_add(1);
        self.next_start = Some(Instant::now() + pause);
        self.last = death.clone();
    }

    /// Notes that no worker can start, and returns the error of all jobs until one has started.
    pub(super) fn is_unloadable(&mut self, reason: String) -> RewardError {
        let error = RewardError::Unloadable { what: self.what.clone(), reason };
        self.unloadable = Some(error.clone());
        error
    }

    /// The earliest time of the next start; `None` if the start need not wait. Returns an error while jobs
    /// are refused.
    pub(in crate::external) fn may_start(&mut self, start: Start) -> Result<Option<Instant>, RewardError> {
        if start == Start::AtOnce {
            return Ok(None);
        }
        if let Some(error) = &self.unloadable {
            return Err(error.clone());
        }
        if self.deaths < self.deaths_max {
            return Ok(self.next_start);
        }
        let now = Instant::now();
        if self.next_start.is_some_and(|instant| now < instant) {
            return Err(RewardError::WorkersKeepDying {
                what: self.what.clone(),
                deaths: self.deaths,
                how: self.last.how.clone(),
                stderr: self.last.stderr.clone(),
            });
        }
        // This start tests whether workers survive again. Other starts are refused for `START_PAUSE_MAX`, or
        // until a worker answers.
        self.next_start = Some(now + START_PAUSE_MAX);
        Ok(None)
    }
}
