//! Aborts that clients ask for, to every server: nobody here knows which one has a request.
//!
//! One task for all of a proxy sends them over the control connections, where they never wait behind data. An abort that
//! comes within 10 ms of its request is usually lost, and answered "aborted" all the same; an id that is nobody's does
//! nothing. So every abort is sent again a few times, after the client has been told of the first.
//!
//! # Invariants
//! At most [`ASKED_MAX`] clients wait for an answer, [`BATCHES_MAX`] batches of ids are being sent, each to
//! [`SERVERS_AT_A_TIME`] servers; who comes when there is no room is refused, and counted.

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
/// Batches that are being sent, again and again.
const BATCHES_MAX: usize = 32;
/// What has come meanwhile goes out together.
const CLIENTS_PER_BATCH_MAX: usize = 1024;
const SERVERS_AT_A_TIME: usize = 32;
/// One call takes no longer: a server that says nothing keeps no other from being told again.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// What became of the first time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    /// Servers that answered.
    pub(super) heard: usize,
    /// Servers that know no aborts.
    pub(super) deaf: usize,
}

#[derive(Debug)]
struct Asked {
    ids: Vec<String>,
    told: oneshot::Sender<Told>,
}

/// Takes clients' aborts. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Aborts {
    asked: mpsc::Sender<Asked>,
    authorization: Option<Arc<str>>,
}

/// Sends what [`Aborts`] take, while [`run`](Self::run) does.
pub struct Aborter {
    balancer: LoadBalancer,
    control: Arc<dyn EngineControl>,
    asked: mpsc::Receiver<Asked>,
}

/// The two ends of aborts. With `api_key`, which `control` sends along, clients have to send it, too.
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
    /// Has `ids` aborted; waits for the first time that they are sent.
    pub(super) async fn abort(&self, headers: &HeaderMap, ids: Vec<String>) -> Result<Told, Refusal> {
        let sent = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        if self.authorization.as_ref().is_some_and(|key| sent != Some(key.as_bytes())) {
            let message = "aborts need the api key that this proxy was started with";
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
    /// Sends aborts until `end`. Cancel-safe: what has not been sent is not sent.
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
                        // Nobody can ask any more.
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

/// Tells `servers`, at every one of [`ABORT_PAUSES`]. Cancel-safe.
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
        let mut told = Told::default();
        let mut deaf = Vec::new();
        for (server, outcome) in calls {
            match outcome {
                Ok(()) => told.heard += 1,
                Err(ControlError::Unsupported { .. }) => deaf.push(Arc::clone(&server.name)),
                Err(ref error) => tracing::debug!(%error, "an abort is not answered"),
            }
            if round == 0 {
                crate::aborts_sent(&server.name, count);
            }
            if is_last && outcome.is_ok() {
                crate::aborts_confirmed(&server.name, count);
            }
        }
        told.deaf = deaf.len();
        servers.retain(|server| !deaf.contains(&server.name));
        for client in clients.drain(..) {
            // It may have gone away.
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
