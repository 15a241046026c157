//! The configuration of the code scorer, as a recipe writes it.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::RewardError;
use crate::external::sandbox::{Limits, SandboxChoice};
use crate::external::settings::{self, WORKERS_MAX, bytes_of_mb, check_memory, count, seconds};

/// The largest `processes_max`. The trial of a sandbox starts about `processes_max` processes to test the
/// limit.
const PROCESSES_MAX: usize = 1024;
/// The time that an attempt needs besides its tests: it creates a directory, starts processes and cleans up.
const ATTEMPT_SPARE: Duration = Duration::from_secs(5);

/// The configuration of the code scorer. Every key has a default, so `code = {}` is enough.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CodeConfig {
    /// The Python interpreter to run.
    pub interpreter: String,
    /// The kind of sandbox.
    pub sandbox: SandboxChoice,
    /// Maximum number of candidates that run at a time.
    pub workers: usize,
    /// The time limit of one test, in seconds; it counts from the moment at which the candidate begins.
    pub time_s: f64,
    /// The time limit of all tests of a candidate, in seconds. It must be at least 5 s shorter than
    /// `attempt_s`, or than the deadline where `attempt_s` is 0.
    pub time_all_s: f64,
    /// Maximum address space of each process, in MiB.
    pub memory_mb: u64,
    /// Maximum number of bytes on standard output and standard error together, for each test.
    pub output_bytes_max: usize,
    /// Maximum number of processes and threads at a time.
    pub processes_max: usize,
    /// Maximum number of bytes of a file; with namespaces, also of all files together in each writable
    /// directory.
    pub file_bytes_max: u64,
    /// Absolute paths of further files and directories that candidates can read inside namespaces.
    pub readable: Vec<PathBuf>,
    /// The directory in which candidates get their directories; by default this process's temporary
    /// directory.
    pub directory: Option<PathBuf>,
    /// Whether the score is the share of tests that pass; otherwise it is 1 if all tests pass, and else 0.
    pub continuous: bool,
}

impl Default for CodeConfig {
    fn default() -> Self {
        Self {
            interpreter: settings::interpreter(),
            sandbox: SandboxChoice::default(),
            workers: settings::workers(),
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
    /// The limits of one test, and the time limit of all tests. `attempt` is the guard's limit of one
    /// attempt.
    pub(super) fn limits(&self, attempt: Duration) -> Result<(Limits, Duration), RewardError> {
        let wrong = |key, expected, found: String| Err(RewardError::Misconfigured { key, expected, found });
        let time = seconds("code.time_s", self.time_s)?;
        let time_all = seconds("code.time_all_s", self.time_all_s)?;
        if time > time_all {
            return wrong("code.time_s", "at most code.time_all_s", self.time_s.to_string());
        }
        if time_all + ATTEMPT_SPARE > attempt {
            let expected = "at most 5 s less than the time limit of an attempt";
            return wrong("code.time_all_s", expected, self.time_all_s.to_string());
        }
        if let Some(path) = self.readable.iter().find(|path| !path.is_absolute()) {
            return wrong("code.readable", "absolute paths", format!("{path:?}"));
        }
        if self.file_bytes_max == 0 {
            return wrong("code.file_bytes_max", "bytes above 0", "0".into());
        }
        check_memory("code.memory_mb", Some(self.memory_mb))?;
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
