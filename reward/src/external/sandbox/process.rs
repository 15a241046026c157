//! Runs one process: feeds its input, reads its output within limits, and kills the process together with the
//! processes that it has started.
//!
//! The process group is always killed before the process is waited for, as in [`super::super::processes`];
//! after that, only processes with the candidate's mark are killed. A separate task cleans up, so the
//! clean-up also finishes when a run is dropped.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::os::unix::fs::fchown;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::TaskTracker;

use super::super::leftovers::{self, Mark};
use super::place::Place;
use crate::tasks;

/// How many bytes at the end of standard error are kept.
const STDERR_BYTES_MAX: usize = 2048;
/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 1 << 16;
/// How long the output of an ended process is read; other processes may keep its pipe open for longer.
const REST_MAX: Duration = Duration::from_millis(300);
/// How long a killed process is waited for; only a process that hangs in the kernel takes longer.
const REAP_MAX: Duration = Duration::from_secs(5);
/// How long the pipes of a killed sandbox are waited for; they close with its last process.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// When a signal ends a process, shells and `bwrap` exit with the status `SIGNAL_BASE + signal`.
const SIGNAL_BASE: i32 = 128;
/// The highest signal number.
const SIGNAL_MAX: i32 = 64;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::external) enum How {
    /// The process exited with this status.
    Exited(i32),
    /// Another process or the kernel ended the process with this signal.
    Signalled(i32),
    /// The process was killed at its deadline.
    TimedOut,
    /// The process was killed because it wrote more than its limit.
    TooMuchOutput,
}

/// A run that is over.
#[derive(Debug)]
pub(in crate::external) struct Ended {
    /// How the run ended.
    pub(in crate::external) how: How,
    /// The standard output, as far as it was read.
    pub(in crate::external) stdout: Vec<u8>,
    /// The end of the standard error.
    pub(in crate::external) stderr: String,
}

/// The time limits of a run.
#[derive(Debug, Clone, Copy)]
pub(in crate::external) struct Times {
    /// The limit until the first output, which shows that the run has started.
    pub(in crate::external) start: Duration,
    /// The limit from the first output on.
    pub(in crate::external) run: Duration,
    /// The latest end of the run.
    pub(in crate::external) end: Instant,
}

/// The process to start.
pub(super) struct Start<'a> {
    pub(super) words: &'a [OsString],
    pub(super) environment: Vec<(&'static str, OsString)>,
    pub(super) directory: &'a Path,
    pub(super) mark: Option<Mark>,
}

/// A process that has started and is not cleaned up yet.
pub(super) struct Run {
    parts: Option<Parts>,
    tracker: TaskTracker,
    runtime: Handle,
}

struct Parts {
    child: Child,
    group: Pid,
    stdin: Option<Sender>,
    stdout: Receiver,
    stderr: Receiver,
    work: PathBuf,
    mark: Option<Mark>,
    place: Place,
    tracker: TaskTracker,
}

impl Run {
    /// Starts a process in `place`. The run holds `place` until everything is cleaned up.
    pub(super) fn start(start: Start<'_>, place: Place, tracker: TaskTracker) -> io::Result<Self> {
        let Some((program, arguments)) = start.words.split_first() else {
            return Err(io::Error::other("the command line has no program"));
        };
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(start.environment).current_dir(start.directory);
        let (stdin, stdout, stderr) = (pipe(&place)?, pipe(&place)?, pipe(&place)?);
        command.stdin(stdin.0).stdout(stdout.1).stderr(stderr.1).kill_on_drop(true);
        let stdin = Sender::from_owned_fd(stdin.1.into())?;
        let stdout = Receiver::from_owned_fd(stdout.0.into())?;
        let stderr = Receiver::from_owned_fd(stderr.0.into())?;
        let child = command.spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let group = group.ok_or_else(|| io::Error::other("the process has no id"))?;
        let parts = Parts {
            child,
            group,
            stdin: Some(stdin),
            stdout,
            stderr,
            work: start.directory.to_owned(),
            mark: start.mark,
            place,
            tracker: tracker.clone(),
        };
        Ok(Self { parts: Some(parts), tracker, runtime: Handle::current() })
    }

    /// Feeds and reads the process until it ends, and cleans up. Cancel-safe: a dropped run is killed and
    /// cleaned up.
    pub(super) async fn finish(mut self, input: &[u8], times: Times, output_max: usize) -> io::Result<Ended> {
        let Some(parts) = &mut self.parts else {
            return Err(io::Error::other("the process was finished before"));
        };
        let ended = parts.watch(input, times, output_max).await;
        if let Some(cleaning) = self.clean() {
            // The task fails only when its runtime shuts down.
            drop(cleaning.await);
        }
        ended
    }

    fn clean(&mut self) -> Option<tokio::task::JoinHandle<()>> {
        let mut parts = self.parts.take()?;
        parts.kill();
        Some(tasks::spawn_on(&self.tracker, "sandbox clean-up", parts.clean(), &self.runtime))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        drop(self.clean());
    }
}

