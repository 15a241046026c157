//! A Python function as a reward, in a pool of worker processes.
//!
//! The function is named `module:function` or `/path/to/file.py:function`. A worker calls it with the
//! keywords `data_source`, `solution_str`, `ground_truth` and `extra_info`, which is the signature of verl's
//! `compute_score`; a function with a parameter `prompt` also gets the prompt. It returns a number, a bool,
//! or a dict with `score` and optionally `acc` and `pred`. The function may be `async`. Its printed output
//! goes to standard error. An exception becomes the error of its job, with the last line of the traceback and
//! the line of the source. An `OSError` (a connection, a time-out, a file) counts as a reason outside of the
//! job. If the function does not exist, the first worker reports this, and every job gets the error.
//!
//! # Deliberately absent
//! There is no interpreter in this process: a function that leaks, hangs or crashes would harm the whole run.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::processes::{PoolSpec, WorkerPool};
use super::settings::{self, WORKERS_MAX, bytes_of_mb, check_memory, count, seconds};
use super::short_form::ShortForm;
use crate::RewardError;

/// The beginning of every Python program of a run: `load(target)` imports the function `module:function` or
/// `/path/to/file.py:function`, and `die_with_parent()` ties a process to this one.
pub const PYTHON_LOADING: &str = include_str!("loading.py");
/// The program that every worker runs.
const WORKER: &str = concat!(include_str!("loading.py"), "\n\n", include_str!("worker.py"));
/// The variable that lists the directories of modules.
const PATH_VARIABLE: &str = "PYTHONPATH";

/// A Python function that scores; its short form is `function` alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonConfig {
    /// `module:function`, or `/path/to/file.py:function`.
    pub function: String,
    /// The Python interpreter to run.
    #[serde(default = "settings::interpreter")]
    pub interpreter: String,
    /// The interpreter's working directory, where Python looks for modules first; by default that of this
    /// process.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// Directories that precede those of `PYTHONPATH`.
    #[serde(default)]
    pub path: Vec<String>,
    /// Variables that are added to the environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The number of processes.
    #[serde(default = "settings::workers")]
    pub workers: usize,
    /// A worker is replaced after this many answers.
    #[serde(default)]
    pub jobs_per_worker: Option<NonZeroU64>,
    /// Maximum address space of a worker, in MiB.
    #[serde(default)]
    pub memory_mb: Option<u64>,
    /// The time limit of a start, imports included, in seconds.
    #[serde(default = "settings::start_s")]
    pub start_s: f64,
}

impl ShortForm for PythonConfig {
    const EXPECTED: &'static str = "\"module:function\" or a table";

    fn of_text(text: &str) -> Option<Self> {
        Some(Self {
            function: text.to_owned(),
            interpreter: settings::interpreter(),
            directory: None,
            path: Vec::new(),
            env: Default::default(),
            workers: settings::workers(),
            jobs_per_worker: None,
            memory_mb: None,
            start_s: settings::start_s(),
        })
    }
}

impl PythonConfig {
    /// Checks the settings, apart from what `function` names.
    ///
    /// # Errors
    /// [`RewardError::Misconfigured`] for the first value that cannot be used.
    pub fn check(&self) -> Result<(), RewardError> {
        count("python.workers", self.workers, WORKERS_MAX)?;
        check_memory("python.memory_mb", self.memory_mb)?;
        seconds("python.start_s", self.start_s).map(drop)
    }

    /// The processes of an environment: `function` names its class. No process is started yet. `what` names
    /// the pool in errors. The pool's tasks run on `tracker` and end when `token` is cancelled.
    ///
    /// # Errors
    /// [`RewardError::Misconfigured`] if a setting cannot be used.
    pub fn environments(
        &self,
        what: String,
        tracker: TaskTracker,
        token: &CancellationToken,
    ) -> Result<WorkerPool, RewardError> {
        self.check()?;
        Ok(WorkerPool::new(PoolSpec { what, ..self.spec("environment")? }, tracker, token))
    }

    /// The pool that runs the function.
    pub(super) fn pool_spec(&self) -> Result<PoolSpec, RewardError> {
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
        self.check()?;
        self.spec("reward")
    }

    fn spec(&self, kind: &str) -> Result<PoolSpec, RewardError> {
        let start = seconds("python.start_s", self.start_s)?;
        let inherited_path = std::env::var("PYTHONPATH").ok().filter(|path| !path.is_empty());
        Ok(pool_spec(self, kind, start, inherited_path.as_deref()))
    }
}

/// The pool that runs what `function` names, as a `reward` or an `environment`. `start` is the time limit of
/// a start; `inherited_path` is this process's `PYTHONPATH`.
fn pool_spec(config: &PythonConfig, kind: &str, start: Duration, inherited_path: Option<&str>) -> PoolSpec {
    let words = [&config.interpreter, "-u", "-c", WORKER, &config.function, kind].map(str::to_owned);
    let mut env = config.env.clone();
    if !config.path.is_empty() {
        let last = env.get(PATH_VARIABLE).map(String::as_str).or(inherited_path);
        let places: Vec<&str> = config.path.iter().map(String::as_str).chain(last).collect();
        env.insert(PATH_VARIABLE.to_owned(), places.join(":"));
    }
    PoolSpec {
        what: format!("python reward {:?}", config.function),
        words: words.to_vec(),
        directory: config.directory.clone(),
        env,
        workers: config.workers,
        handshake: Some(start),
        jobs_per_worker: config.jobs_per_worker,
        memory_bytes: config.memory_mb.map(bytes_of_mb),
    }
}

#[cfg(test)]
mod tests;
