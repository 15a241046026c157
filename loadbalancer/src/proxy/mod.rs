//! The balancer as a server of its own: clients talk to it as they would to one engine.
//!
//! ```text
//!   client ---> serve ---> permit of a server ---> its connection ---> engine
//!          <--- the engine's answer, byte for byte, as it comes <-----
//! ```
//!
//! Each thread has a runtime and connections of its own and drives both sides of a request in one task: an answer wakes
//! nobody but the one who passes it on. Bodies are forwarded untouched; of a request no more is read than how many samples
//! it asks for.
//!
//! # Invariants
//! - A permit is held for as long as the engine works: until the last byte has been passed on, or the client is gone. A
//!   client that goes away closes the connection to the engine, which then stops.
//! - Every request has a deadline, and every answer that has begun goes on or is cut off: [`ProxyConfig::request_timeout`],
//!   [`ProxyConfig::idle_timeout`]. So does every body that is read, and every client that does not read.
//! - A request is sent again only while no server can have begun with it: it was not sent, or refused with 503 or 429; at
//!   most [`ProxyConfig::attempts_max`] times, never twice to one server, and no more than a tenth of all requests.
//! - A connection that this machine has no room for is the client's to ask for again and says nothing about a server.
//! - What the engine says to a client that erred goes to that client and says nothing about the engine.
//! - Only what clients need is passed on (`paths`): nobody stops an engine or changes its weights through here.
//! - An abort is sent to every server, several times: nobody here knows which one has the request.
//! - The bytes of requests that are held are bounded over all of them.
//!
//! # Deliberately absent
//! TLS and users: what is in front of a private network terminates them.

mod abort;
mod ask;
mod body;
mod clock;
mod forward;
mod limits;
mod look;
mod paths;
mod refusal;
mod relay;
mod tokens;
mod upstream;

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::LoadBalancer;

use clock::{Alarm, Clock, Timed};
use limits::{Buffered, ReplayBudget};
use paths::{Route, route};
use refusal::{Refusal, say};
use relay::Reply;
use upstream::{SWEEP_INTERVAL, Upstreams};

pub use abort::{Aborter, Aborts, aborts};

/// How requests are passed on.
#[derive(Debug, Clone)]
pub struct ProxyConfig {
    /// Longest body of a request; bytes.
    pub body_bytes_max: usize,
    /// Bytes of requests that may be held at a time, until servers have them.
    pub buffered_bytes_max: usize,
    /// To how many servers a request is sent at most, as long as none can have begun with it.
    pub attempts_max: u32,
    /// How long a request waits for a server with room.
    pub permit_wait: Duration,
    /// How long a connection to a server may take.
    pub connect: Duration,
    /// How long the body of a request may take to come.
    pub body_timeout: Duration,
    /// How long a server may take to answer a read, before another one is asked.
    pub read_timeout: Duration,
    /// How long a request may take in all, from its head to the last byte of its answer.
    pub request_timeout: Duration,
    /// How long nothing may come of an answer that has begun, and how long a client may take nothing of one.
    pub idle_timeout: Duration,
    /// After an end is asked for, requests that run may take so long.
    pub drain: Duration,
    /// Whether the tokens that requests may take are read, for policies and prices that count them.
    pub counts_tokens: bool,
    /// What is answered at `/metrics`.
    pub metrics: Option<RenderMetrics>,
    /// Who sends aborts; nobody does if absent.
    pub aborts: Option<Aborts>,
}

/// The metrics as text.
#[derive(Clone)]
pub struct RenderMetrics(pub Arc<dyn Fn() -> String + Send + Sync>);

impl fmt::Debug for RenderMetrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RenderMetrics")
    }
}

impl Default for ProxyConfig {
    fn default() -> Self {
        Self {
            body_bytes_max: 64 << 20,
            buffered_bytes_max: 1 << 30,
            attempts_max: 3,
            permit_wait: Duration::from_secs(600),
            connect: Duration::from_secs(5),
            body_timeout: Duration::from_secs(120),
            read_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(3600),
            idle_timeout: Duration::from_secs(600),
            drain: Duration::from_secs(600),
            counts_tokens: false,
            metrics: None,
            aborts: None,
        }
    }
}

