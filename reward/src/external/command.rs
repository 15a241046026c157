//! A reward that a command computes. The command reads and writes the JSON lines that [`super::processes`]
//! describes.
//!
//! The words of the command are its program and arguments; they are not passed to a shell.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::processes::PoolSpec;
use super::settings::{self, WORKERS_MAX, bytes_of_mb, check_memory, count, seconds};
use super::short_form::ShortForm;
use crate::RewardError;

/// A command that scores; its short form is `words` alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandConfig {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// The command's working directory; by default that of this process.
    #[serde(default)]
    pub directory: Option<PathBuf>,
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
    /// Whether a worker prints `{"ready": true}` before it takes jobs.
    #[serde(default)]
    pub handshake: bool,
    /// The time limit of a start with a handshake, in seconds.
    #[serde(default = "settings::start_s")]
    pub start_s: f64,
}

impl ShortForm for CommandConfig {
    const EXPECTED: &'static str = "a list of words or a table";

    fn of_list(words: Vec<String>) -> Option<Self> {
        Some(Self {
            words,
            directory: None,
            env: Default::default(),
            workers: settings::workers(),
            jobs_per_worker: None,
            memory_mb: None,
            handshake: false,
            start_s: settings::start_s(),
        })
    }
}

impl CommandConfig {
    /// The pool that runs the command.
    pub(super) fn pool_spec(&self) -> Result<PoolSpec, RewardError> {
        if self.words.first().is_none_or(String::is_empty) {
            return Err(RewardError::Misconfigured {
                key: "command.words",
                expected: "a program and its arguments",
                found: format!("{:?}", self.words),
            });
        }
        count("command.workers", self.workers, WORKERS_MAX)?;
        check_memory("command.memory_mb", self.memory_mb)?;
        Ok(pool_spec(self, seconds("command.start_s", self.start_s)?))
    }
}

/// The pool that runs a command. `start` is the time limit of the handshake, if the command has one.
fn pool_spec(config: &CommandConfig, start: Duration) -> PoolSpec {
    let program = config.words.first().map_or("", String::as_str);
    PoolSpec {
        what: format!("reward command {program:?}"),
        words: config.words.clone(),
        directory: config.directory.clone(),
        env: config.env.clone(),
        workers: config.workers,
        handshake: config.handshake.then_some(start),
        jobs_per_worker: config.jobs_per_worker,
        memory_bytes: config.memory_mb.map(bytes_of_mb),
    }
}
