//! External rewards as a recipe has them.
//!
//! Exactly one of `python`, `command`, `http`, `judge` and `code` says who is asked; the other keys are the guard's. The
//! first three have short forms: `python = "module:function"`, `command = ["program", "argument"]`,
//! `http = "http://.."`.

mod code;
mod forms;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::code::CodeRunner;
use super::guarded::{Guard, Guarded, OnFailure};
use super::http::{HttpBatch, HttpSingle};
use super::judge::Judge;
use super::processes::ProcessPool;
use super::{RewardRunner, command, python};
use crate::RewardError;
use crate::invariants::is_finite_in_32_bits;
use forms::{api_key, count, seconds};

pub use code::{CodeConfig, SandboxChoice};
pub use forms::short_or_table;

/// Jobs at a time with a server, where the recipe does not say.
const CONCURRENCY_DEFAULT: usize = 64;
/// More at a time than any server is asked.
const CONCURRENCY_MAX: usize = 1 << 16;
/// Processes of a pool.
const WORKERS_MAX: usize = 1024;
/// Items of a request.
const BATCH_MAX: usize = 1 << 14;
/// More attempts are no answer to anything.
const RETRIES_MAX: u32 = 100;
const MEBIBYTE: u64 = 1 << 20;

/// Who is asked, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExternalConfig {
    /// A Python function.
    #[serde(deserialize_with = "forms::short_or_table")]
    pub python: Option<PythonConfig>,
    /// A command that speaks JSON lines.
    #[serde(deserialize_with = "forms::short_or_table")]
    pub command: Option<CommandConfig>,
    /// A reward server.
    #[serde(deserialize_with = "forms::short_or_table")]
    pub http: Option<HttpConfig>,
    /// A language model that judges.
    pub judge: Option<JudgeConfig>,
    /// Unit tests of the code in a response.
    pub code: Option<CodeConfig>,
    /// Jobs at a time; where absent, as many as there are workers, or 64 for a server.
    pub concurrency: Option<usize>,
    /// Attempts a second; no limit when absent. A batch counts as its jobs.
    pub per_second: Option<f64>,
    /// Attempts after the first, for errors that may pass.
    pub retries: u32,
    /// The limit of one attempt, seconds; waiting for a worker is part of it. 0 is an equal share of the deadline,
    /// `deadline_s / (retries + 1)`, so that an attempt that hangs leaves time for the others; of `code`, whose tests have
    /// limits of their own, it is all of it.
    pub attempt_s: f64,
    /// The limit of a job with all its attempts and pauses, seconds; it counts from the job's turn, when it has a place.
    pub deadline_s: f64,
    /// Scores that are kept by content; 0 asks anew for equal jobs.
    pub cache_entries: usize,
    /// What becomes of a job without a score.
    pub on_failure: OnFailure,
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
        }
    }
}

/// A Python function; in short only `function`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonConfig {
    /// `module:function`, or `/path/to/file.py:function`.
    pub function: String,
    /// The Python to run.
    #[serde(default = "forms::interpreter")]
    pub interpreter: String,
    /// Where it runs, and where it finds modules first; where this process runs when absent.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// Put before `PYTHONPATH`.
    #[serde(default)]
    pub path: Vec<String>,
    /// Added to the environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Processes at a time.
    #[serde(default = "forms::workers")]
    pub workers: usize,
    /// Answers after which a worker is replaced.
    #[serde(default)]
    pub jobs_per_worker: Option<NonZeroU64>,
    /// Address space of a worker, MiB.
    #[serde(default)]
    pub memory_mb: Option<u64>,
    /// The limit of a start, imports included, seconds.
    #[serde(default = "forms::start_s")]
    pub start_s: f64,
}

/// A command; in short only `words`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandConfig {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Where it runs; where this process runs when absent.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// Added to the environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Processes at a time.
    #[serde(default = "forms::workers")]
    pub workers: usize,
    /// Answers after which a worker is replaced.
    #[serde(default)]
    pub jobs_per_worker: Option<NonZeroU64>,
    /// Address space of a worker, MiB.
    #[serde(default)]
    pub memory_mb: Option<u64>,
    /// Whether it says `{"ready": true}` before it takes jobs.
    #[serde(default)]
    pub handshake: bool,
    /// The limit of a start with a handshake, seconds.
    #[serde(default = "forms::start_s")]
    pub start_s: f64,
}

/// A reward server; in short only `url`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpConfig {
    /// Begins with `http://`.
    pub url: String,
    /// The environment variable whose value is sent as a bearer token.
    #[serde(default)]
    pub api_key_env: Option<String>,
    /// Jobs a request; a request a job when absent.
    #[serde(default)]
    pub batch_max: Option<usize>,
    /// How long a batch waits to become full, milliseconds.
    #[serde(default = "forms::batch_wait_ms")]
    pub batch_wait_ms: u64,
}

/// A judge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgeConfig {
    /// The base of the protocol, `http://host:port/v1`, or the whole address of its chat completions.
    pub url: String,
    /// As the server calls it.
    pub model: String,
    /// Jinja: the user's message, of `prompt`, `response`, `ground_truth`, `data_source` and `extra`.
    pub template: String,
    /// Jinja: a message of the system before it.
    #[serde(default)]
    pub system: Option<String>,
    /// Tokens of the judge's answer; the server's own limit when absent.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// The server's own when absent.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// The environment variable whose value is sent as a bearer token.
    #[serde(default)]
    pub api_key_env: Option<String>,
    /// A regular expression with one group; the last match counts.
    pub pattern: String,
    /// Scores by what the group says, whatever the case. This or `range`.
    #[serde(default)]
    pub words: Option<BTreeMap<String, f64>>,
    /// The least and the most that the group's number can be; scaled to 0..1.
    #[serde(default)]
    pub range: Option<[f64; 2]>,
}

