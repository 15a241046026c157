//! Aborts by id, for requests whose connection was closed already.
//!
//! Closing the connection is what ends a request: an engine that sees it frees the slots within some 50 ms. A
//! proxy between can keep its own connection open, and then only an abort by id helps. An abort that comes within
//! 10 ms of its request is usually lost and answered "aborted" all the same, so each is sent [`SENDS_PER_ID`]
//! times, [`SEND_INTERVAL`] apart. An early stop cancels hundreds of requests of a server at once: their ids go
//! out together, in one request per interval.
//!
//! # Invariants
//! - At most one task per server, and [`IDS_WAITING_MAX`] ids; an id beyond that is dropped and counted, as its
//!   connection is closed in any case.
//! - The task ends with its ids, with the scope, or with the first answer that says the endpoint is not there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::probe::Dialect;
use super::server::ProbedServer;
use super::transport::Transport;
use crate::scope::Scope;

/// How often each id is sent.
const SENDS_PER_ID: u8 = 3;

/// Between two sends: well past the 10 ms in which aborts get lost.
const SEND_INTERVAL: Duration = Duration::from_millis(100);

/// Longest wait for the answer to an abort.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Most ids of one server that wait for their sends.
const IDS_WAITING_MAX: usize = 65_536;

/// Most ids in one request.
const IDS_PER_SEND_MAX: usize = 4_096;

/// The endpoints that abort by id: the first comes with the generate endpoint, the second with development mode.
const PATHS: [&str; 2] = ["/inference/v1/abort_requests", "/abort_requests"];

/// Sends the aborts of one server.
#[derive(Debug)]
pub(super) struct Aborter {
    target: Arc<ProbedServer>,
    transport: Transport,
    waiting: Mutex<Waiting>,
    /// Set once the server has turned out to have neither endpoint.
    unsupported: AtomicBool,
    /// Whether the task runs; receivers wait for its end.
    running: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Ids with the number of sends that are left to them.
    ids: Vec<(Arc<str>, u8)>,
    task_runs: bool,
}

impl Aborter {
    pub(super) fn new(target: Arc<ProbedServer>, transport: Transport) -> Self {
        Self {
            target,
            transport,
            waiting: Mutex::default(),
            unsupported: AtomicBool::new(false),
            running: watch::Sender::new(false),
        }
    }

    /// Has `request_id` aborted in the background, in a task of `scope`.
    pub(super) fn abort(self: &Arc<Self>, request_id: &Arc<str>, scope: &Scope) {
        // A plain server knows no aborts.
        let hopeless =
            self.target.facts.dialect == Dialect::TextOnly || self.unsupported.load(Ordering::Relaxed);
        if hopeless || scope.token().is_cancelled() {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.ids.len() >= IDS_WAITING_MAX {
            metrics::counter!("rolldock_aborts_dropped_total").increment(1);
            return;
        }
        rolldock_loadbalancer::aborts_sent(&self.target.server.name, 1);
        waiting.ids.push((Arc::clone(request_id), SENDS_PER_ID));
        if waiting.task_runs {
            return;
        }
        waiting.task_runs = true;
        self.running.send_replace(true);
        let aborter = Arc::clone(self);
        let token = scope.token().clone();
        scope.tracker().spawn(async move {
            if token.run_until_cancelled(aborter.run()).await.is_none() {
                aborter.stop();
            }
        });
    }

    /// Ends when no abort is under way.
    ///
    /// Cancel-safe.
    pub(super) async fn settle(&self) {
        let mut running = self.running.subscribe();
        // The sender lives as long as `self`.
        let _closed = running.wait_for(|running| !running).await;
    }

    /// Sends until no ids are left. Cancel-safe when followed by [`Aborter::stop`].
    async fn run(&self) {
        while let Some(batch) = self.next_batch() {
            for ids in batch.chunks(IDS_PER_SEND_MAX) {
                let is_answered = self.send(ids.iter().map(|(id, _)| id)).await;
                let last = ids.iter().filter(|(_, sends_left)| *sends_left == 0).count();
                if is_answered {
                    rolldock_loadbalancer::aborts_confirmed(&self.target.server.name, last as u64);
                }
            }
            if self.unsupported.load(Ordering::Relaxed) {
                return self.stop();
            }
            tokio::time::sleep(SEND_INTERVAL).await;
        }
    }

    /// All ids with sends left, and how many each has after this one. `None`, under the same lock, ends the task: an id
    /// that comes later starts another.
    fn next_batch(&self) -> Option<Vec<(Arc<str>, u8)>> {
        let mut waiting = self.waiting.lock();
        waiting.ids.retain(|(_, sends_left)| *sends_left > 0);
        for (_, sends_left) in &mut waiting.ids {
            *sends_left -= 1;
        }
        if waiting.ids.is_empty() {
            waiting.task_runs = false;
            self.running.send_replace(false);
            return None;
        }
        Some(waiting.ids.clone())
    }

    /// Gives up all ids: their connections are closed in any case.
    fn stop(&self) {
        let mut waiting = self.waiting.lock();
        waiting.ids.clear();
        waiting.task_runs = false;
        self.running.send_replace(false);
    }

    /// One request with all `ids`, to the first endpoint that is there; whether the engine took it. What goes wrong
    /// otherwise is for the next send, or of no consequence.
    async fn send(&self, ids: impl Iterator<Item = &Arc<str>>) -> bool {
        let body = Bytes::from(abort_body(self.target.facts.dialect, ids));
        for path in PATHS {
            let Ok(uri) = self.target.server.uri(path) else { return false };
            let sending = self.transport.send(&self.target.server, Method::POST, uri, None, body.clone());
            match tokio::time::timeout(ANSWER_MAX, sending).await {
                Ok(Ok(response)) if is_absent(response.status()) => {}
                Ok(Ok(response)) => return response.status().is_success(),
                Ok(Err(error)) => {
                    tracing::debug!(server = %self.target.server.name, %error, "abort was not answered");
                    return false;
                }
                Err(_elapsed) => return false,
            }
        }
        self.unsupported.store(true, Ordering::Relaxed);
        tracing::info!(
            server = %self.target.server.name,
            "server does not offer aborts by id; requests are cancelled by closing their connections"
        );
        false
    }
}

fn is_absent(status: StatusCode) -> bool {
    matches!(status, StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
}

/// Engines keep a request under its id with a prefix and, for completions, the prompt's index behind it. Ending a
/// request with `n > 1` ends all its samples.
fn abort_body<'a>(dialect: Dialect, ids: impl Iterator<Item = &'a Arc<str>>) -> Vec<u8> {
    let engine_ids: Vec<String> = ids
        .map(|id| match dialect {
            Dialect::Generate => format!("generate-tokens-{id}"),
            Dialect::Completions | Dialect::TextOnly => format!("cmpl-{id}-0"),
        })
        .collect();
    serde_json::json!({ "request_ids": engine_ids }).to_string().into_bytes()
}
