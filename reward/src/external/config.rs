//! The configuration of an external reward and of its guard, as a recipe writes it in `ask` of
//! `[[filter.outside]]`. `[reward]` has the same runners, but its guard is `[reward.guard]`, and its deadline is
//! `timeouts.reward`.
//!
//! Exactly one of `python`, `command`, `http`, `judge` and `code` configures the runner; the other keys
//! configure its guard. The first three keys have short forms: `python = "module:function"`,
//! `command = ["program", "argument"]`, `http = "http://.."`.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::RewardRunner;
use super::code::{CodeConfig, CodeRunner};
use super::command::CommandConfig;
use super::guarded::{BreakerConfig, Guard, Guarded, OnFailure};
use super::http::HttpConfig;
use super::judge::{Judge, JudgeConfig};
use super::processes::ProcessPool;
use super::python::PythonConfig;
use super::settings::{api_key, count, seconds};
use super::short_form::short_or_table;
use crate::RewardError;
use crate::invariants::is_finite_in_32_bits;

/// The default of `concurrency` for runners that ask a server.
const CONCURRENCY_DEFAULT: usize = 64;
/// The largest `concurrency`.
const CONCURRENCY_MAX: usize = 1 << 16;
/// The largest `backoff_max_s`. A server may ask for a longer pause by `Retry-After`.
const BACKOFF_S_MAX: f64 = 600.0;
/// The largest `retries`.
const RETRIES_MAX: u32 = 100;

/// The runner of an external reward, and its guard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExternalConfig {
    /// A Python function.
    #[serde(deserialize_with = "short_or_table")]
    pub python: Option<PythonConfig>,
    /// A command that reads and writes JSON lines.
    #[serde(deserialize_with = "short_or_table")]
    pub command: Option<CommandConfig>,
    /// A reward server.
    #[serde(deserialize_with = "short_or_table")]
    pub http: Option<HttpConfig>,
    /// A language model that judges responses.
    pub judge: Option<JudgeConfig>,
    /// Unit tests of the code in a response.
    pub code: Option<CodeConfig>,
    /// Maximum number of jobs at a time; by default the number of workers, or 64 for a server.
    pub concurrency: Option<usize>,
    /// Maximum number of attempts per second; no limit when absent. Each job of a batch counts as one.
    pub per_second: Option<f64>,
    /// Maximum number of attempts after the first one. Only errors that may be temporary lead to another
    /// attempt. A job that is not at fault for its failure, for example in an outage, begins again with fresh
    /// attempts.
    pub retries: u32,
    /// The time limit of one attempt, in seconds. It includes the wait for a worker. 0 means an equal share
    /// of the deadline, `deadline_s / (retries + 1)`, so an attempt that hangs leaves time for the others.
    /// For `code`, whose tests have limits of their own, 0 means the whole deadline.
    pub attempt_s: f64,
    /// The time limit of the attempts and pauses of a job, in seconds. It counts from the first attempt. A job
    /// that begins again (see `retries`) has the whole time again.
    pub deadline_s: f64,
    /// The number of scores that the cache keeps. Equal jobs share a score. With 0, equal jobs are scored
    /// again.
    pub cache_entries: usize,
    /// What happens to a job that has no score.
    pub on_failure: OnFailure,
    /// The number of failures in a row after which the reward is suspected to be out. Only failures that may
    /// have a reason outside of the sample are counted. With 0, the run does not wait for outages to end, and
    /// the reward is not probed at the start.
    pub consecutive_failures_max: u32,
    /// The pause after the first failed probe of an outage, in seconds. The pause doubles from probe to
    /// probe.
    pub backoff_initial_s: f64,
    /// The longest pause between two probes, in seconds, unless the server asks for a longer one by
    /// `Retry-After`.
    pub backoff_max_s: f64,
    /// The run ends when the reward has been out for this time, in seconds.
    pub outage_deadline_s: f64,
}

impl Default for ExternalConfig {
    fn default() -> Self {
        Self {
            python: None,
            command: None,
            http: None,
            judge: None,
            code: None,
            concurrency: None,
            per_second: None,
            retries: 2,
            attempt_s: 0.0,
            deadline_s: 300.0,
            cache_entries: 65_536,
            on_failure: OnFailure::default(),
            consecutive_failures_max: 8,
            backoff_initial_s: 1.0,
            backoff_max_s: 60.0,
            outage_deadline_s: 3600.0,
        }
    }
}

impl ExternalConfig {
    /// Builds the runner behind its guard. No process is started and no server is asked before the first job
    /// or check. Tasks run on `tracker`, and end when `token` is cancelled. An error names the key, the
    /// values it expects and the value that was found.
    pub fn build(
        &self,
        tracker: TaskTracker,
        token: CancellationToken,
    ) -> Result<Arc<dyn RewardRunner>, RewardError> {
        let (runner, concurrency): (Arc<dyn RewardRunner>, usize) = match self.only_kind()? {
            Kind::Python(config) => {
                let pool = ProcessPool::new(config.pool_spec()?, tracker.clone(), &token);
                (Arc::new(pool), config.workers)
            }
            Kind::Command(config) => {
                let pool = ProcessPool::new(config.pool_spec()?, tracker.clone(), &token);
                (Arc::new(pool), config.workers)
            }
            Kind::Http(config) => (config.runner(tracker.clone(), token.clone())?, CONCURRENCY_DEFAULT),
            Kind::Judge(config) => {
                let key = api_key("judge.api_key_env", config.api_key_env.as_deref())?;
                (Arc::new(Judge::new(config, key)?), CONCURRENCY_DEFAULT)
            }
            Kind::Code(config) => {
                (Arc::new(CodeRunner::new(config, self.attempt()?, tracker.clone())?), config.workers)
            }
        };
        self.guard_runner(runner, concurrency, tracker, token)
    }

