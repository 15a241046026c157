//! Programs that each work on one job until they exit: the agents of a run.
//!
//! A program gets its job on its standard input, and its output is kept only for people. A program holds a
//! [`Place`] of the pool. The place is free again when all processes of the program are gone.
//!
//! # Invariants
//! - The number of programs that run at a time is at most the number of places of the pool.
//! - When a program exits, reaches its deadline or is dropped, all of its processes are killed: first its
//!   process group, before the program is waited for, and then every process that still carries its mark.
//! - Of the output, only the last `OUTPUT_BYTES_MAX` bytes are kept. More output does not end a program.
//!
//! # Deliberately absent
//! By default there are no namespaces: a program is the user's own code. A program that runs code which a
//! model has written gets a [`ProgramSandbox`]. Where the system has no `/proc`, processes that have left
//! their group are not found.

mod sandbox;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Pid;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::child::{REAP_MAX, Tail, kill_group, limit_memory, until_exited};
use super::leftovers::{self, Mark};
use crate::RewardError;
use crate::tasks;

pub use sandbox::{ProgramSandbox, ProgramView};

/// Bytes at the end of a program's output that are kept.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// How long the output of an ended program is read.
const REST_MAX: Duration = Duration::from_millis(300);
/// The command that makes the kernel kill a program when this process dies; used only where it is installed.
const TIE: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];

/// A bounded pool of programs.
#[derive(Debug, Clone)]
pub struct Programs {
    places: Arc<Semaphore>,
    /// The words of the command line that come before the program.
    tie: Vec<String>,
    tracker: TaskTracker,
}

/// The right to run one program.
#[derive(Debug)]
pub struct Place {
    _permit: OwnedSemaphorePermit,
}

/// A program to run.
#[derive(Debug, Clone)]
pub struct Program {
    /// The name of the program in errors.
    pub what: String,
    /// The program and its arguments.
    pub words: Vec<String>,
    /// The working directory; by default that of this process.
    pub directory: Option<PathBuf>,
    /// Variables that are added to this process's environment. In a sandbox, they are added to only a few
    /// variables of that environment.
    pub env: BTreeMap<String, String>,
    /// One of the variables in `env`, as `NAME=value`. No other program has the same mark.
    pub mark: String,
    /// The bytes that the program reads from its standard input.
    pub input: Vec<u8>,
    /// Maximum address space of the program's first process, in bytes; in a sandbox, of each process. Without
    /// a sandbox, the limit is set right after the start, on Linux only.
    pub memory_bytes: Option<u64>,
    /// The sandbox in which the program runs.
    pub sandbox: Option<ProgramSandbox>,
    /// The time at which the program is killed.
    pub deadline: Instant,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramEnd {
    /// It exited with the status 0.
    Exited,
    /// It exited with another status, or a signal ended it.
    Failed(String),
    /// It was killed at its deadline.
    TimedOut,
}

/// A program that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// How it ended.
    pub end: ProgramEnd,
    /// The end of its output: standard output and standard error, in the order in which they arrived.
    pub output: String,
}

impl Programs {
    /// A pool of `places` places. Its tasks run on `tracker`.
    pub fn new(places: usize, tracker: TaskTracker) -> Self {
        let tie = if cfg!(target_os = "linux") && find_program(TIE[0], None).is_ok() {
            TIE.map(str::to_owned).to_vec()
        } else {
            Vec::new()
        };
        let places = Arc::new(Semaphore::new(places.clamp(1, Semaphore::MAX_PERMITS)));
        Self { places, tie, tracker }
    }

    /// Waits for a place. Cancel-safe.
    ///
    /// # Errors
    /// [`RewardError::Cancelled`]: the pool is closed.
    pub async fn place(&self) -> Result<Place, RewardError> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        place.map(|permit| Place { _permit: permit }).map_err(|_closed| RewardError::Cancelled)
    }

    /// The number of places that are free.
    pub fn free_places(&self) -> usize {
        self.places.available_permits()
    }

    /// Runs a program to its end, or kills it at its deadline. When this returns, no process of the program
    /// is left. Cancel-safe: a dropped program is killed at once, and a task cleans up.
    ///
    /// # Errors
    /// [`RewardError::Unloadable`]: the program cannot be started. [`RewardError::Unavailable`]: the program
    /// could not be started now.
    pub async fn run(&self, place: Place, program: Program) -> Result<Ran, RewardError> {
        let what = program.what.clone();
        let failed = |error: io::Error| {
            let (what, reason) = (what.clone(), format!("it could not be started: {error}"));
            match error.kind() {
                ErrorKind::NotFound | ErrorKind::PermissionDenied => RewardError::Unloadable { what, reason },
                _ => RewardError::Unavailable { what, reason },
            }
        };
        let mut running = Running::start(&self.tie, program, place, &self.tracker).map_err(failed)?;
        running.until_end().await;
        running.finish().await.ok_or(RewardError::Cancelled)
    }
}

/// A program that was started and is not cleaned up yet.
struct Running {
    parts: Option<Parts>,
    tracker: TaskTracker,
    runtime: Handle,
}

struct Parts {
    child: Child,
    group: Pid,
    deadline: Instant,
    is_over_time: bool,
    tail: Tail,
    outputs: [AbortOnDropHandle<()>; 2],
    _feeding: AbortOnDropHandle<()>,
    mark: Mark,
    what: String,
    tracker: TaskTracker,
    _place: Place,
}

