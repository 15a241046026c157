//! The scorer of code as a recipe has it.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::forms::{self, count, seconds};
use super::{WORKERS_MAX, bytes_of_mb};
use crate::RewardError;
use crate::external::sandbox::Limits;

/// More processes are no candidate's answer, and the trial of the limit starts them all.
const PROCESSES_MAX: usize = 1024;
/// What a run takes beside its tests: finding a place, starting and cleaning up.
const ATTEMPT_SPARE: Duration = Duration::from_secs(5);

/// What a candidate runs in. The stronger ones contain what the weaker ones have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxChoice {
    /// The first of the others that works on this host; a warning where that is the last one.
    #[default]
    Auto,
    /// Namespaces made by the command `bwrap`.
    Bubblewrap,
    /// Namespaces made by the command `unshare`.
    Namespaces,
    /// Limits of resources alone.
    Limits,
}

/// The scorer of code: every key has a default, so `code = {}` is enough.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CodeConfig {
    /// The Python to run.
    pub interpreter: String,
    /// See [`SandboxChoice`].
    pub sandbox: SandboxChoice,
    /// Candidates at a time.
    pub workers: usize,
    /// The limit of one test from the moment when the candidate's turn comes, seconds.
    pub time_s: f64,
    /// The limit of all tests of a candidate, seconds; shorter by 5 s at least than `attempt_s`, or than the deadline
    /// where that is 0.
    pub time_all_s: f64,
    /// Address space of each process, MiB.
    pub memory_mb: u64,
    /// Bytes on standard output and standard error together, for each test.
    pub output_bytes_max: usize,
    /// Processes and threads at a time.
    pub processes_max: usize,
    /// Bytes of a file; with namespaces also of all files in each directory that can be written.
    pub file_bytes_max: u64,
    /// Further files and directories that candidates can read where there are namespaces; absolute.
    pub readable: Vec<PathBuf>,
    /// Where candidates' directories are made; this process's temporary directory when absent.
    pub directory: Option<PathBuf>,
    /// Whether the score is the share of tests that pass, and not 1 for all and 0 otherwise.
    pub continuous: bool,
}

impl Default for CodeConfig {
    fn default() -> Self {
        Self {
            interpreter: forms::interpreter(),
            sandbox: SandboxChoice::default(),
            workers: forms::workers(),
            time_s: 5.0,
            time_all_s: 50.0,
            memory_mb: 1024,
            output_bytes_max: 4 << 20,
            processes_max: 16,
            file_bytes_max: 16 << 20,
            readable: Vec::new(),
            directory: None,
            continuous: false,
        }
    }
}

impl CodeConfig {
    /// The limits of one test, and of all. `attempt` is the guard's limit.
    pub(in crate::external) fn limits(&self, attempt: Duration) -> Result<(Limits, Duration), RewardError> {
        let wrong = |key, expected, found: String| Err(RewardError::Misconfigured { key, expected, found });
        let time = seconds("code.time_s", self.time_s)?;
        let time_all = seconds("code.time_all_s", self.time_all_s)?;
        if time > time_all {
            return wrong("code.time_s", "at most code.time_all_s", self.time_s.to_string());
        }
        if time_all + ATTEMPT_SPARE > attempt {
            let expected = "5 s less than the time of an attempt, or less";
            return wrong("code.time_all_s", expected, self.time_all_s.to_string());
        }
        if let Some(path) = self.readable.iter().find(|path| !path.is_absolute()) {
            return wrong("code.readable", "absolute paths", format!("{path:?}"));
        }
        if self.file_bytes_max == 0 {
            return wrong("code.file_bytes_max", "bytes above 0", "0".into());
        }
        super::check_memory("code.memory_mb", Some(self.memory_mb))?;
        count("code.workers", self.workers, WORKERS_MAX)?;
        let limits = Limits {
            time,
            memory_bytes: bytes_of_mb(self.memory_mb),
            output_bytes: count("code.output_bytes_max", self.output_bytes_max, u32::MAX as usize)?,
            processes: count("code.processes_max", self.processes_max, PROCESSES_MAX)?,
            file_bytes: self.file_bytes_max,
        };
        Ok((limits, time_all))
    }
}
