//! A process of the system, which can be killed, stopped and started again. When a [`Process`] is dropped,
//! the process is killed.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, prlimit};

use crate::until;

/// The time in which a process must end after SIGTERM.
const END_MAX: Duration = Duration::from_secs(180);
/// The exit code of a run that has shut down gracefully after SIGTERM.
const TERMINATED: i32 = 143;
/// The part of a log that a message shows, in bytes.
const LOG_SHOWN: usize = 4_000;

/// A process and its log. A process that is started again appends to the same log.
pub(crate) struct Process {
    name: &'static str,
    command: Box<dyn Fn() -> Command + Send>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// Describes a process without starting it.
    pub(crate) fn new(
        name: &'static str,
        logs: &Path,
        command: impl Fn() -> Command + Send + 'static,
    ) -> Self {
        Self { name, command: Box::new(command), log: logs.join(format!("{name}.log")), child: None }
    }

    /// Starts the process in a process group of its own.
    pub(crate) fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = (self.command)();
        command.process_group(0).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")));
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().unwrap_or_else(|| panic!("{} does not run", self.name)))
    }

    /// Sends a signal to the process group of the process.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process_group(self.pid(), signal).unwrap();
    }

    /// Sends SIGKILL and waits for the end. Has no effect on a process that does not run.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The process may have ended by itself.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            child.wait().unwrap();
        }
    }

    /// Sends SIGTERM to a run, waits for its end, and checks that it has shut down gracefully.
    pub(crate) async fn terminate(&mut self) {
        self.signal(Signal::TERM);
        let what = format!("end of {} after SIGTERM", self.name);
        let mut status = None;
        until(&what, END_MAX, async || {
            status = self.ended();
            status.is_some()
        })
        .await;
        let code = status.and_then(|status| status.code());
        let log = self.log_end();
        assert_eq!(code, Some(TERMINATED), "the exit code of {} after SIGTERM\n{log}", self.name);
    }

    /// Returns the exit status of a process that has ended and was not killed with [`kill`](Self::kill).
    /// Returns `None` while the process runs. After the status was returned, later calls return `None` until
    /// the process is started again.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().unwrap()?;
        self.child = None;
        Some(status)
    }

    /// Limits the process to the descriptors that it has open.
    pub(crate) fn take_descriptors(&self) {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.pid().as_raw_nonzero())).unwrap().count();
        self.limit_descriptors(|_hard| Some(open as u64)).unwrap();
    }

    /// Lets the process open files again, if it has not ended.
    pub(crate) fn give_descriptors(&self) {
        // A process that has ended gets all descriptors when it starts again.
        let _ = self.limit_descriptors(|hard| hard);
    }

    /// Sets the soft limit of open files.
    fn limit_descriptors(&self, soft: impl FnOnce(Option<u64>) -> Option<u64>) -> rustix::io::Result<()> {
        // Processes inherit the hard limit of this test.
        let hard = getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit { current: soft(hard), maximum: hard };
        prlimit(Some(self.pid()), Resource::Nofile, limit).map(drop)
    }

    /// Panics if the log has a line that must not occur under any fault.
    pub(crate) fn check_log(&self) {
        let text = String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned();
        let wrong =
            text.lines().find(|line| line.contains("panicked at") || line.contains("broken invariant"));
        assert!(wrong.is_none(), "{} logged: {}\n{}", self.name, wrong.unwrap_or_default(), self.log_end());
    }

    /// The end of the log, for messages.
    pub(crate) fn log_end(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let shown = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(LOG_SHOWN)..]).into_owned();
        format!("-- the end of the log of {}:\n{shown}", self.name)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