impl Running {
    fn start(tie: &[String], program: Program, place: Place, tracker: &TaskTracker) -> io::Result<Self> {
        let enclosing = program.sandbox.as_ref().map(|sandbox| sandbox.words(program.memory_bytes));
        let own = program.words.iter().map(OsString::from);
        let mut words = tie.iter().map(OsString::from).chain(enclosing.into_iter().flatten()).chain(own);
        let Some(first) = words.next() else {
            return Err(io::Error::new(ErrorKind::NotFound, "the command line has no program"));
        };
        let mut command = Command::new(first);
        command.args(words).process_group(0).kill_on_drop(true);
        match program.sandbox {
            Some(_) => command.env_clear().envs(ProgramSandbox::environment(&program.env)),
            None => command.envs(&program.env),
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(directory) = &program.directory {
            command.current_dir(directory);
        }
        let mut child = command.spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(group), (Some(stdin), Some(stdout), Some(stderr))) = (group, pipes) else {
            return Err(io::Error::other("it ended before its pipes were open"));
        };
        let tail = Tail::new(OUTPUT_BYTES_MAX);
        let reading = |reading| AbortOnDropHandle::new(tasks::spawn(tracker, "program output", reading));
        let outputs = [
            reading(futures::FutureExt::boxed(tail.clone().drain(stdout))),
            reading(futures::FutureExt::boxed(tail.clone().drain(stderr))),
        ];
        let feeding = tasks::spawn(tracker, "program input", feed(stdin, program.input));
        let parts = Parts {
            child,
            group,
            deadline: program.deadline,
            is_over_time: false,
            tail,
            outputs,
            _feeding: AbortOnDropHandle::new(feeding),
            mark: Mark::Environment { words: program.mark.into(), directory: None },
            what: program.what,
            tracker: tracker.clone(),
            _place: place,
        };
        let running = Self { parts: Some(parts), tracker: tracker.clone(), runtime: Handle::current() };
        match program.memory_bytes.filter(|_| program.sandbox.is_none()) {
            Some(bytes) => limit_memory(group, bytes).map(|()| running).map_err(io::Error::other),
            None => Ok(running),
        }
    }

    /// Cancel-safe.
    async fn until_end(&mut self) {
        let Some(parts) = &mut self.parts else { return };
        tokio::select! {
            biased;
            () = until_exited(parts.group) => {}
            () = sleep_until(parts.deadline) => parts.is_over_time = true,
        }
    }

    /// Kills the processes that are left, and reports how the program ended.
    async fn finish(mut self) -> Option<Ran> {
        // The task fails only when its runtime shuts down.
        self.clean()?.await.ok()
    }

    fn clean(&mut self) -> Option<JoinHandle<Ran>> {
        let parts = self.parts.take()?;
        kill_group(&parts.child, parts.group);
        Some(tasks::spawn_on(&self.tracker, "program clean-up", parts.clean(), &self.runtime))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.clean());
    }
}

impl Parts {
    /// Waits for a killed or ended program, and kills the processes that have left its group.
    async fn clean(mut self) -> Ran {
        let status = timeout(REAP_MAX, self.child.wait()).await.ok().and_then(Result::ok);
        if !leftovers::kill(&self.mark, &self.tracker).await {
            tracing::warn!(program = self.what, "processes of a program could not be killed");
        }
        let rest = Instant::now() + REST_MAX;
        for output in &mut self.outputs {
            // Output that arrives later is missing only in the message.
            drop(tokio::time::timeout_at(rest, output).await);
        }
        let end = match status {
            _ if self.is_over_time => ProgramEnd::TimedOut,
            Some(status) if status.success() => ProgramEnd::Exited,
            status => ProgramEnd::Failed(how(status)),
        };
        Ran { end, output: self.tail.text() }
    }
}

fn how(status: Option<ExitStatus>) -> String {
    status.map_or_else(|| "its exit status is unknown".to_owned(), |status| status.to_string())
}

/// Writes the input. It is not a failure if the program does not read all input.
async fn feed(mut stdin: ChildStdin, input: Vec<u8>) {
    if stdin.write_all(&input).await.is_ok() {
        let _ = stdin.shutdown().await;
    }
}

/// Kills all processes whose environment has `mark`, a text `NAME=value`, for example the processes that an
/// earlier process of the same run left behind. Returns false if some are left. Cancel-safe, but a cancelled
/// call may leave processes.
pub async fn end_marked(mark: &str, tracker: &TaskTracker) -> bool {
    leftovers::kill(&Mark::Environment { words: mark.into(), directory: None }, tracker).await
}

/// The file that the first word of a command names: a path, or a name that is searched in `PATH`. A relative
/// path is relative to `directory`, or to the current directory.
///
/// # Errors
/// The error names the place that was searched.
pub fn find_program(word: &str, directory: Option<&Path>) -> Result<PathBuf, String> {
    if word.contains('/') {
        let path = directory.unwrap_or(Path::new("")).join(word);
        return match is_executable(&path) {
            true => Ok(path),
            false => Err(format!("expected a program at {}", path.display())),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(word)).find(|path| is_executable(path));
    found.ok_or_else(|| format!("expected a program {word:?} in PATH, found none"))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests;
