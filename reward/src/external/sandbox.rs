//! Runs untrusted Python programs in processes that can harm neither this process nor the host.
//!
//! There are three levels of isolation. [`Sandbox::find`] tries them on the host, strongest first, and takes
//! the first whose trial succeeds.
//!
//! | | `bubblewrap`, `namespaces` | `limits` |
//! |---|---|---|
//! | time | all processes are killed at the deadline | likewise, but a process that hides from an unprivileged caller may survive |
//! | memory, processor, open files | limits of each process | limits of each process |
//! | processes | a limit for each candidate | a limit for each candidate that has its own user; otherwise a limit for all processes of the caller's user |
//! | output | the process is killed at the limit | the process is killed at the limit |
//! | files | a candidate reads the system's files and its own, and writes to memory of a limited size | a candidate can access all files that its user may access |
//! | network | none | unrestricted |
//! | environment | a few fixed variables | a few fixed variables |
//!
//! If this process runs as `root`, every candidate gets a user of its own that owns no files (`users.rs`).
//! Otherwise candidates run as the user of this process, in user namespaces where the host supports them.
//!
//! # Invariants
//! - Dropping a run kills it; its directory and its permit are released only after its processes are gone.
//! - A level is used only after a successful trial. Only `auto` falls back to a weaker level. A warning is
//!   logged if `auto` falls back to `limits`, or if candidates can create user namespaces although a level
//!   that prevents their creation was tried.
//! - The failure of a candidate is never an error; the failure of a sandbox always is.
//!
//! # Deliberately absent
//! There are no control groups: memory is limited for each process, so a candidate can use `processes` times
//! the limit. System calls are not filtered, so a vulnerability of the kernel is also a vulnerability of the
//! sandbox. Only Linux is supported. If a candidate has neither a namespace nor a user of its own, a process
//! that has changed its session, environment and directory is not found.

mod command_line;
mod interpreter;
mod place;
mod process;
mod users;
mod view;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::leftovers::{self, Mark};
use crate::RewardError;
use crate::tasks;
use command_line::{Cage, MARK};
use place::Owner;
use process::{Run, Start, Times};
use users::Users;

pub(super) use interpreter::Interpreter;
pub(super) use place::Place;
pub(super) use process::{Ended, How};
pub(super) use view::{View, Words};

/// The `PATH` in which the commands of the sandbox are searched.
const TOOLS_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The name of the sandbox in errors.
const WHAT: &str = "sandbox";
/// The program of the trial, which inspects the sandbox from within.
const TRIAL: &str = include_str!("sandbox/trial.py");
/// The time limit of a start. It only guards against hangs: a host under load may need long for namespaces.
const START_MAX: Duration = Duration::from_secs(120);
/// Maximum number of trials of a level. A trial that reaches its time limit or is killed shows nothing about
/// the level.
const TRIALS_MAX: u32 = 3;
/// Maximum number of bytes that a trial prints.
const TRIAL_BYTES_MAX: usize = 1 << 16;
/// Since this version the kernel counts the processes of a user separately in each user namespace.
const COUNTED_APART_SINCE: (u32, u32) = (5, 14);

/// The kind of sandbox that candidates run in. A stronger kind includes the limits of the weaker kinds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxChoice {
    /// The first of the following that works on this host; a warning is logged if that is `limits`.
    #[default]
    Auto,
    /// Namespaces made by the command `bwrap`.
    Bubblewrap,
    /// Namespaces made by the command `unshare`.
    Namespaces,
    /// Resource limits alone.
    Limits,
}

/// The limits of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Wall-clock time, counted from the first output.
    pub(super) time: Duration,
    /// The address space of each process, in bytes.
    pub(super) memory_bytes: u64,
    /// Bytes of standard output and standard error together.
    pub(super) output_bytes: usize,
    /// Processes and threads at a time.
    pub(super) processes: usize,
    /// Bytes of a file; in namespaces, the bytes of all files in one of the writable directories.
    pub(super) file_bytes: u64,
}

/// The settings of a sandbox.
#[derive(Debug, Clone)]
pub(super) struct SandboxSpec {
    pub(super) choice: SandboxChoice,
    pub(super) interpreter: String,
    pub(super) readable: Vec<PathBuf>,
    pub(super) directory: PathBuf,
    pub(super) workers: usize,
    pub(super) limits: Limits,
}

/// The strength of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Bubblewrap,
    Namespaces,
    Limits,
}

/// A sandbox that works on this host; each run of a candidate starts from it.
pub(super) struct Sandbox {
    cage: Cage,
    users: Option<Users>,
    directory: PathBuf,
    turns: Arc<Semaphore>,
    runs: AtomicU64,
    are_counted_apart: bool,
    tracker: TaskTracker,
}

