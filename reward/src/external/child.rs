//! What all kinds of child processes share: the end of their output, their exit, and the kill of their group.
//!
//! # Invariant
//! A process is killed, with its whole group, before it is waited for. The kernel cannot reuse the id of a
//! process that was not waited for.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

/// How long a killed process is waited for; only a process that hangs in the kernel takes longer.
pub(super) const REAP_MAX: Duration = Duration::from_secs(5);
/// How many bytes of output are read at a time.
const CHUNK_BYTES: usize = 4096;
/// The longest interval between two checks whether a process has exited. Usually SIGCHLD reports the exit
/// earlier.
const EXIT_POLL: Duration = Duration::from_millis(500);

/// The end of the output of a process. Clones share the same bytes.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    kept: Arc<Mutex<Vec<u8>>>,
    bytes_max: usize,
}

impl Tail {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { kept: Arc::default(), bytes_max }
    }

    /// Reads until the end and keeps the last bytes. The caller aborts this when the process ends, because
    /// other processes may keep the pipe open.
    pub(super) async fn drain(self, mut output: impl AsyncRead + Unpin) {
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Ok(count @ 1..) = output.read(&mut chunk).await {
            let mut kept = self.kept.lock();
            kept.extend_from_slice(&chunk[..count]);
            let surplus = kept.len().saturating_sub(self.bytes_max);
            kept.drain(..surplus);
        }
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept.lock()).into_owned()
    }

    /// The last lines that are not empty.
    pub(super) fn last_lines(&self, lines_max: usize) -> String {
        let text = self.text();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(lines_max)..].join("\n")
    }
}

/// Whether a child has ended; the child can still be waited for.
pub(super) fn has_exited(child: Pid) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(child), look), Ok(None))
}

/// Completes when a child has ended; the child can still be waited for. Cancel-safe.
pub(super) async fn until_exited(child: Pid) {
    // The signal is subscribed to before the first check, so that no exit is missed.
    let mut ended = signal(SignalKind::child()).ok();
    while !has_exited(child) {
        match &mut ended {
            // Any child may have ended.
            Some(ended) => drop(timeout(EXIT_POLL, ended.recv()).await),
            None => sleep(EXIT_POLL).await,
        }
    }
}

/// Kills the group of a child. Does nothing if the child was already waited for.
pub(super) fn kill_group(child: &Child, group: Pid) {
    // A child that was waited for has no id, and the kernel may have reused the number of its group.
    if child.id().is_some() {
        // The only possible error is that the group has no process any more.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(target_os = "linux")]
pub(super) fn limit_memory(process: Pid, bytes: u64) -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, prlimit};
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    match prlimit(Some(process), Resource::As, limit) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("its memory limit could not be set: {error}")),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn limit_memory(_process: Pid, _bytes: u64) -> Result<(), String> {
    Err("memory limits need Linux".to_owned())
}