impl Parts {
    /// Cancel-safe: a dropped call loses only the run itself.
    async fn watch(&mut self, input: &[u8], times: Times, output_max: usize) -> io::Result<Ended> {
        let Self { child, stdin, stdout, stderr, .. } = self;
        let feeding = feed(stdin.take(), input);
        tokio::pin!(feeding);
        let (mut is_fed, mut exit) = (false, None::<ExitStatus>);
        let mut out = Output::new(output_max);
        let mut limit = times.end.min(Instant::now() + times.start);
        let (mut out_chunk, mut err_chunk) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
        while exit.is_none() || out.is_open() {
            tokio::select! {
                biased;
                () = sleep_until(limit) => break,
                status = child.wait(), if exit.is_none() => {
                    exit = Some(status?);
                    limit = Instant::now() + REST_MAX;
                }
                count = stdout.read(&mut out_chunk), if out.stdout_open => {
                    if out.stdout.is_empty() && exit.is_none() {
                        limit = times.end.min(Instant::now() + times.run);
                    }
                    out.stdout(&out_chunk[..count?]);
                }
                count = stderr.read(&mut err_chunk), if out.stderr_open => out.stderr(&err_chunk[..count?]),
                () = &mut feeding, if !is_fed => is_fed = true,
            }
            if out.is_over() {
                return Ok(out.end(How::TooMuchOutput));
            }
        }
        Ok(out.end(exit.map_or(How::TimedOut, how)))
    }

    fn kill(&mut self) {
        // A child that was waited for has no id, and the kernel may have reused the number of its group.
        if self.child.id().is_some() {
            // A child that has no group of its own yet has no children either. The only possible error is
            // that no process is left.
            let _ = self.child.start_kill();
            let _ = kill_process_group(self.group, Signal::KILL);
        }
    }

    /// Waits for a killed or ended process, kills its remaining processes and waits until its pipes close.
    async fn clean(mut self) {
        drop(timeout(REAP_MAX, self.child.wait()).await);
        if let Some(mark) = &self.mark
            && !leftovers::kill(mark, &self.tracker).await
        {
            tracing::warn!(work = ?self.work, "processes of a candidate could not be killed");
        }
        let closed = async {
            let (mut out, mut err) = (tokio::io::sink(), tokio::io::sink());
            let copies =
                (tokio::io::copy(&mut self.stdout, &mut out), tokio::io::copy(&mut self.stderr, &mut err));
            drop(tokio::join!(copies.0, copies.1));
        };
        drop(timeout(CLOSE_MAX, closed).await);
        drop(self.place);
    }
}

/// A pipe whose owner is the candidate, because programs may open `/dev/stdin` by name.
fn pipe(place: &Place) -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    if let Some(user) = place.user() {
        fchown(reader.as_fd(), Some(user), Some(user))?;
    }
    Ok((reader, writer))
}

/// Writes the input. It is not a failure if the process does not read all input.
async fn feed(stdin: Option<Sender>, input: &[u8]) {
    let Some(mut stdin) = stdin else { return };
    if stdin.write_all(input).await.is_ok() {
        let _ = stdin.shutdown().await;
    }
}

fn how(status: ExitStatus) -> How {
    match (status.code(), status.signal()) {
        (Some(code), _) if (SIGNAL_BASE + 1..=SIGNAL_BASE + SIGNAL_MAX).contains(&code) => {
            How::Signalled(code - SIGNAL_BASE)
        }
        (Some(code), _) => How::Exited(code),
        (None, signal) => How::Signalled(signal.unwrap_or_default()),
    }
}

/// The output of a process, within its limit.
struct Output {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    stdout_open: bool,
    stderr_open: bool,
    bytes: usize,
    bytes_max: usize,
}

impl Output {
    fn new(bytes_max: usize) -> Self {
        let (stdout, stderr) = (Vec::new(), Vec::new());
        Self { stdout, stderr, stdout_open: true, stderr_open: true, bytes: 0, bytes_max }
    }

    fn stdout(&mut self, chunk: &[u8]) {
        self.stdout_open = !chunk.is_empty();
        self.bytes += chunk.len();
        self.stdout.extend_from_slice(chunk);
    }

    fn stderr(&mut self, chunk: &[u8]) {
        self.stderr_open = !chunk.is_empty();
        self.bytes += chunk.len();
        self.stderr.extend_from_slice(chunk);
        let surplus = self.stderr.len().saturating_sub(STDERR_BYTES_MAX);
        self.stderr.drain(..surplus);
    }

    fn is_open(&self) -> bool {
        self.stdout_open || self.stderr_open
    }

    fn is_over(&self) -> bool {
        self.bytes > self.bytes_max
    }

    fn end(self, how: How) -> Ended {
        Ended { how, stdout: self.stdout, stderr: String::from_utf8_lossy(&self.stderr).into_owned() }
    }
}
