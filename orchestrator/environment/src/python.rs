//! An environment in Python: a class, in a pool of worker processes.
//!
//! The class is named `module:Class` or `/path/to/file.py:Class`. Each process makes one object of the class
//! and runs one trajectory at a time, from its reset to its end. The object's methods are
//!
//! - `reset(*, messages, answer, fields, seed)`, which returns the first messages, or a dict with `messages`
//!   and `tools`;
//! - `step(*, text, ids)`, which returns a dict with `messages` or `ids`, and optionally `reward`, `done` and
//!   `info`.
//!
//! Both methods may be `async`. An exception fails the trajectory, and the process goes on. A process that
//! dies fails its trajectory, and is replaced. If a trajectory is dropped during a call, its process is
//! killed.
//!
//! # Deliberately absent
//! A process does not run several trajectories at the same time, so a process that hangs or dies harms only
//! one trajectory. `workers` therefore bounds the number of trajectories that run at the same time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use rolldock_reward::external::{PythonConfig as Workers, ShortForm};
use rolldock_reward::{LeasedWorker, RewardError, WorkerPool};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::EnvironmentError;
use crate::answer;
use crate::environment::{Action, Begun, Environment, Step, Task};

/// The settings of an environment that is a Python class. The short form is the value of `class` alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonConfig {
    /// `module:Class`, or `/path/to/file.py:Class`.
    pub class: String,
    /// The Python interpreter to run.
    #[serde(default = "interpreter")]
    pub interpreter: String,
    /// The interpreter's working directory, where Python looks for modules first. By default, it is the
    /// working directory of this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Directories that precede those of `PYTHONPATH`.
    #[serde(default)]
    pub path: Vec<String>,
    /// Variables that are added to the environment of the processes.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The number of processes. It is also the maximum number of trajectories that run at the same time.
    #[serde(default = "workers")]
    pub workers: usize,
    /// Maximum address space of a process, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// The time limit of a start, imports included, in seconds.
    #[serde(default = "start_s")]
    pub start_s: f64,
}

fn interpreter() -> String {
    "python3".to_owned()
}

fn workers() -> usize {
    16
}

fn start_s() -> f64 {
    120.0
}

impl ShortForm for PythonConfig {
    const EXPECTED: &'static str = "\"module:Class\" or a table";

    fn of_text(text: &str) -> Option<Self> {
        Some(Self {
            class: text.to_owned(),
            interpreter: interpreter(),
            directory: None,
            path: Vec::new(),
            env: BTreeMap::new(),
            workers: workers(),
            memory_mb: None,
            start_s: start_s(),
        })
    }
}

impl PythonConfig {
    pub(crate) fn check(&self) -> Result<(), EnvironmentError> {
        let is_complete = self
            .class
            .rsplit_once(':')
            .is_some_and(|(module, class)| !module.is_empty() && !class.is_empty());
        if !is_complete {
            let expected = "module:Class or /path/to/file.py:Class";
            let found = format!("{:?}", self.class);
            return Err(EnvironmentError::wrong("python.class", expected, found));
        }
        self.workers_config().check().map_err(|error| unusable(&error))
    }

    /// The settings of the processes, as the pool takes them.
    fn workers_config(&self) -> Workers {
        Workers {
            function: self.class.clone(),
            interpreter: self.interpreter.clone(),
            directory: self.directory.clone(),
            path: self.path.clone(),
            env: self.env.clone(),
            workers: self.workers,
            jobs_per_worker: None,
            memory_mb: self.memory_mb,
            start_s: self.start_s,
        }
    }

    /// The pool of processes. No process is started yet.
    pub(crate) fn open(
        &self,
        tracker: TaskTracker,
        token: &CancellationToken,
    ) -> Result<WorkerPool, EnvironmentError> {
        let what = format!("python environment {:?}", self.class);
        self.workers_config().environments(what, tracker, token).map_err(|error| unusable(&error))
    }
}

/// An environment in a process of its own.
pub(crate) struct PythonEnvironment {
    /// `None` once the process is lost.
    worker: Option<LeasedWorker>,
}

impl PythonEnvironment {
    /// Takes a process from the pool as soon as one is free. Cancel-safe.
    pub(crate) async fn begin(pool: &Arc<WorkerPool>) -> Result<Self, EnvironmentError> {
        let worker = pool.lease().await.map_err(failed)?;
        Ok(Self { worker: Some(worker) })
    }

    async fn ask(&mut self, question: Value) -> Result<Value, EnvironmentError> {
        // If this future is dropped before the answer arrives, the worker is dropped too, which kills the
        // process.
        let lost = || EnvironmentError::Failed { reason: "its process was lost".to_owned() };
        let mut worker = self.worker.take().ok_or_else(lost)?;
        let answer = worker.ask(question).await;
        self.worker = Some(worker);
        answer.map_err(failed)
    }
}

impl Drop for PythonEnvironment {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.give_back();
        }
    }
}

impl Environment for PythonEnvironment {
    fn reset<'a>(&'a mut self, task: &'a Task) -> BoxFuture<'a, Result<Begun, EnvironmentError>> {
        let Task { messages, answer, fields, seed } = task;
        let task = json!({ "messages": messages, "answer": answer, "fields": fields, "seed": seed });
        async move { answer::begun(self.ask(json!({ "reset": task })).await?) }.boxed()
    }

    fn step<'a>(&'a mut self, action: Action<'a>) -> BoxFuture<'a, Result<Step, EnvironmentError>> {
        let action = json!({ "text": action.text, "ids": action.ids });
        async move { answer::step(self.ask(json!({ "step": action })).await?) }.boxed()
    }
}

fn unusable(error: &RewardError) -> EnvironmentError {
    EnvironmentError::wrong("python", "usable settings of worker processes", error)
}

pub(crate) fn failed(error: RewardError) -> EnvironmentError {
    EnvironmentError::Failed { reason: error.to_string() }
}

#[cfg(test)]
mod tests;
