//! Runs what nobody vouches for: a Python program in a process that can hurt neither this one nor the host.
//!
//! There are three levels, and [`Sandbox::find`] tries them on the host itself instead of guessing.
//!
//! | | `bubblewrap`, `namespaces` | `limits` |
//! |---|---|---|
//! | time | all is killed at the deadline | the same, but what hides from an unprivileged caller may stay |
//! | memory, processor, open files | limits of each process | the same |
//! | processes | those of one candidate | with a user of its own the same, else those of the caller's user |
//! | output | read up to the limit, then killed | the same |
//! | files | sees the system's and its own, writes to memory of a limited size | what its user may |
//! | network | none | all |
//! | environment | a few words of ours | the same |
//!
//! A caller that is `root` gives every candidate a user of its own, who owns nothing (`users.rs`). Other callers run
//! them as themselves, in namespaces of users where there are any.
//!
//! # Invariants
//! - Dropping a run kills it; its directory and its turn are given back only after its processes are gone.
//! - A level that was not seen to work is not used, and a weaker one only under `auto`, with a warning.
//! - A candidate that fails is never an error; a sandbox that fails always is.
//!
//! # Deliberately absent
//! Control groups: memory is limited for each process, so that a candidate has at most `processes` times as much. Filters
//! of system calls: a hole of the kernel is a hole of the sandbox. Hosts other than Linux. Finding a process that has
//! changed session, environment and directory, where there is neither a namespace nor a user to tell it by.

mod interpreter;
mod leftovers;
mod place;
mod process;
mod users;
mod words;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::config::SandboxChoice;
use crate::RewardError;
use interpreter::Interpreter;
use leftovers::Mark;
use place::Owner;
use process::{Run, Start, Times};
use users::Users;
use words::{Cage, MARK};

pub(super) use place::Place;
pub(super) use process::{Ended, How};

/// As errors call it.
const WHAT: &str = "sandbox";
/// Looks at the sandbox from within.
const TRIAL: &str = include_str!("sandbox/trial.py");
/// For a start on a host under load.
const START_MAX: Duration = Duration::from_secs(30);
/// Bytes that a trial says.
const TRIAL_BYTES_MAX: usize = 1 << 16;
/// Since this version the kernel counts the processes of a user in each namespace of users by itself.
const COUNTED_APART_SINCE: (u32, u32) = (5, 14);

/// The limits of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Of the wall clock, once it has started.
    pub(super) time: Duration,
    /// Address space of a process.
    pub(super) memory_bytes: u64,
    /// Standard output and standard error together.
    pub(super) output_bytes: usize,
    /// Processes and threads at a time.
    pub(super) processes: usize,
    /// Of a file; in namespaces of all files.
    pub(super) file_bytes: u64,
}

/// What a sandbox is made of.
#[derive(Debug, Clone)]
pub(super) struct SandboxSpec {
    pub(super) choice: SandboxChoice,
    pub(super) interpreter: String,
    pub(super) readable: Vec<PathBuf>,
    pub(super) directory: PathBuf,
    pub(super) workers: usize,
    pub(super) limits: Limits,
}

/// How strong it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Bubblewrap,
    Namespaces,
    Limits,
}

/// See the module's documentation.
pub(super) struct Sandbox {
    cage: Cage,
    users: Option<Users>,
    directory: PathBuf,
    turns: Arc<Semaphore>,
    runs: AtomicU64,
    are_counted_apart: bool,
    tracker: TaskTracker,
}

/// What the trial says.
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
                        "candidates run with limits alone: they have the network and their user's files"
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

    /// A place for a candidate; waits for its turn. Cancel-safe.
    pub(super) async fn place(&self, program: &str) -> Result<Place, RewardError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| RewardError::Cancelled)?;
        let user = match &self.users {
            None => None,
            Some(users) => Some(users.take().ok_or_else(|| failed("all users are taken"))?),
        };
        let (program, directory) = (program.to_owned(), self.directory.clone());
        let owner = Owner { user, turn, tracker: self.tracker.clone(), runtime: Handle::current() };
        let place = self.tracker.spawn_blocking(move || Place::new(&directory, &program, owner));
        match place.await {
            Ok(place) => place.map_err(|error| failed(&format!("no place for a candidate: {error}"))),
            Err(_) => Err(RewardError::Cancelled),
        }
    }

    #[cfg(test)]
    pub(super) fn free_turns(&self) -> usize {
        self.turns.available_permits()
    }

    /// The program of a place as a run finds it.
    pub(super) fn program(&self) -> &'static str {
        self.cage.program()
    }

    /// Runs the interpreter with `-c` and `arguments` until it ends, its time is over, which is counted from its first
    /// word, or `end` comes; and cleans up after it. An error is the sandbox's own. Cancel-safe: dropped, it kills and
    /// cleans up all the same.
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
            // They have a directory within.
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

    /// How processes that are left are told from others; nothing where a namespace of them is all there is to end.
    fn mark(&self, place: &Place, mark: &str) -> Option<Mark> {
        match (place.user(), self.cage.level) {
            (Some(user), _) => Some(Mark::User(user)),
            (None, Level::Limits) => Some(Mark::Environment {
                words: format!("{MARK}={mark}").into(),
                directory: place.path().to_owned(),
            }),
            (None, _) => None,
        }
    }

    /// The limit of processes, with those that the kernel will count besides.
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

    /// Runs the trial; an error says what is missing.
    async fn works(&self) -> Result<(), String> {
        let place = self.place("").await.map_err(|error| error.to_string())?;
        let secret = place.path().to_string_lossy().into_owned();
        let most = self.cage.limits.processes.to_string();
        let times = Times { start: START_MAX, run: START_MAX, end: Instant::now() + START_MAX };
        let ended = self.run_within(&place, &[TRIAL, &secret, &most], b"", times, TRIAL_BYTES_MAX).await;
        let ended = ended.map_err(|error| error.to_string())?;
        let sight: Sight = serde_json::from_slice(&ended.stdout)
            .map_err(|_| format!("the trial ended by {:?}; stderr: {:?}", ended.how, ended.stderr.trim()))?;
        if self.cage.level != Level::Limits {
            apart(&sight)?;
        }
        if sight.forks > self.cage.limits.processes {
            tracing::warn!(
                level = self.cage.level.name(),
                "this host does not limit the processes of candidates"
            );
        }
        Ok(())
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

/// What to try: levels, and whether candidates shall be kept from namespaces of their own, which old hosts cannot do,
/// and `bwrap` not for `root`.
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

/// Whether a process of the trial is where the host is not.
fn apart(sight: &Sight) -> Result<(), String> {
    if sight.sees {
        return Err("it sees the host's files".to_owned());
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
    RewardError::Raised { what: WHAT.into(), reason: reason.to_owned() }
}

/// The first two numbers of a kernel's release; zeros where there are none.
fn version(release: &str) -> (u32, u32) {
    let mut numbers =
        release.split(|byte: char| !byte.is_ascii_digit()).map(|word| word.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests;
