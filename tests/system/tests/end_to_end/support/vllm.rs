//! Starts, stops and queries real vLLM servers.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::wait_within;

/// The longest wait for data of an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The longest time of a start, which takes about 25 s on an idle machine.
const STARTED: Duration = Duration::from_secs(480);

/// Returns head and body of a server's answer, or `None` if it does not answer.
fn ask(url: &str, request: &str) -> Option<String> {
    tell(url, request, "")
}

/// Sends a request with a JSON body. Returns head and body of the answer, or `None` if there is none.
fn tell(url: &str, request: &str, body: &str) -> Option<String> {
    let host = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).ok()?;
    stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
    let length = body.len();
    let head = format!("Host: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}");
    write!(stream, "{request} HTTP/1.0\r\n{head}\r\n\r\n{body}").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The sum of all series of a gauge or counter of a server. It is zero if the server does not answer.
pub(crate) fn metric(url: &str, name: &str) -> f64 {
    let text = ask(url, "GET /metrics").unwrap_or_default();
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    text.lines().filter(of_name).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// The number of requests that the engine of a server is running.
pub(crate) fn running_on(url: &str) -> f64 {
    metric(url, "vllm:num_requests_running")
}

/// Calls a path of the server's development mode, and checks that the answer is 200.
pub(crate) fn post(url: &str, path: &str) {
    let answer = ask(url, &format!("POST {path}")).unwrap_or_default();
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer:?}");
}

/// The JSON of an answer with status 200 or 202, or `None` for another status or no answer.
pub(crate) fn get_json(url: &str, path: &str) -> Option<Value> {
    body_of(&ask(url, &format!("GET {path}"))?)
}

/// Posts a JSON body. Returns the JSON of an answer with status 200 or 202, or `None` for another status or
/// no answer.
pub(crate) fn post_json(url: &str, path: &str, body: &Value) -> Option<Value> {
    body_of(&tell(url, &format!("POST {path}"), &body.to_string())?)
}

fn body_of(answer: &str) -> Option<Value> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let is_well = [" 200 ", " 202 "].iter().any(|status| head.lines().next().unwrap().contains(status));
    is_well.then(|| serde_json::from_str(body).unwrap())
}

/// Whether the engine of a server is paused. Returns `false` if the server does not answer.
pub(crate) fn is_paused(url: &str) -> bool {
    get_json(url, "/is_paused").is_some_and(|answer| answer["is_paused"] == true)
}

/// A server in its own process group, which also contains the process of its engine.
pub(crate) struct Vllm {
    pub(crate) url: String,
    script: PathBuf,
    log: PathBuf,
    process: Child,
}

impl Vllm {
    /// Starts a server on `port`, and does not wait until it is healthy.
    pub(crate) fn start(script: &Path, logs: &Path, port: u16, flags: &[&str]) -> Self {
        let log = logs.join(port.to_string());
        let process = launch(script, &log, port, flags);
        Self { url: format!("http://127.0.0.1:{port}"), script: script.to_owned(), log, process }
    }

    pub(crate) fn wait_until_healthy(&self) {
        let healthy = || ask(&self.url, "GET /health").is_some_and(|answer| answer.contains(" 200 "));
        let found = std::panic::catch_unwind(|| wait_within(STARTED, "healthy server", healthy));
        if found.is_ok() {
            return;
        }
        panic!("{} did not start: {}", self.url, std::fs::read_to_string(&self.log).unwrap());
    }

    /// Sends SIGKILL to the server and its engine, as the out-of-memory killer does.
    pub(crate) fn kill(&mut self) {
        self.signal_group("KILL");
        self.process.wait().unwrap();
    }

    /// Sends SIGTERM to the server's own process, as a container orchestrator does.
    pub(crate) fn terminate(&self) {
        let sent = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Kills only the process of the engine, as a fault of the engine does. The HTTP server still runs.
    pub(crate) fn kill_engine(&self) {
        let group = self.process.id().to_string();
        let sent = Command::new("pkill").args(["-KILL", "-g", &group, "-f", "VLLM::EngineCore"]).status();
        assert!(sent.unwrap().success(), "no process of an engine in group {group}");
    }

    /// Kills the server if it still runs, and starts it again on its port.
    pub(crate) fn restart(&mut self, flags: &[&str]) {
        self.kill_if_alive();
        let port = self.url.rsplit(':').next().unwrap().parse().unwrap();
        self.process = launch(&self.script, &self.log, port, flags);
    }

    /// Restarts the server and waits until it is healthy. The engine of `other` is paused until then: a start
    /// needs a core for 25 s or more, and takes twice as long beside an engine that generates.
    pub(crate) fn restart_beside(&mut self, other: &Self, flags: &[&str]) {
        post(&other.url, "/pause?mode=keep");
        self.restart(flags);
        self.wait_until_healthy();
        post(&other.url, "/resume");
    }

    fn signal_group(&self, signal: &str) {
        let group = format!("-{}", self.process.id());
        // The process may have ended already.
        let _ =
            Command::new("kill").args([&format!("-{signal}"), "--", &group]).stderr(Stdio::null()).status();
    }

    fn kill_if_alive(&mut self) {
        self.signal_group("KILL");
        // `kill` may have waited for the process already.
        let _ = self.process.wait();
    }
}

impl Drop for Vllm {
    fn drop(&mut self) {
        self.kill_if_alive();
    }
}

fn launch(script: &Path, log: &Path, port: u16, flags: &[&str]) -> Child {
    let output = File::options().create(true).append(true).open(log).unwrap();
    let mut command = Command::new(script);
    // The process of the engine executes the model itself. With a separate process for the executor, the
    // server would start 10 s later.
    command.env("VLLM_ENABLE_V1_MULTIPROCESSING", "0");
    let executor = ["--distributed-executor-backend", "uni"];
    command.arg(port.to_string()).args(executor).args(flags).process_group(0).stdin(Stdio::null());
    command.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap()
}
