//! Finds and kills what a candidate has left running outside of its process group.
//!
//! A namespace of processes does this by itself; where there is none, or as a second look, processes are told by a
//! user of their own or, for want of that, by a mark in their environment or by their directory. All are stopped first
//! and killed when no new ones come, because a fork bomb outruns one kill after the other.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

/// Looks at all processes; more of them find nothing new.
const ROUNDS_MAX: usize = 100;
/// What was killed needs a moment to be gone.
const KILLED_PAUSE: Duration = Duration::from_millis(2);

/// How a candidate's processes are told from others.
#[derive(Debug, Clone)]
pub(super) enum Mark {
    /// By their user.
    User(u32),
    /// By the words of an environment, or by the directory they are in or below.
    Environment {
        /// `NAME=value`.
        words: Arc<str>,
        /// Its path without links.
        directory: PathBuf,
    },
}

impl Mark {
    fn is_on(&self, process: &Process) -> bool {
        match self {
            Self::User(user) => process.user == *user,
            Self::Environment { words, directory } => {
                let place = format!("/proc/{}", process.id.as_raw_nonzero());
                let environment = std::fs::read(format!("{place}/environ")).unwrap_or_default();
                let mut entries = environment.split(|byte| *byte == 0);
                entries.any(|entry| entry == words.as_bytes())
                    || std::fs::read_link(format!("{place}/cwd"))
                        .is_ok_and(|path| path.starts_with(directory))
            }
        }
    }
}

/// Kills all processes with `mark`; false when some are left. Cancel-safe, but then some may be left.
pub(super) async fn kill(mark: &Mark, tracker: &TaskTracker) -> bool {
    let mut stopped: HashSet<Pid> = HashSet::new();
    for _ in 0..ROUNDS_MAX {
        let looking = mark.clone();
        // A host may have many thousands of processes.
        let found = tracker.spawn_blocking(move || marked(&looking)).await.unwrap_or_default();
        if found.is_empty() {
            return true;
        }
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

/// Processes and threads of a user, as the kernel counts them against its limit.
pub(super) fn tasks_of(user: u32) -> usize {
    processes().filter(|process| process.user == user).map(|process| process.threads).sum()
}

fn marked(mark: &Mark) -> Vec<Pid> {
    let lives = |process: &Process| !matches!(process.state, 'Z' | 'X');
    processes().filter(|process| lives(process) && mark.is_on(process)).map(|process| process.id).collect()
}

struct Process {
    id: Pid,
    user: u32,
    state: char,
    threads: usize,
}

fn processes() -> impl Iterator<Item = Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| process(Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?))
}

/// What is known of a process; nothing when it has ended meanwhile.
fn process(id: Pid) -> Option<Process> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", id.as_raw_nonzero())).ok()?;
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim_start);
    Some(Process {
        id,
        user: value("Uid:")?.split_whitespace().next()?.parse().ok()?,
        state: value("State:")?.chars().next()?,
        threads: value("Threads:").and_then(|count| count.trim().parse().ok()).unwrap_or(1),
    })
}

/// Signals a process if it still is the one that was found: held by a descriptor, its number cannot be another's.
#[cfg(target_os = "linux")]
fn send(id: Pid, signal: Signal, mark: &Mark) {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
    let Ok(held) = pidfd_open(id, PidfdFlags::empty()) else { return };
    if process(id).is_some_and(|process| mark.is_on(&process)) {
        // The only error is that it has ended.
        let _ = pidfd_send_signal(&held, signal);
    }
}

#[cfg(not(target_os = "linux"))]
fn send(_id: Pid, _signal: Signal, _mark: &Mark) {}
