//! Finds and kills the processes that a candidate or a program has left running outside of its process group.
//!
//! The end of a process namespace kills all of its processes. If a candidate has a user of its own, this
//! module recognises its processes by their user; in a namespace, this is a second check. The processes of
//! other candidates and of programs are recognised by a mark in their environment or by their directory. The
//! module first stops all of these processes, because a fork bomb starts processes faster than they can be
//! killed one by one. When no new processes appear, the module kills the stopped ones.
//!
//! A process that executes a new program has no environment and no command line for a moment. The module
//! looks again until the process has them, because the process may carry the mark.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::tasks;
use rustix::process::{Pid, Signal};
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

/// Maximum number of rounds over all processes of the host.
const ROUNDS_MAX: usize = 100;
/// The pause after a kill, in which the processes end.
const KILLED_PAUSE: Duration = Duration::from_millis(2);
/// Maximum time until a process that executes a new program has an environment. A process without an
/// environment for a longer time has removed its environment.
const EXECUTING_MAX: Duration = Duration::from_secs(1);

/// How processes are recognised.
#[derive(Debug, Clone)]
pub(super) enum Mark {
    /// By their user.
    User(u32),
    /// By a variable of their environment, or by their working directory, if it is `directory` or lies below
    /// it.
    Environment {
        /// `NAME=value`.
        words: Arc<str>,
        /// The path of the directory, without symbolic links; absent to look at the environment alone.
        directory: Option<PathBuf>,
    },
}

impl Mark {
    fn is_on(&self, process: &Process) -> bool {
        match self {
            Self::User(user) => process.user == *user,
            Self::Environment { words, directory } => {
                let environment = process.read("environ");
                let mut entries = environment.split(|byte| *byte == 0);
                let is_in = |directory: &PathBuf| {
                    std::fs::read_link(process.file("cwd")).is_ok_and(|path| path.starts_with(directory))
                };
                entries.any(|entry| entry == words.as_bytes()) || directory.as_ref().is_some_and(is_in)
            }
        }
    }

    /// Whether the process may carry the mark although the mark is not visible.
    fn is_hidden_on(&self, process: &Process) -> bool {
        matches!(self, Self::Environment { .. }) && process.is_executing()
    }
}

/// Kills all processes with `mark`. Returns false if some are left. Cancel-safe, but a cancelled call may
/// leave processes.
pub(super) async fn kill(mark: &Mark, tracker: &TaskTracker) -> bool {
    let mut stopped: HashSet<Pid> = HashSet::new();
    let began = Instant::now();
    let mut rounds = 0;
    while rounds < ROUNDS_MAX {
        let looking = mark.clone();
        // The search is blocking work, because a host may have many thousands of processes.
        let search = tasks::spawn_blocking(tracker, "process search", move || marked(&looking));
        let Found { marked: found, hidden } = search.await.unwrap_or_default();
        if found.is_empty() {
            if !hidden || began.elapsed() >= EXECUTING_MAX {
                return true;
            }
            sleep(KILLED_PAUSE).await;
            continue;
        }
        rounds += 1;
        let fresh: Vec<Pid> = found.iter().copied().filter(|id| stopped.insert(*id)).collect();
        if fresh.is_empty() {
            found.iter().for_each(|id| send(*id, Signal::KILL, mark));
            sleep(KILLED_PAUSE).await;
        } else {
            fresh.iter().for_each(|id| send(*id, Signal::STOP, mark));
        }
    }
    false
}

/// The number of threads of all processes of a user. The kernel counts these threads against the user's limit
/// of processes.
pub(super) fn tasks_of(user: u32) -> usize {
    processes().filter(|process| process.user == user).map(|process| process.threads).sum()
}

/// What a search has found.
#[derive(Default)]
struct Found {
    marked: Vec<Pid>,
    /// Whether a process may carry the mark although it is not seen.
    hidden: bool,
}

fn marked(mark: &Mark) -> Found {
    let mut found = Found::default();
    for process in processes().filter(|process| !matches!(process.state, 'Z' | 'X')) {
        if mark.is_on(&process) {
            found.marked.push(process.id);
        } else {
            found.hidden |= mark.is_hidden_on(&process);
        }
    }
    found
}

struct Process {
    id: Pid,
    user: u32,
    state: char,
    threads: usize,
    /// Whether the process has an address space. A thread of the kernel and an ending process have none.
    has_memory: bool,
}

impl Process {
    fn file(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.id.as_raw_nonzero()).into()
    }

    /// A file of the process; empty if it cannot be read.
    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.file(name)).unwrap_or_default()
    }

    /// Whether the process executes a new program and has no environment yet. Only processes of the user of
    /// this process count.
    fn is_executing(&self) -> bool {
        self.has_memory
            && self.user == rustix::process::getuid().as_raw()
            && self.read("cmdline").is_empty()
            && self.read("environ").is_empty()
    }
}

fn processes() -> impl Iterator<Item = Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| process(Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?))
}

/// Reads a process from `/proc`; `None` when it has ended meanwhile.
fn process(id: Pid) -> Option<Process> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", id.as_raw_nonzero())).ok()?;
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim_start);
    Some(Process {
        id,
        user: value("Uid:")?.split_whitespace().next()?.parse().ok()?,
        state: value("State:")?.chars().next()?,
        threads: value("Threads:").and_then(|count| count.trim().parse().ok()).unwrap_or(1),
        has_memory: value("VmSize:").is_some(),
    })
}

/// Signals a process if it still carries the mark. The descriptor prevents the signal from reaching a later
/// process with the same id.
#[cfg(target_os = "linux")]
fn send(id: Pid, signal: Signal, mark: &Mark) {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
    let Ok(held) = pidfd_open(id, PidfdFlags::empty()) else { return };
    if process(id).is_some_and(|process| mark.is_on(&process)) {
        // The only possible error is that the process has ended.
        let _ = pidfd_send_signal(&held, signal);
    }
}

#[cfg(not(target_os = "linux"))]
fn send(_id: Pid, _signal: Signal, _mark: &Mark) {}
