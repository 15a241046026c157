//! Runs peers in Python: sets up an environment once, and starts a script that answers lines of JSON.
//!
//! The first argument of a script is its folder. When the script is ready, it reports the versions of the
//! packages that it measures. It answers every line of its standard input with a line on its standard output,
//! and ends when its input ends.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant;

/// The longest time for an answer, including the start on a loaded machine.
const ANSWER_WAIT: Duration = Duration::from_secs(180);
/// The longest time for a script to end by itself.
const END_WAIT: Duration = Duration::from_secs(30);

/// A script and the processes that it starts. All of them end when this value is dropped.
pub struct Script {
    name: &'static str,
    child: Child,
    /// The script's standard input, which is closed to end the script.
    commands: Option<ChildStdin>,
    answers: Receiver<String>,
    /// The folder of the script's log and other files.
    folder: TempDir,
}

impl Script {
    /// Runs the text of a script and waits until it is ready.
    pub fn start<A: AsRef<OsStr>>(
        name: &'static str,
        python: &Path,
        script: &str,
        arguments: &[A],
    ) -> anyhow::Result<Self> {
        // The folder holds the script's sockets, and the path of a socket has a length limit.
        let folder = tempfile::Builder::new().prefix("rolldock-peer-").tempdir_in("/tmp")?;
        let file = folder.path().join("peer.py");
        std::fs::write(&file, script)?;
        let mut child = Command::new(python)
            .args([&file, folder.path()])
            .args(arguments)
            // The processes that the script starts stay in this group.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(log(folder.path()))?)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let commands = child.stdin.take();
        let answers = lines(BufReader::new(child.stdout.take().context("the peer has no standard output")?));
        let script = Self { name, child, commands, answers, folder };
        #[derive(Deserialize)]
        struct Started {
            versions: String,
        }
        let started: Started = script.answer()?;
        eprintln!("peer: {}", started.versions);
        Ok(script)
    }

    /// Sends a line and waits for its answer.
    pub fn ask<T: DeserializeOwned>(&mut self, command: &Value) -> anyhow::Result<T> {
        let commands = self.commands.as_mut().context("the peer is ending")?;
        // If the script has ended, reading its answer fails below, and that error has the reason.
        let _ = writeln!(commands, "{command}").and_then(|()| commands.flush());
        self.answer()
    }

    fn answer<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        let wait = || self.answers.recv_timeout(ANSWER_WAIT);
        let answer = match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
            // Blocking is harmless here, because this thread only waits for the script.
            _ => wait(),
        };
        let name = self.name;
        let line = match answer {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                anyhow::bail!("{name} has not answered for {ANSWER_WAIT:?}; its log ends: {}", self.log_end())
            }
            Err(RecvTimeoutError::Disconnected) => {
                anyhow::bail!("{name} has ended; its log ends: {}", self.log_end())
            }
        };
        let value: Value = serde_json::from_str(&line).with_context(|| format!("{name} said {line:?}"))?;
        if let Some(error) = value.get("error") {
            anyhow::bail!("{name} failed: {error}; its log ends: {}", self.log_end());
        }
        serde_json::from_value(value).with_context(|| format!("{name} said {line:?}"))
    }

    fn log_end(&self) -> String {
        let text = std::fs::read(log(self.folder.path())).unwrap_or_default();
        end(&text)
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.commands = None;
        // The script's output ends when the script ends.
        let deadline = Instant::now() + END_WAIT;
        while self.answers.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
        // The group is killed before the script is reaped. Until it is reaped, no other process can get the
        // script's id.
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // The group may have no processes left.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = self.child.wait();
    }
}

fn log(folder: &Path) -> PathBuf {
    folder.join("log")
}

/// The lines of an output, read by a thread until the output ends.
fn lines(output: impl BufRead + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// The last lines of a text.
fn end(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

/// A virtual environment of one peer.
pub struct Environment {
    /// The pinned packages. When they change, the environment is set up again.
    pub packages: &'static str,
    /// The environment variable that may name the folder.
    pub variable: &'static str,
    /// The folder in the user's cache that is used if the variable is not set.
    pub folder: &'static str,
}

impl Environment {
    /// The folder with the installed packages. If no earlier run has set the folder up, calls `install`.
    pub fn ready(
        &self,
        install: impl FnOnce(&Installation) -> anyhow::Result<()>,
    ) -> anyhow::Result<PathBuf> {
        let folder = self.folder()?;
        // This file is written last, so that an interrupted set-up starts again.
        let installed = folder.join("rolldock-peer.txt");
        if std::fs::read_to_string(&installed).is_ok_and(|packages| packages == self.packages) {
            return Ok(folder);
        }
        eprintln!("peer: setting up {} in {}, once", self.packages, folder.display());
        let installation = Installation { folder };
        let folder = &installation.folder;
        installation.step("python3 -m venv", Command::new("python3").args(["-m", "venv"]).arg(folder))?;
        install(&installation)?;
        std::fs::write(&installed, self.packages)?;
        Ok(installation.folder)
    }

    fn folder(&self) -> anyhow::Result<PathBuf> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        variable(self.variable)
            .or_else(|| Some(cache()?.join(self.folder)))
            .with_context(|| format!("there is no home folder; name one for the peer in {}", self.variable))
    }
}

/// An environment that is being set up.
pub struct Installation {
    /// The folder of the virtual environment.
    pub folder: PathBuf,
}

impl Installation {
    /// The command `pip install` of this environment.
    pub fn pip(&self) -> Command {
        let mut command = Command::new(python(&self.folder));
        command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        command
    }

    /// Runs a command to its end and prints its duration. An error contains the end of the command's output.
    pub fn step(&self, what: &str, command: &mut Command) -> anyhow::Result<()> {
        let started = Instant::now();
        let place = self.folder.display();
        run(command).with_context(|| format!("cannot set up the peer in {place}: {what}"))?;
        eprintln!("peer: {what}: {:.0} s", started.elapsed().as_secs_f64());
        Ok(())
    }
}

/// The interpreter of an environment.
pub fn python(folder: &Path) -> PathBuf {
    folder.join("bin/python")
}

/// Runs a command to its end. An error contains the end of its output.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {program}"))?;
    anyhow::ensure!(
        output.status.success(),
        "{}: {}",
        output.status,
        end(&[output.stdout, output.stderr].concat())
    );
    Ok(())
}
