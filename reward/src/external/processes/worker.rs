//! One worker process.
//!
//! A process is always killed, with its whole group, before it is waited for. The kernel cannot reuse the id
//! of a process that was not waited for.

use std::io::ErrorKind;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Pid;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{sleep, timeout};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::PoolSpec;
use crate::external::answer::quote;
use crate::external::child::{REAP_MAX, Tail, has_exited, kill_group, limit_memory};
use crate::tasks;

/// Maximum number of bytes of an answer line.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;
/// How many bytes at the end of standard error are kept.
const STDERR_BYTES_MAX: usize = 2048;
/// How many of the last lines of standard error an error shows.
const STDERR_LINES_MAX: usize = 6;
/// How long a process that has closed its pipes may take to exit by itself. The exit status is known only if
/// the process exits by itself.
const EXIT_GRACE: Duration = Duration::from_millis(500);
/// The interval of the checks whether the process has exited.
const EXIT_POLL: Duration = Duration::from_millis(5);
/// How long the standard error of a dead process is read.
const STDERR_WAIT_MAX: Duration = Duration::from_millis(200);

/// How a worker ended.
#[derive(Debug, Clone, Default)]
pub(in crate::external) struct Death {
    /// Exit status or signal.
    pub(in crate::external) how: String,
    /// The last lines of standard error.
    pub(in crate::external) stderr: String,
}

/// Why a worker gave no answer.
pub(super) enum Ended {
    /// The worker's output or input is closed.
    Died,
    /// The answer line exceeds [`LINE_BYTES_MAX`]. The value is the beginning of the line.
    TooLong(Vec<u8>),
}

/// Why a worker did not start.
pub(super) enum StartError {
    /// The worker died. A later start may succeed.
    Died(Death),
    /// The worker was not ready within the time limit of a start.
    Slow(Death),
    /// No worker can start. Later starts would fail too.
    Never(String),
}

pub(super) struct Worker {
    /// Taken when the worker is dropped.
    child: Option<Child>,
    group: Pid,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    stderr_tail: Tail,
    stderr_end: Option<AbortOnDropHandle<()>>,
    answers: u64,
    slot: Option<OwnedSemaphorePermit>,
    tracker: TaskTracker,
    runtime: Handle,
}

impl Worker {
    /// Starts a process and waits for its handshake. Cancel-safe: dropping the future kills the process.
    pub(super) async fn start(spec: &PoolSpec, tracker: &TaskTracker) -> Result<Self, StartError> {
        let mut worker = Self::launch(spec, tracker)?;
        let Some(limit) = spec.handshake else { return Ok(worker) };
        let Ok(hello) = timeout(limit, worker.line()).await else {
            let how = format!("it was not ready within start_s={}", limit.as_secs_f64());
            return Err(StartError::Slow(worker.last_words(how)));
        };
        let wrong = |bytes: &[u8]| format!("expected {{\"ready\": true}}, found {:?}", quote(bytes));
        let how = match hello {
            Ok(bytes) => match serde_json::from_slice::<Value>(&bytes) {
                Ok(hello) if hello["ready"] == true => return Ok(worker),
                Ok(hello) if hello["fatal"].is_string() => {
                    return Err(StartError::Never(hello["fatal"].as_str().unwrap_or_default().to_owned()));
                }
                _ => wrong(&bytes),
            },
            Err(Ended::TooLong(start)) => wrong(&start),
            Err(Ended::Died) => return Err(StartError::Died(worker.death().await)),
        };
        Err(StartError::Died(worker.last_words(how)))
    }

    fn last_words(&self, how: String) -> Death {
        Death { how, stderr: self.stderr_tail.last_lines(STDERR_LINES_MAX) }
    }