/// What the trial reports.
#[derive(Debug, Deserialize)]
struct Sight {
    sees: bool,
    namespaces: [String; 3],
    forks: usize,
}

impl Sandbox {
    /// The strongest sandbox that works here, or the one that was chosen. Cancel-safe.
    pub(super) async fn find(spec: &SandboxSpec, tracker: &TaskTracker) -> Result<Self, RewardError> {
        let interpreter = Interpreter::find(&spec.interpreter).await?;
        let mut reasons = Vec::new();
        for (level, is_locked) in strongest_first(spec.choice, is_privileged()) {
            let sandbox = Self::new(spec, level, is_locked, interpreter.clone(), tracker.clone());
            let Err(reason) = sandbox.works().await else {
                if spec.choice == SandboxChoice::Auto && level == Level::Limits {
                    let reasons = reasons.join("; ");
                    tracing::warn!(
                        reasons,
                        "candidates run with resource limits alone: they can reach the network and their user's files"
                    );
                } else if !is_locked && !reasons.is_empty() {
                    let reasons = reasons.join("; ");
                    tracing::warn!(
                        reasons,
                        "candidates can create user namespaces: no stronger sandbox works"
                    );
                }
                return Ok(sandbox);
            };
            reasons.push(format!("{}: {reason}", level.name()));
        }
        Err(RewardError::Unloadable { what: WHAT.into(), reason: reasons.join("; ") })
    }

    fn new(
        spec: &SandboxSpec,
        level: Level,
        is_locked: bool,
        interpreter: Interpreter,
        tracker: TaskTracker,
    ) -> Self {
        let is_privileged = is_privileged();
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cage: Cage {
                level,
                is_privileged,
                is_locked,
                interpreter,
                readable: spec.readable.clone(),
                limits: spec.limits,
            },
            users: is_privileged.then(Users::of_this_process),
            directory: spec.directory.clone(),
            turns: Arc::new(Semaphore::new(spec.workers.clamp(1, Semaphore::MAX_PERMITS))),
            runs: AtomicU64::new(0),
            are_counted_apart: version(&release) >= COUNTED_APART_SINCE,
            tracker,
        }
    }

    /// Prepares the directories and the user of a candidate; waits for a permit first. Cancel-safe.
    pub(super) async fn place(&self, program: &str) -> Result<Place, RewardError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| RewardError::Cancelled)?;
        let user = match &self.users {
            None => None,
            Some(users) => Some(
                users
                    .take()
                    .ok_or_else(|| failed("expected a free user id for a candidate, found all in use"))?,
            ),
        };
        let (program, directory) = (program.to_owned(), self.directory.clone());
        let owner = Owner { user, turn, tracker: self.tracker.clone(), runtime: Handle::current() };
        let place = tasks::spawn_blocking(&self.tracker, "sandbox place", move || {
            Place::new(&directory, &program, owner)
        });
        match place.await {
            Ok(place) => {
                place.map_err(|error| failed(&format!("a candidate's directory could not be made: {error}")))
            }
            Err(_) => Err(RewardError::Cancelled),
        }
    }

    #[cfg(test)]
    pub(super) fn free_turns(&self) -> usize {
        self.turns.available_permits()
    }

    /// The path of the program inside the sandbox.
    pub(super) fn program(&self) -> &'static str {
        self.cage.program()
    }

    /// Runs the interpreter with `-c` and `arguments` and then cleans up. The run ends when the interpreter
    /// exits, when its time (counted from its first output) is over, or at `end`. Errors are failures of the
    /// sandbox itself. Cancel-safe: a dropped run is killed and cleaned up.
    pub(super) async fn run(
        &self,
        place: &Place,
        arguments: &[&str],
        input: &[u8],
        end: Instant,
    ) -> Result<Ended, RewardError> {
        let times = Times { start: START_MAX, run: self.cage.limits.time, end };
        self.run_within(place, arguments, input, times, self.cage.limits.output_bytes).await
    }

    /// Cancel-safe.
    async fn run_within(
        &self,
        place: &Place,
        arguments: &[&str],
        input: &[u8],
        times: Times,
        output_bytes: usize,
    ) -> Result<Ended, RewardError> {
        let broken = |error: std::io::Error| failed(&format!("a process could not be run: {error}"));
        let work = match self.cage.level {
            Level::Limits => place.work().map_err(broken)?,
            // These levels have a working directory inside the namespace.
            Level::Bubblewrap | Level::Namespaces => place.path().to_owned(),
        };
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{number}-{}", std::process::id(), place.path().display());
        let mut words = self.cage.words(place, self.processes());
        words.push("-c".into());
        words.extend(arguments.iter().map(OsString::from));
        let start = Start {
            words: &words,
            environment: self.cage.environment(&work, &mark),
            directory: &work,
            mark: self.mark(place, &mark),
        };
        let run = Run::start(start, place.clone(), self.tracker.clone()).map_err(broken)?;
        run.finish(input, times, output_bytes).await.map_err(broken)
    }

    /// How the remaining processes of a candidate are recognised; `None` if all of them end with the
    /// namespace.
    fn mark(&self, place: &Place, mark: &str) -> Option<Mark> {
        match (place.user(), self.cage.level) {
            (Some(user), _) => Some(Mark::User(user)),
            (None, Level::Limits) => Some(Mark::Environment {
                words: format!("{MARK}={mark}").into(),
                directory: Some(place.path().to_owned()),
            }),
            (None, _) => None,
        }
    }

    /// The limit of processes, plus the other processes that the kernel counts against it.
    fn processes(&self) -> usize {
        let most = self.cage.limits.processes;
        let counts_alone = match self.cage.level {
            Level::Bubblewrap | Level::Namespaces => self.are_counted_apart,
            Level::Limits => false,
        };
        match self.users.is_some() || counts_alone {
            true => most,
            false => most + leftovers::tasks_of(rustix::process::getuid().as_raw()),
        }
    }

    /// Runs the trial. The error states what the sandbox lacks. A trial that is too slow or killed is
    /// repeated: a busy host must not lead to a weaker sandbox.
    async fn works(&self) -> Result<(), String> {
        let mut ended = self.trial().await.map_err(|error| error.to_string())?;
        for _ in 1..TRIALS_MAX {
            if !matches!(ended.how, How::TimedOut | How::Signalled(_)) {
                break;
            }
            ended = self.trial().await.map_err(|error| error.to_string())?;
        }
        let sight: Sight = serde_json::from_slice(&ended.stdout).map_err(|_| {
            format!("the trial ended with {:?}; stderr: {:?}", ended.how, ended.stderr.trim())
        })?;
        if self.cage.level != Level::Limits {
            apart(&sight)?;
        }
        if sight.forks > self.cage.limits.processes {
            tracing::warn!(
                level = self.cage.level.name(),
                "this host does not enforce the limit of candidates' processes"
            );
        }
        Ok(())
    }

    async fn trial(&self) -> Result<Ended, RewardError> {
        let place = self.place("").await?;
        let secret = place.path().to_string_lossy().into_owned();
        let most = self.cage.limits.processes.to_string();
        let times = Times { start: START_MAX, run: START_MAX, end: Instant::now() + START_MAX };
        self.run_within(&place, &[TRIAL, &secret, &most], b"", times, TRIAL_BYTES_MAX).await
    }
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Bubblewrap => "bubblewrap",
            Self::Namespaces => "namespaces",
            Self::Limits => "limits",
        }
    }
}

