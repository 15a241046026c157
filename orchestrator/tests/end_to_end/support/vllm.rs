//! Real vLLM servers: asking them, and starting and ending them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::wait_for;

/// Longest wait for an answer; a test that asks for something that takes longer asks again.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// What a server answers, head and body; `None` if it does not answer.
fn ask(url: &str, request: &str) -> Option<String> {
    tell(url, request, "")
}

/// What a server answers to a request with a JSON body.
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

/// The sum of a gauge's or counter's series on a server; zero if the server does not answer.
pub(crate) fn metric(url: &str, name: &str) -> f64 {
    let text = ask(url, "GET /metrics").unwrap_or_default();
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    text.lines().filter(of_name).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Requests that a server's engine is decoding.
pub(crate) fn running_on(url: &str) -> f64 {
    metric(url, "vllm:num_requests_running")
}

/// A call of the development mode, which has to be answered with 200.
pub(crate) fn post(url: &str, path: &str) {
    let answer = ask(url, &format!("POST {path}")).unwrap_or_default();
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer:?}");
}

/// The JSON of an answer with 200 or 202; `None` for another answer or none.
pub(crate) fn get_json(url: &str, path: &str) -> Option<Value> {
    body_of(&ask(url, &format!("GET {path}"))?)
}

/// The JSON of the answer to a body that is posted.
pub(crate) fn post_json(url: &str, path: &str, body: &Value) -> Option<Value> {
    body_of(&tell(url, &format!("POST {path}"), &body.to_string())?)
}

fn body_of(answer: &str) -> Option<Value> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let is_well = [" 200 ", " 202 "].iter().any(|status| head.lines().next().unwrap().contains(status));
    is_well.then(|| serde_json::from_str(body).unwrap())
}

/// Whether a server's engine stands still; one that does not answer does not.
pub(crate) fn is_paused(url: &str) -> bool {
    get_json(url, "/is_paused").is_some_and(|answer| answer["is_paused"] == true)
}

/// A server in a process group of its own: its engine is a process beside it.
pub(crate) struct Vllm {
    pub(crate) url: String,
    script: PathBuf,
    log: PathBuf,
    process: Child,
}

impl Vllm {
    /// Starts a server at `port` and does not wait for it.
    pub(crate) fn start(script: &Path, logs: &Path, port: u16, flags: &[&str]) -> Self {
        let log = logs.join(port.to_string());
        let process = launch(script, &log, port, flags);
        Self { url: format!("http://127.0.0.1:{port}"), script: script.to_owned(), log, process }
    }

    pub(crate) fn wait_until_healthy(&self) {
        // Some 25 s on a quiet machine.
        for _ in 0..2 {
            let healthy = || ask(&self.url, "GET /health").is_some_and(|answer| answer.contains(" 200 "));
            let found = std::panic::catch_unwind(|| wait_for("healthy server", healthy));
            if found.is_ok() {
                return;
            }
        }
        panic!("{} did not start: {}", self.url, std::fs::read_to_string(&self.log).unwrap());
    }

    /// What the out-of-memory killer does, to engine and all.
    pub(crate) fn kill(&mut self) {
        self.signal_group("KILL");
        self.process.wait().unwrap();
    }

    /// What an orchestrator of containers does: the server's own process gets SIGTERM.
    pub(crate) fn terminate(&self) {
        let sent = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// What a fault of the engine does: its process ends, and the HTTP server before it is still there.
    pub(crate) fn kill_engine(&self) {
        let group = self.process.id().to_string();
        let sent = Command::new("pkill").args(["-KILL", "-g", &group, "-f", "VLLM::EngineCore"]).status();
        assert!(sent.unwrap().success(), "no process of an engine in group {group}");
    }

    /// Starts it again at its port, after its end.
    pub(crate) fn restart(&mut self, flags: &[&str]) {
        self.kill_if_alive();
        let port = self.url.rsplit(':').next().unwrap().parse().unwrap();
        self.process = launch(&self.script, &self.log, port, flags);
    }

    fn signal_group(&self, signal: &str) {
        let group = format!("-{}", self.process.id());
        // It may have ended.
        let _ =
            Command::new("kill").args([&format!("-{signal}"), "--", &group]).stderr(Stdio::null()).status();
    }

    fn kill_if_alive(&mut self) {
        self.signal_group("KILL");
        // It may have been waited for.
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
    command.arg(port.to_string()).args(flags).process_group(0).stdin(Stdio::null());
    command.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap()
}
