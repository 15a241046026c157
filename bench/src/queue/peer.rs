//! The peer: the Python package `transferqueue`, which runs on Ray, in an environment and processes of its own.
//!
//! What is measured and how is in `bench/peers/transferqueue_peer.py`: one process for the whole run, asked round by
//! round with a line of JSON. Nothing of it is needed, nor looked for, without `--peer`.

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
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant;

use super::data::{LARGE_ROWS, PROMPT_TOKENS, RESPONSE_TOKENS, SMALL_BYTES};
use super::rounds::Round;

pub(super) const NAME: &str = "transferqueue 0.1.11";
const PACKAGE: &str = "transferqueue==0.1.11";
const SCRIPT: &str = include_str!("../../peers/transferqueue_peer.py");
/// The folder of its environment.
const FOLDER_VARIABLE: &str = "ROLLDOCK_PEER_ENV";
/// PyTorch for processors alone: what PyPI has for Linux brings CUDA along.
const CPU_WHEELS: &str = "https://download.pytorch.org/whl/cpu";
/// The longest that a round, or Ray's start on a loaded machine, may take.
const ANSWER_WAIT: Duration = Duration::from_secs(180);
/// How long it may take to end by itself.
const END_WAIT: Duration = Duration::from_secs(30);

/// Bytes of its processes that hold no rows.
#[derive(Debug, Deserialize)]
pub(super) struct Memory {
    /// What each has resident, added up.
    pub(super) resident: f64,
    /// The same with shared pages counted once.
    pub(super) proportional: f64,
    /// Each of them, in words.
    processes: Vec<String>,
}

/// The peer's processes; they end with this value.
pub(super) struct Peer {
    child: Child,
    /// Closed to end it.
    commands: Option<ChildStdin>,
    answers: Receiver<String>,
    /// Its log, and Ray's files.
    folder: TempDir,
}

impl Peer {
    /// Installs it if need be.
    pub(super) fn start() -> anyhow::Result<Self> {
        let python = environment()?;
        eprintln!("peer: starting {NAME} with a controller and two storage units");
        // Ray's sockets are in it, and the path of a socket has a length limit.
        let folder = tempfile::Builder::new().prefix("rolldock-peer-").tempdir_in("/tmp")?;
        let script = folder.path().join("peer.py");
        std::fs::write(&script, SCRIPT)?;
        let mut child = Command::new(python)
            .args([&script, folder.path()])
            // What Ray starts stays in this group.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(log(folder.path()))?)
            .spawn()
            .with_context(|| format!("cannot start {NAME}"))?;
        let commands = child.stdin.take();
        let answers = lines(BufReader::new(child.stdout.take().context("the peer has no standard output")?));
        let peer = Self { child, commands, answers, folder };
        #[derive(Deserialize)]
        struct Started {
            versions: String,
        }
        let started: Started = peer.answer()?;
        eprintln!("peer: {}", started.versions);
        Ok(peer)
    }

    /// Of its controller, its storage units and Ray's own processes, not of its client.
    pub(super) fn memory(&mut self) -> anyhow::Result<Memory> {
        let memory: Memory = self.ask(&json!({"do": "memory"}))?;
        for process in &memory.processes {
            eprintln!("peer: {process}");
        }
        Ok(memory)
    }

    /// One put and one take of the large batch.
    pub(super) fn large(&mut self) -> anyhow::Result<Round> {
        self.ask(&json!({
            "do": "large", "rows": LARGE_ROWS, "prompt_tokens": PROMPT_TOKENS, "response_tokens": RESPONSE_TOKENS,
        }))
    }

    /// So many puts and then so many takes, of so many rows of 1 KB each.
    pub(super) fn small(&mut self, rows: usize, calls: usize) -> anyhow::Result<Round> {
        self.ask(&json!({"do": "small", "rows": rows, "payload_bytes": SMALL_BYTES, "calls": calls}))
    }