    fn launch(spec: &PoolSpec, tracker: &TaskTracker) -> Result<Self, StartError> {
        let Some((program, arguments)) = spec.words.split_first() else {
            return Err(StartError::Never("the command line has no program".into()));
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(&spec.env).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(directory) = &spec.directory {
            command.current_dir(directory);
        }
        let died = |how: String| StartError::Died(Death { how, ..Death::default() });
        let mut child = command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::PermissionDenied => {
                let place = spec.directory.as_deref().map_or(String::new(), |path| format!(" in {path:?}"));
                StartError::Never(format!("{program:?}{place}: {error}"))
            }
            _ => died(format!("before it began: {error}")),
        })?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(group), (Some(stdin), Some(stdout), Some(stderr))) = (group, pipes) else {
            return Err(died("before its pipes were open".into()));
        };
        let stderr_tail = Tail::new(STDERR_BYTES_MAX);
        let drain = stderr_tail.clone().drain(stderr);
        let worker = Self {
            child: Some(child),
            group,
            stdin,
            stdout: BufReader::new(stdout),
            stderr_tail,
            stderr_end: Some(AbortOnDropHandle::new(tasks::spawn(tracker, "reward worker stderr", drain))),
            answers: 0,
            slot: None,
            tracker: tracker.clone(),
            runtime: Handle::current(),
        };
        match spec.memory_bytes {
            Some(bytes) => limit_memory(group, bytes).map(|()| worker).map_err(died),
            None => Ok(worker),
        }
    }

    /// Gives the worker its slot. The worker holds the slot until its process has ended.
    pub(super) fn with_slot(mut self, slot: OwnedSemaphorePermit) -> Self {
        self.slot = Some(slot);
        self
    }

    /// Sends a question and waits for the answer line. Not cancel-safe: after a cancelled call the worker
    /// must be dropped.
    pub(super) async fn ask(&mut self, question: &[u8]) -> Result<Vec<u8>, Ended> {
        self.stdin.write_all(question).await.map_err(|_| Ended::Died)?;
        self.stdin.flush().await.map_err(|_| Ended::Died)?;
        let line = self.line().await?;
        self.answers += 1;
        Ok(line)
    }

    /// The number of answers so far.
    pub(super) fn answers(&self) -> u64 {
        self.answers
    }

    /// Whether the worker has printed nothing besides its answers, as far as its output was read.
    pub(super) fn is_quiet(&self) -> bool {
        self.stdout.buffer().trim_ascii().is_empty()
    }

    /// Whether the process lives.
    pub(super) fn lives(&self) -> bool {
        !has_exited(self.group)
    }

    /// Waits for the exit of a worker whose pipes are closed, and kills a worker that does not exit.
    /// Cancel-safe: dropping the future drops the worker.
    pub(super) async fn death(mut self) -> Death {
        let exited = timeout(EXIT_GRACE, async {
            while !has_exited(self.group) {
                sleep(EXIT_POLL).await;
            }
        });
        let exited_by_itself = exited.await.is_ok();
        self.kill();
        let status = match &mut self.child {
            Some(child) => timeout(REAP_MAX, child.wait()).await.ok().and_then(Result::ok),
            None => None,
        };
        if let Some(end) = self.stderr_end.take() {
            // Output that arrives later is missing only in the error message.
            drop(timeout(STDERR_WAIT_MAX, end).await);
        }
        self.last_words(how(status, exited_by_itself))
    }

    /// Reads the next line that is not empty.
    async fn line(&mut self) -> Result<Vec<u8>, Ended> {
        let mut line = Vec::new();
        loop {
            let bytes = self.stdout.fill_buf().await.map_err(|_| Ended::Died)?;
            if bytes.is_empty() {
                return Err(Ended::Died);
            }
            let end = memchr::memchr(b'\n', bytes);
            let taken = end.map_or(bytes.len(), |at| at + 1);
            line.extend_from_slice(&bytes[..taken]);
            self.stdout.consume(taken);
            if line.len() > LINE_BYTES_MAX {
                return Err(Ended::TooLong(line));
            }
            if end.is_none() {
                continue;
            }
            if !line.trim_ascii().is_empty() {
                return Ok(line);
            }
            line.clear();
        }
    }

    fn kill(&self) {
        if let Some(child) = &self.child {
            kill_group(child, self.group);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
        let (Some(mut child), slot) = (self.child.take(), self.slot.take()) else { return };
        let reap = async move {
            drop(timeout(REAP_MAX, child.wait()).await);
            drop(slot);
        };
        tasks::spawn_on(&self.tracker, "reward worker reaper", reap, &self.runtime);
    }
}

fn how(status: Option<ExitStatus>, exited_by_itself: bool) -> String {
    match status {
        Some(status) if exited_by_itself => status.to_string(),
        Some(_) => "it closed its pipes and was killed".to_owned(),
        None => "its exit status is unknown".to_owned(),
    }
}