/// The variants to try, strongest first: a level, and whether candidates are prevented from creating user
/// namespaces. Old hosts cannot prevent the creation, and `bwrap` cannot prevent it when it runs as `root`.
fn strongest_first(choice: SandboxChoice, is_privileged: bool) -> Vec<(Level, bool)> {
    let mut all = vec![
        (Level::Bubblewrap, true),
        (Level::Namespaces, true),
        (Level::Bubblewrap, false),
        (Level::Namespaces, false),
        (Level::Limits, false),
    ];
    all.retain(|(level, is_locked)| {
        let is_possible = !(is_privileged && *level == Level::Bubblewrap && *is_locked);
        let is_chosen = match choice {
            SandboxChoice::Auto => true,
            SandboxChoice::Bubblewrap => *level == Level::Bubblewrap,
            SandboxChoice::Namespaces => *level == Level::Namespaces,
            SandboxChoice::Limits => *level == Level::Limits,
        };
        is_possible && is_chosen
    });
    all
}

fn is_privileged() -> bool {
    rustix::process::geteuid().is_root()
}

/// Checks that the trial was isolated from the host.
fn apart(sight: &Sight) -> Result<(), String> {
    if sight.sees {
        return Err("it can read the host's files".to_owned());
    }
    for (kind, theirs) in ["net", "pid", "mnt"].into_iter().zip(&sight.namespaces) {
        let ours = std::fs::read_link(Path::new("/proc/self/ns").join(kind)).unwrap_or_default();
        if theirs.is_empty() || ours == Path::new(theirs) {
            return Err(format!("it has no {kind} namespace of its own"));
        }
    }
    Ok(())
}

fn failed(reason: &str) -> RewardError {
    RewardError::Unavailable { what: WHAT.into(), reason: reason.to_owned() }
}

/// The first two numbers of a kernel release; a missing number is 0.
fn version(release: &str) -> (u32, u32) {
    let mut numbers =
        release.split(|byte: char| !byte.is_ascii_digit()).map(|word| word.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests;