    /// Seconds of each of so many takes of one column of the same rows.
    pub(super) fn small_takes(&mut self, rows: usize, calls: usize) -> anyhow::Result<Vec<f64>> {
        #[derive(Deserialize)]
        struct Takes {
            seconds: Vec<f64>,
        }
        let command =
            json!({"do": "small_takes", "rows": rows, "payload_bytes": SMALL_BYTES, "calls": calls});
        Ok(self.ask::<Takes>(&command)?.seconds)
    }

    fn ask<T: DeserializeOwned>(&mut self, command: &Value) -> anyhow::Result<T> {
        let commands = self.commands.as_mut().context("the peer is ending")?;
        // If it has ended, there is no answer either, and then the error says why.
        let _ = writeln!(commands, "{command}").and_then(|()| commands.flush());
        self.answer()
    }

    fn answer<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        let wait = || self.answers.recv_timeout(ANSWER_WAIT);
        let answer = match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
            // One thread, which has nothing else to do.
            _ => wait(),
        };
        let line = match answer {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                anyhow::bail!("{NAME} has not answered for {ANSWER_WAIT:?}; its log ends: {}", self.log_end())
            }
            Err(RecvTimeoutError::Disconnected) => {
                anyhow::bail!("{NAME} has ended; its log ends: {}", self.log_end())
            }
        };
        let value: Value = serde_json::from_str(&line).with_context(|| format!("{NAME} said {line:?}"))?;
        if let Some(error) = value.get("error") {
            anyhow::bail!("{NAME} failed: {error}; its log ends: {}", self.log_end());
        }
        serde_json::from_value(value).with_context(|| format!("{NAME} said {line:?}"))
    }

    fn log_end(&self) -> String {
        let text = std::fs::read(log(self.folder.path())).unwrap_or_default();
        end(&text)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.commands = None;
        // Its output ends when it does.
        let deadline = Instant::now() + END_WAIT;
        while self.answers.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
        // Before it is waited for, because until then nobody else can have its number.
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // There may be none left.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = self.child.wait();
    }
}

fn log(folder: &Path) -> PathBuf {
    folder.join("log")
}

/// The lines of an output, until it ends.
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

/// The Python of an environment that has the package: made now, unless an earlier run has.
fn environment() -> anyhow::Result<PathBuf> {
    let folder = folder()?;
    let python = folder.join("bin/python");
    // Written last, so that an interrupted set-up is begun again.
    let installed = folder.join("rolldock-peer.txt");
    if std::fs::read_to_string(&installed).is_ok_and(|package| package == PACKAGE) {
        return Ok(python);
    }
    let place = folder.display();
    eprintln!("peer: setting up {PACKAGE} in {place}, once");
    let set_up = |what: &str, command: &mut Command| {
        let started = Instant::now();
        run(command).with_context(|| format!("cannot set up the peer in {place}: {what}"))?;
        eprintln!("peer: {what}: {:.0} s", started.elapsed().as_secs_f64());
        anyhow::Ok(())
    };
    set_up("python3 -m venv", Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let pip = || {
        let mut command = Command::new(&python);
        command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        command
    };
    let mut from_index = pip();
    from_index.args(["--retries", "0", "--timeout", "15", "--index-url", CPU_WHEELS, "torch"]);
    if set_up("pip install torch, processors only", &mut from_index).is_err() {
        eprintln!("peer: {CPU_WHEELS} is out of reach; PyPI's torch comes with CUDA: 6 GB on disk");
        set_up("pip install torch", pip().arg("torch"))?;
    }
    set_up("pip install transferqueue", pip().args([PACKAGE, "psutil"]))?;
    std::fs::write(&installed, PACKAGE)?;
    Ok(python)
}

fn folder() -> anyhow::Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    variable(FOLDER_VARIABLE)
        .or_else(|| Some(cache()?.join("rolldock-peer")))
        .with_context(|| format!("there is no home folder; name one for the peer in {FOLDER_VARIABLE}"))
}

/// Runs it to its end; an error has the end of what it wrote.
fn run(command: &mut Command) -> anyhow::Result<()> {
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