/// A client that sends no whole head for so long is let go.
const HEAD_MAX: Duration = Duration::from_secs(60);
/// A client that is silent for so long, while it waits for its answer, is asked by the system whether it is there.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// After an error of the listener, out of descriptors as a rule: others have to be closed first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Such errors come in their hundreds, and are told of so often.
const ACCEPT_WORDS_INTERVAL: Duration = Duration::from_secs(10);

/// What the threads of a proxy have in common.
struct Shared {
    balancer: LoadBalancer,
    config: ProxyConfig,
    replays: ReplayBudget,
    buffered: Buffered,
    /// Reads so far: each begins at another server.
    looks: AtomicU64,
}

/// See the module's documentation. Clones are of one proxy, for its threads.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<Shared>,
}

/// One thread's part of a proxy.
struct Worker {
    shared: Arc<Shared>,
    upstreams: Upstreams,
}

impl Proxy {
    /// Before a fleet.
    pub fn new(balancer: LoadBalancer, config: ProxyConfig) -> Self {
        let buffered = Buffered::new(config.buffered_bytes_max);
        let (replays, looks) = (ReplayBudget::default(), AtomicU64::new(0));
        Self { shared: Arc::new(Shared { balancer, config, replays, buffered, looks }) }
    }

    /// Passes requests on until `end`, then finishes those that run. Has to be called inside a `LocalSet` or a thread's
    /// own runtime: nothing of it leaves the thread.
    ///
    /// Not cancel-safe: requests that run are dropped with it.
    pub async fn serve(self, listener: TcpListener, end: CancellationToken) {
        let config = &self.shared.config;
        let (drain, upstreams) = (config.drain, Upstreams::new(config.connect));
        let worker = Rc::new(Worker { shared: self.shared, upstreams });
        let mut connections = JoinSet::new();
        let mut sweeps = tokio::time::interval(SWEEP_INTERVAL);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut said = None;
        loop {
            let accepted = tokio::select! {
                biased;
                () = end.cancelled() => break,
                // Only so that what has ended is let go of.
                Some(_) = connections.join_next() => continue,
                _ = sweeps.tick() => {
                    worker.upstreams.sweep();
                    continue;
                }
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    connections.spawn_local(converse(Rc::clone(&worker), stream, end.clone()));
                }
                Err(error) => {
                    if said.is_none_or(|said: Instant| said.elapsed() >= ACCEPT_WORDS_INTERVAL) {
                        tracing::warn!(%error, connections = connections.len(), "cannot take a connection");
                        said = Some(Instant::now());
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        let finishing = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(drain, finishing).await.is_err() {
            tracing::warn!(requests = connections.len(), "requests are cut off: they took too long");
        }
    }
}

/// Has the system end a connection whose client takes nothing for so long, also what is the rest of an answer and waits in
/// its buffers; and one whose client is gone without a word.
///
/// Where it does not do so, connections last longer, and no answer is less right.
fn attend(stream: &TcpStream, patience: Duration) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_tcp_user_timeout(stream, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX));
    let _ = sockopt::set_tcp_keepidle(stream, SILENCE_MAX)
        .and_then(|()| sockopt::set_socket_keepalive(stream, true));
}

async fn converse(worker: Rc<Worker>, stream: TcpStream, end: CancellationToken) {
    attend(&stream, worker.shared.config.idle_timeout);
    let clock = Rc::new(Clock::default());
    let mut alarm = Alarm::new(&clock);
    let service = {
        let clock = Rc::clone(&clock);
        service_fn(move |request| {
            let until = Instant::now() + worker.shared.config.body_timeout;
            let (worker, timed) = (Rc::clone(&worker), clock.start(until));
            async move { Ok::<_, Infallible>(worker.answer(request, timed).await) }
        })
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    {
        // A client that went away is no news.
        let mut in_time = poll_fn(|context| poll_in_time(connection.as_mut(), &mut alarm, &clock, context));
        tokio::select! {
            biased;
            () = &mut in_time => return,
            () = end.cancelled() => {}
        }
    }
    connection.as_mut().graceful_shutdown();
    poll_fn(|context| poll_in_time(connection.as_mut(), &mut alarm, &clock, context)).await;
}

/// Drives a connection until it ends, or until the time of its request is over and its client does not even take the news.
fn poll_in_time<Connection: Future>(
    mut connection: std::pin::Pin<&mut Connection>,
    alarm: &mut Alarm,
    clock: &Clock,
    context: &mut Context<'_>,
) -> Poll<()> {
    loop {
        if connection.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        if clock.is_over() {
            metrics::counter!("rolldock_proxy_timeouts_total", "phase" => "client").increment(1);
            return Poll::Ready(());
        }
        if alarm.poll(context).is_pending() {
            return Poll::Pending;
        }
    }
}

impl Worker {
    async fn answer(&self, request: Request<Incoming>, timed: Timed) -> Response<Reply> {
        let path = request.uri().path();
        let answered = match route(request.method(), path) {
            Route::Permit => self.pass_on(request, timed).await,
            Route::Anyone => self.ask_anyone(request, &timed).await,
            Route::Abort => self.abort(request, &timed).await,
            Route::Health => Ok(self.health()),
            Route::Metrics => self.metrics(),
            Route::Refused => Err(Refusal::control(path)),
            // In the words of an engine that has nothing there.
            Route::Unknown => Ok(say(StatusCode::NOT_FOUND, &json!({ "detail": "Not Found" }))),
        };
        answered.unwrap_or_else(Refusal::into_response)
    }

    /// Well as long as one server is.
    fn health(&self) -> Response<Reply> {
        let fleet = self.shared.balancer.snapshot();
        let live = fleet.servers.iter().filter(|server| server.state.is_live()).count();
        let status = if live > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        say(status, &json!({ "servers": fleet.servers.len(), "live": live, "waiting": fleet.waiting }))
    }

    fn metrics(&self) -> Result<Response<Reply>, Refusal> {
        let Some(RenderMetrics(render)) = &self.shared.config.metrics else {
            return Err(Refusal::new(StatusCode::NOT_FOUND, "not_found", "no metrics are kept here"));
        };
        let mut response = Response::new(Reply::Whole(Some(render().into())));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4"));
        Ok(response)
    }

    /// Tells every server: which one has the requests is not known here, and an id that is not theirs is nothing to them.
    async fn abort(&self, request: Request<Incoming>, timed: &Timed) -> Result<Response<Reply>, Refusal> {
        let shared = &self.shared;
        let (head, incoming) = request.into_parts();
        let (bytes, _held) = body::whole(incoming, shared, timed).await?;
        let Some(ids) = ask::request_ids(&bytes) else {
            let message =
                "expected request_ids: [\"...\"]; an abort of everything belongs to the engines' own ports";
            return Err(Refusal::bad_request(message));
        };
        let Some(aborts) = &shared.config.aborts else {
            return Err(Refusal::new(
                StatusCode::NOT_IMPLEMENTED,
                "not_implemented",
                "nobody sends aborts here",
            ));
        };
        timed.until(Instant::now() + shared.config.request_timeout);
        let count = ids.len();
        let told = match timed.bound(aborts.abort(&head.headers, ids)).await {
            Ok(told) => told?,
            Err(clock::Over) => return Err(Refusal::overloaded("the aborts have not been sent in time")),
        };
        let status = match (told.heard, told.deaf) {
            (0, 0) => StatusCode::BAD_GATEWAY,
            // Closing the connection is what ends a request there.
            (0, _) => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::OK,
        };
        let words = if told.heard > 0 { "aborted" } else { "not aborted" };
        Ok(say(status, &json!({ "status": words, "aborted": count, "servers": told.heard })))
    }
}

#[cfg(test)]
mod tests;
