//! Sends the aborts that clients ask for. An abort goes to every server that is not dead, since the
//! proxy does not know which server runs the request.
//!
//! One task of a proxy sends all aborts over the control connections, where they never wait behind requests
//! that generate. An abort within 10 ms of its request is usually lost, although the engine answers
//! "aborted". Every abort is therefore sent several times, which does no harm: engines ignore unknown ids.
//! The client gets the result of the first sending.
//!
//! # Invariants
//! At most [`ASKED_MAX`] clients wait for a batch, and at most [`BATCHES_MAX`] batches of ids are being sent,
//! each to [`SERVERS_AT_A_TIME`] servers at a time. Further clients are refused; a metric counts their ids.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderMap};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::refusal::Refusal;
use crate::control::{ABORT_PAUSES, fan_out};
use crate::server::ServerState;
use crate::{ControlError, EngineControl, LoadBalancer, ServerRef};

/// Maximum number of clients whose aborts are not in a batch yet.
const ASKED_MAX: usize = 4096;
/// Maximum number of batches that are being sent or will be sent again.
const BATCHES_MAX: usize = 32;
/// Maximum number of clients whose aborts are sent in one batch.
const CLIENTS_PER_BATCH_MAX: usize = 1024;
const SERVERS_AT_A_TIME: usize = 32;
/// Time limit of one call. A silent server delays the next round of aborts to the others by at most this
/// time.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The result of sending an abort for the first time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FirstResult {
    /// Number of servers that confirmed the abort.
    pub(super) answered: usize,
    /// Number of servers that offer no aborts.
    pub(super) unsupported: usize,
}

#[derive(Debug)]
struct Asked {
    ids: Vec<String>,
    told: oneshot::Sender<FirstResult>,
}

/// Takes the aborts of clients. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Aborts {
    asked: mpsc::Sender<Asked>,
    authorization: Option<Arc<str>>,
}

/// Sends the aborts that [`Aborts`] take, while [`run`](Self::run) runs.
pub struct Aborter {
    balancer: LoadBalancer,
    control: Arc<dyn EngineControl>,
    asked: mpsc::Receiver<Asked>,
}

/// Returns the handle that takes aborts and the object that sends them. `api_key` is the key that `control`
/// sends to the servers. If it is set, clients have to send it, too.
pub fn aborts(
    balancer: LoadBalancer,
    control: Arc<dyn EngineControl>,
    api_key: Option<&str>,
) -> (Aborts, Aborter) {
    let (sender, asked) = mpsc::channel(ASKED_MAX);
    let authorization = api_key.map(|key| format!("Bearer {key}").into());
    (Aborts { asked: sender, authorization }, Aborter { balancer, control, asked })
}

impl Aborts {
    /// Passes `ids` to the [`Aborter`], and waits until they have been sent for the first time.
    pub(super) async fn abort(&self, headers: &HeaderMap, ids: Vec<String>) -> Result<FirstResult, Refusal> {
        let sent = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        if self.authorization.as_ref().is_some_and(|key| sent != Some(key.as_bytes())) {
            let message = "expected the api key that this proxy was started with";
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message));
        }
        let (told, hears) = oneshot::channel();
        let count = ids.len() as u64;
        if self.asked.try_send(Asked { ids, told }).is_err() {
            metrics::counter!("rolldock_aborts_dropped_total").increment(count);
            return Err(Refusal::overloaded("too many aborts are being sent"));
        }
        hears.await.map_err(|_| Refusal::overloaded("the proxy is ending"))
    }
}

impl Aborter {
    /// Sends aborts until `end`. Cancel-safe: aborts that have not been sent yet are lost.
    pub async fn run(mut self, end: CancellationToken) {
        let mut sending = FuturesUnordered::new();
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                biased;
                () = end.cancelled() => return,
                Some(()) = sending.next() => {}
                taken = self.asked.recv_many(&mut batch, CLIENTS_PER_BATCH_MAX), if sending.len() < BATCHES_MAX => {
                    if taken == 0 {
                        // All senders have been dropped.
                        while sending.next().await.is_some() {}
                        return;
                    }
                    let servers = self.servers();
                    sending.push(send(Arc::clone(&self.control), servers, batch));
                }
            }
        }
    }

    fn servers(&self) -> Vec<ServerRef> {
        let servers = self.balancer.snapshot().servers.into_iter();
        let alive = servers.filter(|server| server.state != ServerState::Dead && server.url.is_some());
        alive.map(|server| ServerRef { name: server.name, url: server.url }).collect()
    }
}

/// Sends a batch to `servers` after each of [`ABORT_PAUSES`]. Cancel-safe.
async fn send(control: Arc<dyn EngineControl>, mut servers: Vec<ServerRef>, batch: Vec<Asked>) {
    let mut ids = Vec::new();
    let mut clients = Vec::new();
    for Asked { ids: of_one, told } in batch {
        ids.extend(of_one);
        clients.push(told);
    }
    let count = ids.len() as u64;
    for (round, pause) in ABORT_PAUSES.into_iter().enumerate() {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let calls = fan_out(&servers, SERVERS_AT_A_TIME, |server| tell(control.as_ref(), server, &ids)).await;
        let is_last = round + 1 == ABORT_PAUSES.len();
        let mut told = FirstResult::default();
        let mut unsupported = Vec::new();
        for (server, outcome) in calls {
            match outcome {
                Ok(()) => told.answered += 1,
                Err(ControlError::Unsupported { .. }) => unsupported.push(Arc::clone(&server.name)),
                Err(ref error) => tracing::debug!(%error, "an abort has failed"),
            }
            if round == 0 {
                crate::aborts_sent(&server.name, count);
            }
            if is_last && outcome.is_ok() {
                crate::aborts_confirmed(&server.name, count);
            }
        }
        told.unsupported = unsupported.len();
        servers.retain(|server| !unsupported.contains(&server.name));
        for client in clients.drain(..) {
            // The client may have disconnected.
            let _ = client.send(told);
        }
    }
}

async fn tell(control: &dyn EngineControl, server: &ServerRef, ids: &[String]) -> Result<(), ControlError> {
    match tokio::time::timeout(ANSWER_MAX, control.abort_many(server, ids)).await {
        Ok(answered) => answered,
        Err(_) => Err(ControlError::Failed {
            server: Arc::clone(&server.name),
            what: "abort",
            reason: format!("no answer within {} s", ANSWER_MAX.as_secs()),
        }),
    }
}