    /// Puts `runner` behind the guard, instead of the configured runner. `concurrency` is the default of the
    /// key `concurrency`. Tasks run and errors are reported as in [`Self::build`].
    pub fn guard_runner(
        &self,
        runner: Arc<dyn RewardRunner>,
        concurrency: usize,
        tracker: TaskTracker,
        token: CancellationToken,
    ) -> Result<Arc<dyn RewardRunner>, RewardError> {
        Ok(Arc::new(Guarded::new(runner, self.guard(concurrency)?, tracker, token)))
    }

    /// Whether any runner is configured.
    pub fn has_runner(&self) -> bool {
        let names_server = self.http.is_some() || self.judge.is_some();
        names_server || self.python.is_some() || self.command.is_some() || self.code.is_some()
    }

    fn only_kind(&self) -> Result<Kind<'_>, RewardError> {
        let kinds = [
            self.python.as_ref().map(Kind::Python),
            self.command.as_ref().map(Kind::Command),
            self.http.as_ref().map(Kind::Http),
            self.judge.as_ref().map(Kind::Judge),
            self.code.as_ref().map(Kind::Code),
        ];
        let mut kinds = kinds.into_iter().flatten();
        let found = match (kinds.next(), kinds.count()) {
            (Some(kind), 0) => return Ok(kind),
            (Some(_), others) => format!("{} of them", others + 1),
            (None, _) => "none".to_owned(),
        };
        Err(RewardError::Misconfigured {
            key: "reward",
            expected: "exactly one of python, command, http, judge, code",
            found,
        })
    }

    /// The time limit of one attempt.
    fn attempt(&self) -> Result<Duration, RewardError> {
        if self.attempt_s != 0.0 {
            let wrong = |_| RewardError::Misconfigured {
                key: "attempt_s",
                expected: "0, or seconds above 0, at most a week",
                found: self.attempt_s.to_string(),
            };
            return seconds("attempt_s", self.attempt_s).map_err(wrong);
        }
        let attempts = if self.code.is_some() { 1 } else { self.retries.saturating_add(1) };
        seconds("deadline_s", self.deadline_s).map(|deadline| deadline / attempts)
    }

    fn guard(&self, concurrency: usize) -> Result<Guard, RewardError> {
        let wrong = |key, expected, found: String| Err(RewardError::Misconfigured { key, expected, found });
        if let Some(rate) = self.per_second.filter(|rate| !(*rate > 0.0 && rate.is_finite())) {
            return wrong("per_second", "a finite number above 0", rate.to_string());
        }
        if self.retries > RETRIES_MAX {
            return wrong("retries", "0 to 100", self.retries.to_string());
        }
        match self.on_failure {
            OnFailure::Score(score) if !is_finite_in_32_bits(score) => {
                return wrong("on_failure.score", "a finite number of 32 bits", score.to_string());
            }
            _ => {}
        }
        Ok(Guard {
            concurrency: count("concurrency", self.concurrency.unwrap_or(concurrency), CONCURRENCY_MAX)?,
            per_second: self.per_second,
            retries: self.retries,
            attempt: self.attempt()?,
            deadline: seconds("deadline_s", self.deadline_s)?,
            cache_entries: self.cache_entries,
            on_failure: self.on_failure,
            breaker: self.breaker()?,
        })
    }

    fn breaker(&self) -> Result<Option<BreakerConfig>, RewardError> {
        if self.consecutive_failures_max == 0 {
            return Ok(None);
        }
        let (first, most) = (self.backoff_initial_s, self.backoff_max_s);
        let wrong = |key, expected, found: f64| {
            Err(RewardError::Misconfigured { key, expected, found: found.to_string() })
        };
        if !(most > 0.0 && most <= BACKOFF_S_MAX) {
            return wrong("backoff_max_s", "seconds above 0, at most 600", most);
        }
        if !(first > 0.0 && first <= most) {
            return wrong("backoff_initial_s", "seconds above 0, at most backoff_max_s", first);
        }
        Ok(Some(BreakerConfig {
            failures_max: self.consecutive_failures_max,
            backoff_initial: seconds("backoff_initial_s", first)?,
            backoff_max: seconds("backoff_max_s", most)?,
            deadline: seconds("outage_deadline_s", self.outage_deadline_s)?,
        }))
    }
}

enum Kind<'a> {
    Python(&'a PythonConfig),
    Command(&'a CommandConfig),
    Http(&'a HttpConfig),
    Judge(&'a JudgeConfig),
    Code(&'a CodeConfig),
}

#[cfg(test)]
mod tests;
