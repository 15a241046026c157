//! The balancer as an HTTP server. Clients use it like a single engine.
//!
//! ```text
//!   client ---> serve ---> permit of a server ---> its connection ---> engine
//!          <--- the engine's answer, byte for byte, as it arrives <--
//! ```
//!
//! Each thread has a runtime and connections of its own. One task drives both sides of a request, so an
//! answer wakes only one task. Bodies are forwarded unchanged. The proxy reads only what routing needs from a
//! request: its group, its number of samples and its token limit.
//!
//! # Invariants
//! - A permit is held for as long as the engine works: until the last byte has been passed on, or the client
//!   has disconnected. When a client disconnects, the proxy closes the connection to the engine, and the
//!   engine then stops its work on the request.
//! - Every request has a deadline ([`ProxyConfig::request_timeout`]), and an answer that makes no progress is
//!   cut off ([`ProxyConfig::idle_timeout`]). The times to read a body, and to write to a client that does
//!   not read, are bounded, too.
//! - A request is sent again only if no server can have begun with it: it was not sent, or it was refused
//!   with 503 or 429. It is sent at most [`ProxyConfig::attempts_max`] times, if possible each time to
//!   another server. Replays are at most a tenth of all requests, plus a fixed number.
//! - If this machine lacks the resources for a connection, the client's request is refused. The failure does
//!   not count against the server.
//! - An engine's answer to a wrong request is passed on and does not count against the engine.
//! - Only the calls that clients need are passed on (`paths`): a client cannot stop an engine or change its
//!   weights.
//! - An abort is sent several times to every server that is not dead, since the proxy does not know which
//!   server has the request.
//! - The bytes of all requests that the proxy holds are bounded together, and so are its clients' connections
//!   ([`ProxyConfig::connections`]).
//!
//! # Deliberately absent
//! There is no TLS and there are no users: a gateway in front of the private network handles both.

mod abort;
mod ask;
mod body;
mod clock;
mod forward;
mod limits;
mod look;
mod metered;
mod paths;
mod refusal;
mod relay;
mod tokens;
mod upstream;

use std::convert::Infallible;
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
use hyper_util::rt::TokioIo;
use rolldock_listener::{Acceptor, ConnectionLimits, Connections, Leaving, Socket, Ticket};
use serde_json::json;
use tokio::net::TcpListener;
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
pub use rolldock_listener::RenderMetrics;

/// How requests are passed on.
#[derive(Debug, Clone)]
pub struct ProxyConfig {
    /// Longest body of a request, in bytes.
    pub body_bytes_max: usize,
    /// Maximum number of bytes of all requests that are held at a time. A request is held until a server
    /// begins to answer it.
    pub buffered_bytes_max: usize,
    /// Maximum number of times that a request is sent. It is sent again only if no server can have begun with
    /// it.
    pub attempts_max: u32,
    /// Longest time that a request waits for a permit.
    pub permit_wait: Duration,
    /// Longest time to connect to a server.
    pub connect: Duration,
    /// Longest time to receive the body of a request.
    pub body_timeout: Duration,
    /// Longest time for a server to answer a read (a `GET`). After this time another server is asked.
    pub read_timeout: Duration,
    /// Longest total time of a request, from its head to the last byte of its answer.
    pub request_timeout: Duration,
    /// Longest time in which an answer that has begun makes no progress: the engine sends no byte, or the
    /// client reads none.
    pub idle_timeout: Duration,
    /// Longest time for running requests to finish when the proxy ends.
    pub drain: Duration,
    /// The connections of clients. The proxy has no tokens, so a connection that has sent a request counts as
    /// authenticated.
    pub connections: Connections,
    /// Whether the proxy reads the token limits of requests, for policies that count expected tokens.
    pub counts_tokens: bool,
    /// Renders the answer of `/metrics`.
    pub metrics: Option<RenderMetrics>,
    /// Sends the clients' aborts. If this is `None`, the proxy refuses aborts.
    pub aborts: Option<Aborts>,
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
            connections: Connections::new("proxy", &ConnectionLimits::default()),
            counts_tokens: false,
            metrics: None,
            aborts: None,
        }
    }
}

/// The data that the threads of a proxy share.
struct Shared {
    balancer: LoadBalancer,
    config: ProxyConfig,
    replays: ReplayBudget,
    buffered: Buffered,
    /// Number of calls so far that any server can answer. The count determines which server the next such
    /// call asks first.
    looks: AtomicU64,
}

/// A proxy in front of a fleet. Each thread serves a clone of it.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<Shared>,
}

/// The part of a proxy that belongs to one thread.
struct Worker {
    shared: Arc<Shared>,
    upstreams: Upstreams,
}

impl Proxy {
    /// A proxy in front of `balancer`'s fleet.
    pub fn new(balancer: LoadBalancer, config: ProxyConfig) -> Self {
        metered::begin_counters();
        let buffered = Buffered::new(config.buffered_bytes_max);
        let (replays, looks) = (ReplayBudget::default(), AtomicU64::new(0));
        Self { shared: Arc::new(Shared { balancer, config, replays, buffered, looks }) }
    }

