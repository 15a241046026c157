//! The table `[agent]` of a recipe.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rolldock_reward::external::ProgramView;
use serde::{Deserialize, Serialize};

/// The partition of the queue from which workers take tasks.
pub const TASKS_PARTITION: &str = "agent_tasks";
/// Largest number of agents at a time.
pub(crate) const CONCURRENCY_MAX: usize = 4096;
/// Longest time of an agent, in seconds.
const SECONDS_MAX: f64 = 10_000_000.0;
/// Largest size of the directory that an agent in a sandbox can write to, in MiB.
const SCRATCH_MAX: u64 = 1 << 20;
/// Shortest lease of a task, in seconds. A worker has enough time to renew such a lease over a network.
const LEASE_MIN: f64 = 0.1;

/// The agent of a run. Exactly one of `command`, `python` and `remote` is given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// The program and its arguments. They are not passed to a shell. `{prompt}` in an argument is replaced by
    /// the text of the row's last message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// A Python function that is called with the task: `module:function`, or `/path/to/file.py:function`. It may
    /// be `async`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Whether agents run elsewhere: workers take the tasks from the queue of the run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub remote: bool,
    /// Time after which the lease of a task expires if the worker does not renew it, in seconds. For `remote`.
    pub lease: f64,
    /// Maximum number of times that the task of a sample is given to a worker. For `remote`.
    pub attempts_max: u32,
    /// The Python interpreter for `python`.
    pub interpreter: String,
    /// The working directory, where Python looks for modules first. By default, it is the working directory of the
    /// run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Variables that are added to the environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Maximum number of agents at a time.
    pub concurrency: usize,
    /// Maximum time of an agent, in seconds. An agent that takes longer is killed, and its sample fails.
    pub deadline: f64,
    /// Maximum address space of the agent's first process, in MiB. In a sandbox, the limit applies to each process
    /// of the agent. It needs Linux.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// The sandbox of the agents.
    pub sandbox: AgentSandbox,
    /// Absolute paths of further files and directories that agents in a sandbox can read. They can always read the
    /// system's files, their interpreter, their function and their working directory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub readable: Vec<PathBuf>,
    /// Maximum size of the directory that an agent in a sandbox can write to, in MiB of memory.
    pub scratch_mb: u64,
    /// Whether the scorer or the agent gives the reward.
    pub reward: RewardBy,
}

/// The sandbox of the agents of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentSandbox {
    /// No sandbox: agents can do everything that the run's user can do.
    #[default]
    None,
    /// Namespaces made by the command `bwrap`.
    Bubblewrap,
}

/// The source of an agent's reward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewardBy {
    /// The recipe's scorer reads the last answer of the model.
    #[default]
    Scorer,
    /// The agent gives the reward itself.
    Agent,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            command: None,
            python: None,
            remote: false,
            lease: 60.0,
            attempts_max: 3,
            interpreter: "python3".to_owned(),
            directory: None,
            env: BTreeMap::new(),
            concurrency: 64,
            deadline: 600.0,
            memory_mb: None,
            sandbox: AgentSandbox::default(),
            readable: Vec::new(),
            scratch_mb: 1024,
            reward: RewardBy::default(),
        }
    }
}

impl AgentConfig {
    /// The values that cannot be used: the key within the table, and what was expected.
    pub fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        match (&self.command, &self.python) {
            (Some(_), Some(_)) => {
                faults.push(("python", "expected either command or python, found both".to_owned()));
            }
            (None, None) if self.remote => {}
            (Some(_), None) | (None, Some(_)) if self.remote => {
                faults.push(("remote", "expected command, python or remote, found two of them".to_owned()));
            }
            (None, None) => {
                faults.push((
                    "command",
                    "expected command = [\"program\", ..], python = \"module:function\" or remote = true"
                        .to_owned(),
                ));
            }
            (Some(words), None) if words.first().is_none_or(String::is_empty) => {
                faults.push(("command", "expected a program and its arguments".to_owned()));
            }
            (None, Some(function)) if !is_function(function) => {
                let found = format!(
                    "expected \"module:function\" or \"/path/to/file.py:function\", found {function:?}"
                );
                faults.push(("python", found));
            }
            _ => {}
        }
        if !(1..=CONCURRENCY_MAX).contains(&self.concurrency) {
            faults.push((
                "concurrency",
                format!("expected 1 to {CONCURRENCY_MAX}, found {}", self.concurrency),
            ));
        }
        if !(self.deadline > 0.0 && self.deadline <= SECONDS_MAX) {
            let found = self.deadline;
            faults.push((
                "deadline",
                format!("expected seconds, above 0 and at most {SECONDS_MAX}, found {found}"),
            ));
        }
        if !(self.lease >= LEASE_MIN && self.lease <= SECONDS_MAX) {
            let found = self.lease;
            faults.push(("lease", format!("expected seconds, {LEASE_MIN} to {SECONDS_MAX}, found {found}")));
        }
        if self.attempts_max == 0 {
            faults.push(("attempts_max", "expected at least 1".to_owned()));
        }
        let of_processes = [
            ("directory", self.directory.is_some()),
            ("env", !self.env.is_empty()),
            ("memory_mb", self.memory_mb.is_some()),
            ("sandbox", self.is_enclosed()),
        ];
        for (key, _) in of_processes.into_iter().filter(|(_, is_set)| self.remote && *is_set) {
            faults.push((key, "it is for agents that the run starts: expected none with remote".to_owned()));
        }
        if self.memory_mb.is_some_and(|memory| memory == 0 || !cfg!(target_os = "linux")) {
            faults.push(("memory_mb", "expected MiB above 0, on Linux".to_owned()));
        }
        if !self.readable.is_empty() && !self.is_enclosed() {
            faults.push(("readable", "expected none without a sandbox".to_owned()));
        }
        if let Some(path) = self.readable.iter().find(|path| !path.is_absolute()) {
            faults.push(("readable", format!("expected absolute paths, found {path:?}")));
        }
        if !(1..=SCRATCH_MAX).contains(&self.scratch_mb) {
            faults
                .push(("scratch_mb", format!("expected 1 to {SCRATCH_MAX} MiB, found {}", self.scratch_mb)));
        }
        faults
    }

    /// Whether agents run in a sandbox.
    pub(crate) fn is_enclosed(&self) -> bool {
        match self.sandbox {
            AgentSandbox::None => false,
            AgentSandbox::Bubblewrap => true,
        }
    }

    /// What an agent in a sandbox sees.
    pub(crate) fn view(&self) -> ProgramView {
        // The file of the function, if `python` names a file and not a module.
        let file = self.python.as_deref().and_then(|function| Some(Path::new(function.rsplit_once(':')?.0)));
        let folder = file.filter(|file| file.is_absolute()).and_then(Path::parent).map(Path::to_owned);
        ProgramView {
            readable: self.readable.iter().cloned().chain(folder).collect(),
            interpreter: self.python.is_some().then(|| self.interpreter.clone()),
            directory: self.directory.clone(),
            scratch_bytes: self.scratch_mb.saturating_mul(1 << 20),
        }
    }

    /// A description of the agent for people.
    pub fn describe(&self) -> String {
        match (&self.command, &self.python) {
            (Some(words), _) => words.join(" "),
            (None, Some(function)) => format!("the Python function {function}"),
            (None, None) => {
                format!("workers that take tasks from the partition {TASKS_PARTITION:?} of the queue")
            }
        }
    }
}

fn is_function(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(module, function)| !module.is_empty() && !function.is_empty())
}