impl ExternalConfig {
    /// The runner behind its guard. Nothing is started or asked before the first job or check; tasks then run on
    /// `tracker`, and everything ends with `token`. An error says the key, what was expected and what was found.
    pub fn build(
        &self,
        tracker: TaskTracker,
        token: CancellationToken,
    ) -> Result<Arc<dyn RewardRunner>, RewardError> {
        let (runner, concurrency): (Arc<dyn RewardRunner>, usize) = match self.only_kind()? {
            Kind::Python(config) => {
                let pool = ProcessPool::new(config.pool_spec()?, tracker, &token);
                (Arc::new(pool), config.workers)
            }
            Kind::Command(config) => {
                let pool = ProcessPool::new(config.pool_spec()?, tracker, &token);
                (Arc::new(pool), config.workers)
            }
            Kind::Http(config) => (config.runner(tracker, token.clone())?, CONCURRENCY_DEFAULT),
            Kind::Judge(config) => {
                let key = api_key("judge.api_key_env", config.api_key_env.as_deref())?;
                (Arc::new(Judge::new(config, key)?), CONCURRENCY_DEFAULT)
            }
            Kind::Code(config) => {
                (Arc::new(CodeRunner::new(config, self.attempt()?, tracker)?), config.workers)
            }
        };
        let guard = self.guard(concurrency)?;
        Ok(Arc::new(Guarded::new(runner, guard, token)))
    }

    /// Whether anybody is to be asked.
    pub fn names_anyone(&self) -> bool {
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
            (None, _) => "none of them".to_owned(),
        };
        Err(RewardError::Misconfigured {
            key: "reward",
            expected: "exactly one of python, command, http, judge, code",
            found,
        })
    }

    /// The limit of an attempt.
    fn attempt(&self) -> Result<Duration, RewardError> {
        if self.attempt_s != 0.0 {
            return seconds("attempt_s", self.attempt_s);
        }
        let attempts = if self.code.is_some() { 1 } else { self.retries.saturating_add(1) };
        seconds("deadline_s", self.deadline_s).map(|deadline| deadline / attempts)
    }

    fn guard(&self, concurrency: usize) -> Result<Guard, RewardError> {
        let wrong = |key, expected, found: String| Err(RewardError::Misconfigured { key, expected, found });
        if let Some(rate) = self.per_second.filter(|rate| !(*rate > 0.0 && rate.is_finite())) {
            return wrong("per_second", "attempts a second, above 0", rate.to_string());
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
        })
    }
}

enum Kind<'a> {
    Python(&'a PythonConfig),
    Command(&'a CommandConfig),
    Http(&'a HttpConfig),
    Judge(&'a JudgeConfig),
    Code(&'a CodeConfig),
}

impl PythonConfig {
    fn pool_spec(&self) -> Result<super::PoolSpec, RewardError> {
        let is_complete = self
            .function
            .rsplit_once(':')
            .is_some_and(|(module, function)| !module.is_empty() && !function.is_empty());
        if !is_complete {
            return Err(RewardError::Misconfigured {
                key: "python.function",
                expected: "module:function or /path/to/file.py:function",
                found: format!("{:?}", self.function),
            });
        }
        count("python.workers", self.workers, WORKERS_MAX)?;
        check_memory("python.memory_mb", self.memory_mb)?;
        let start = seconds("python.start_s", self.start_s)?;
        let inherited_path = std::env::var("PYTHONPATH").ok().filter(|path| !path.is_empty());
        Ok(python::pool_spec(self, start, inherited_path.as_deref()))
    }
}

impl CommandConfig {
    fn pool_spec(&self) -> Result<super::PoolSpec, RewardError> {
        if self.words.first().is_none_or(String::is_empty) {
            return Err(RewardError::Misconfigured {
                key: "command.words",
                expected: "a program and its arguments",
                found: format!("{:?}", self.words),
            });
        }
        count("command.workers", self.workers, WORKERS_MAX)?;
        check_memory("command.memory_mb", self.memory_mb)?;
        Ok(command::pool_spec(self, seconds("command.start_s", self.start_s)?))
    }
}

impl HttpConfig {
    fn runner(
        &self,
        tracker: TaskTracker,
        token: CancellationToken,
    ) -> Result<Arc<dyn RewardRunner>, RewardError> {
        let key = api_key("http.api_key_env", self.api_key_env.as_deref())?;
        let Some(batch_max) = self.batch_max else { return Ok(Arc::new(HttpSingle::new(&self.url, key)?)) };
        let batch_max = count("http.batch_max", batch_max, BATCH_MAX)?;
        let batch_wait = Duration::from_millis(self.batch_wait_ms);
        Ok(Arc::new(HttpBatch::new(&self.url, key, batch_max, batch_wait, tracker, token)?))
    }
}

fn check_memory(key: &'static str, memory_mb: Option<u64>) -> Result<(), RewardError> {
    let Some(memory_mb) = memory_mb else { return Ok(()) };
    if memory_mb == 0 || !cfg!(target_os = "linux") {
        let expected = "MiB above 0, and Linux";
        return Err(RewardError::Misconfigured { key, expected, found: memory_mb.to_string() });
    }
    Ok(())
}

pub(super) fn bytes_of_mb(mebibytes: u64) -> u64 {
    mebibytes.saturating_mul(MEBIBYTE)
}

#[cfg(test)]
mod tests;