    /// Passes requests on until `end`. Then finishes the running ones, for at most [`ProxyConfig::drain`].
    /// Must be called inside a `LocalSet` or a `LocalRuntime` of tokio, since its tasks stay on the thread.
    ///
    /// Not cancel-safe: running requests are dropped with the future.
    pub async fn serve(self, listener: TcpListener, end: CancellationToken) {
        let config = &self.shared.config;
        let (drain, upstreams) = (config.drain, Upstreams::new(config.connect));
        let mut acceptor = Acceptor::new(listener, config.connections.clone()).patience(config.idle_timeout);
        let worker = Rc::new(Worker { shared: self.shared, upstreams });
        let mut connections = JoinSet::new();
        let mut sweeps = tokio::time::interval(SWEEP_INTERVAL);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (socket, ticket) = tokio::select! {
                biased;
                () = end.cancelled() => break,
                // Frees the tasks of connections that have ended.
                Some(_) = connections.join_next() => continue,
                _ = sweeps.tick() => {
                    worker.upstreams.sweep();
                    continue;
                }
                accepted = acceptor.accept() => accepted,
            };
            connections.spawn_local(converse(Rc::clone(&worker), socket, ticket, end.clone()));
        }
        drop(acceptor);
        let finishing = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(drain, finishing).await.is_err() {
            tracing::warn!(requests = connections.len(), "requests are cut off: they took too long");
        }
    }
}

async fn converse(worker: Rc<Worker>, socket: Socket, mut ticket: Ticket, end: CancellationToken) {
    let client = ticket.client();
    let clock = Rc::new(Clock::default());
    let mut alarm = Alarm::new(&clock);
    let service = {
        let clock = Rc::clone(&clock);
        service_fn(move |request| {
            let until = Instant::now() + worker.shared.config.body_timeout;
            let (worker, timed) = (Rc::clone(&worker), clock.start(until));
            let client = client.clone();
            async move {
                let busy = client.begin().await;
                client.authenticated().await;
                let answer = worker.answer(request, timed).await;
                Ok::<_, Infallible>(answer.map(|body| Leaving::new(body, busy)))
            }
        })
    };
    let mut connection = pin!(http1::Builder::new().serve_connection(TokioIo::new(socket), service));
    {
        // An error only means that the client has disconnected.
        let mut in_time =
            poll_fn(|context| poll_in_time(connection.as_mut(), &mut ticket, &mut alarm, &clock, context));
        tokio::select! {
            biased;
            () = &mut in_time => return,
            () = end.cancelled() => {}
        }
    }
    connection.as_mut().graceful_shutdown();
    poll_fn(|context| poll_in_time(connection.as_mut(), &mut ticket, &mut alarm, &clock, context)).await;
}

/// Drives a connection until it ends or has to be closed. Also completes if the time of its request is over
/// and the client does not read the refusal.
fn poll_in_time<Connection: Future>(
    mut connection: std::pin::Pin<&mut Connection>,
    ticket: &mut Ticket,
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
            return ticket.poll_ended(context);
        }
    }
}

impl Worker {
    async fn answer(&self, request: Request<Incoming>, timed: Timed) -> Response<Reply> {
        let path = request.uri().path();
        let answered = match route(request.method(), path) {
            Route::Permit => self.forward(request, timed).await,
            Route::AnyServer => self.ask_any_server(request, &timed).await,
            Route::Abort => self.abort(request, &timed).await,
            Route::Health => Ok(self.health()),
            Route::Metrics => self.metrics(),
            Route::Refused => Err(Refusal::control(path)),
            // An engine gives this answer for an unknown path.
            Route::Unknown => Ok(say(StatusCode::NOT_FOUND, &json!({ "detail": "Not Found" }))),
        };
        answered.unwrap_or_else(Refusal::into_response)
    }

    /// Answers 200 if at least one server is live, else 503.
    fn health(&self) -> Response<Reply> {
        let fleet = self.shared.balancer.snapshot();
        let live = fleet.servers.iter().filter(|server| server.state.is_live()).count();
        let status = if live > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        say(status, &json!({ "servers": fleet.servers.len(), "live": live, "waiting": fleet.waiting }))
    }

    fn metrics(&self) -> Result<Response<Reply>, Refusal> {
        let Some(RenderMetrics(render)) = &self.shared.config.metrics else {
            return Err(Refusal::new(StatusCode::NOT_FOUND, "not_found", "this proxy keeps no metrics"));
        };
        let mut response = Response::new(Reply::Whole(Some(render().into())));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(RenderMetrics::CONTENT_TYPE));
        Ok(response)
    }

    /// Sends an abort to every server that is not dead, since the proxy does not know which server has the
    /// requests. Servers ignore unknown ids.
    async fn abort(&self, request: Request<Incoming>, timed: &Timed) -> Result<Response<Reply>, Refusal> {
        let shared = &self.shared;
        let (head, incoming) = request.into_parts();
        let (bytes, _held) = body::whole(incoming, shared, timed).await?;
        let Some(ids) = ask::request_ids(&bytes) else {
            let message = "expected request_ids: [\"...\"]; to abort everything, call the engines directly";
            return Err(Refusal::bad_request(message));
        };
        let Some(aborts) = &shared.config.aborts else {
            return Err(Refusal::new(
                StatusCode::NOT_IMPLEMENTED,
                "not_implemented",
                "this proxy sends no aborts",
            ));
        };
        timed.until(Instant::now() + shared.config.request_timeout);
        let count = ids.len();
        let told = match timed.bound(aborts.abort(&head.headers, ids)).await {
            Ok(told) => told?,
            Err(clock::Over) => return Err(Refusal::overloaded("the aborts have not been sent in time")),
        };
        let status = match (told.answered, told.unsupported) {
            (0, 0) => StatusCode::BAD_GATEWAY,
            // On servers that offer no aborts, only a closed connection ends a request.
            (0, _) => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::OK,
        };
        let result = if told.answered > 0 { "aborted" } else { "not aborted" };
        Ok(say(status, &json!({ "status": result, "aborted": count, "servers": told.answered })))
    }
}

#[cfg(test)]
mod tests;
