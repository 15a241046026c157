//! Aborts that clients ask for. They go to every server, since the proxy does not know which one has a
//! request.
//!
//! One task of a proxy sends all aborts over the control connections, where they never wait behind data. An
//! abort within 10 ms of its request is usually lost, and answered "aborted" all the same, while an unknown
//! id does no harm. So every abort is sent again a few times, after the client has got the result of the
//! first time.
//!
//! # Invariants
//! At most [`ASKED_MAX`] clients wait for an answer, and at most [`BATCHES_MAX`] batches of ids are being
//! sent, each to [`SERVERS_AT_A_TIME`] servers at a time. A further client is refused, and counted.

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

/// Clients whose aborts have not been sent for the first time.
const ASKED_MAX: usize = 4096;
/// Batches that are being sent or are about to be sent again.
const BATCHES_MAX: usize = 32;
/// Clients whose aborts go out in one batch.
const CLIENTS_PER_BATCH_MAX: usize = 1024;
const SERVERS_AT_A_TIME: usize = 32;
/// Longest time of one call, so that a silent server does not delay the next sending to the others.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The result of sending an abort for the first time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FirstResult {
    /// Servers that confirmed it.
    pub(super) answered: usize,
    /// Servers that offer no aborts.
    pub(super) unsupported: usize,
}

#[derive(Debug)]
struct Asked {
    ids: Vec<String>,
    told: oneshot::Sender<FirstResult>,
}

/// Takes clients' aborts. Cheap to clone.
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

/// The two ends of aborts. With an `api_key`, which `control` has to send, clients have to send it, too.
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
    /// Has `ids` aborted; waits until they have been sent for the first time.
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
    /// Sends aborts until `end`. Cancel-safe: aborts that have not been sent are lost.
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
                        // All senders are gone.
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
            // The client may have gone away.
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
