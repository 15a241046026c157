//! A server for tests, on a real socket. The test decides its answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::RewardJob;

pub(super) enum Reply {
    /// An answer: the status, further header lines and the body.
    Say(u16, &'static str, Vec<u8>),
    /// The server never answers, and counts when the client disconnects.
    Hang,
    /// The connection is closed without an answer.
    Close,
}

impl Reply {
    pub(super) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self::Say(200, "", body.into())
    }
}

#[derive(Default)]
pub(super) struct Seen {
    pub(super) requests: AtomicUsize,
    /// The number of clients that disconnected from a request without an answer.
    pub(super) left: AtomicUsize,
}

pub(super) struct Server {
    pub(super) url: String,
    pub(super) seen: Arc<Seen>,
    _stop: DropGuard,
}

type Handler = Arc<dyn Fn(usize, Value) -> Reply + Send + Sync>;

impl Server {
    /// `handler` is given the number of the request, from 0, and its body.
    pub(super) async fn start(handler: impl Fn(usize, Value) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/score", listener.local_addr().unwrap());
        let (seen, stop) = (Arc::new(Seen::default()), CancellationToken::new());
        let handler: Handler = Arc::new(handler);
        let tracker = TaskTracker::new();
        let accepting = {
            let (seen, stop, tracker) = (Arc::clone(&seen), stop.clone(), tracker.clone());
            async move {
                loop {
                    let Ok((stream, _)) = listener.accept().await else { return };
                    let serving = serve(stream, Arc::clone(&handler), Arc::clone(&seen));
                    let stop = stop.clone();
                    tracker.spawn(async move { stop.run_until_cancelled(serving).await });
                }
            }
        };
        let stopped = stop.clone();
        tracker.spawn(async move { stopped.run_until_cancelled(accepting).await });
        Self { url, seen, _stop: stop.drop_guard() }
    }

    pub(super) fn requests(&self) -> usize {
        self.seen.requests.load(Ordering::SeqCst)
    }

    /// Waits until `count` clients have disconnected.
    pub(super) async fn left(&self, count: usize) {
        eventually("clients leave", || self.seen.left.load(Ordering::SeqCst) == count).await;
    }
}

async fn serve(mut stream: TcpStream, handler: Handler, seen: Arc<Seen>) {
    let mut bytes = Vec::new();
    loop {
        let Some(body) = read_request(&mut stream, &mut bytes).await else { return };
        let number = seen.requests.fetch_add(1, Ordering::SeqCst);
        match handler(number, serde_json::from_slice(&body).unwrap()) {
            Reply::Say(status, headers, answer) => {
                let head =
                    format!("HTTP/1.1 {status} Told\r\n{headers}content-length: {}\r\n\r\n", answer.len());
                stream.write_all(&[head.into_bytes(), answer].concat()).await.unwrap_or_default();
            }
            Reply::Hang => {
                let mut rest = [0; 64];
                while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
                seen.left.fetch_add(1, Ordering::SeqCst);
                return;
            }
            Reply::Close => return,
        }
    }
}

async fn read_request(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(at) = memchr::memmem::find(bytes, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..at]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let end = at + 4 + length.parse::<usize>().unwrap();
            if bytes.len() >= end {
                let rest = bytes.split_off(end);
                let request = std::mem::replace(bytes, rest);
                return Some(request[at + 4..].to_vec());
            }
        }
        let mut chunk = [0; 4096];
        let count = stream.read(&mut chunk).await.ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&chunk[..count]);
    }
}

pub(super) fn job(response: &str) -> RewardJob {
    RewardJob {
        response: response.into(),
        ground_truth: "42".into(),
        data_source: "test".into(),
        prompt: "What?".into(),
        extra: Arc::new(serde_json::json!({ "index": 7 })),
    }
}

/// Waits until `holds` is true, for at most 20 seconds.
pub(super) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(20), "never: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}
