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
//! - A request is sent again only while the client has seen nothing of an answer, at most [`ProxyConfig::attempts_max`]
//!   times, and on servers that have not failed it where there is one.
//! - What the engine says to a client that erred goes to that client and says nothing about the engine.
//! - An abort is sent to every server: nobody here knows which one has the request.
//!
//! # Deliberately absent
//! TLS and users: what is in front of a private network terminates them.

mod ask;
mod relay;
mod tokens;
mod upstream;

use std::convert::Infallible;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{BalancerError, LoadBalancer, Outcome, Permit, PermitRequest, ServerId};

use ask::Wanted;
use relay::{Relayed, Reply};
use upstream::{Failure, Upstreams};

/// How requests are passed on.
#[derive(Debug, Clone)]
pub struct ProxyConfig {
    /// Longest body of a request; bytes.
    pub body_bytes_max: usize,
    /// How often a request is sent, while its client has seen nothing of an answer.
    pub attempts_max: u32,
    /// How long a request waits for a server with room.
    pub permit_wait: Duration,
    /// How long a connection to a server may take.
    pub connect: Duration,
    /// After an end is asked for, requests that run may take so long.
    pub drain: Duration,
    /// Whether the tokens that requests may take are read, for policies and prices that count them.
    pub counts_tokens: bool,
    /// What is answered at `/metrics`.
    pub metrics: Option<RenderMetrics>,
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
            attempts_max: 3,
            permit_wait: Duration::from_secs(600),
            connect: Duration::from_secs(5),
            drain: Duration::from_secs(600),
            counts_tokens: false,
            metrics: None,
        }
    }
}

/// A client that sends no whole head for so long is let go.
const HEAD_MAX: Duration = Duration::from_secs(60);
/// After an error of the listener, out of descriptors as a rule: others have to be closed first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

struct Proxy {
    balancer: LoadBalancer,
    config: ProxyConfig,
    upstreams: Upstreams,
}

/// Passes requests on until `end`, then finishes those that run. Has to be called inside a `LocalSet` or a thread's own
/// runtime: nothing of it leaves the thread.
///
/// Not cancel-safe: requests that run are dropped with it.
pub async fn serve(
    balancer: LoadBalancer,
    config: ProxyConfig,
    listener: TcpListener,
    end: CancellationToken,
) {
    let drain = config.drain;
    let proxy = Rc::new(Proxy { balancer, upstreams: Upstreams::new(config.connect), config });
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = end.cancelled() => break,
            // Only so that what has ended is let go of.
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn_local(converse(Rc::clone(&proxy), stream, end.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot take a connection");
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

async fn converse(proxy: Rc<Proxy>, stream: TcpStream, end: CancellationToken) {
    // Without it answers are late, and no less right.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let proxy = Rc::clone(&proxy);
        async move { Ok::<_, Infallible>(proxy.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        biased;
        // A client that went away is no news.
        _ = connection.as_mut() => return,
        () = end.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

impl Proxy {
    async fn answer(&self, request: Request<Incoming>) -> Response<Reply> {
        let (method, path) = (request.method().clone(), request.uri().path());
        match (&method, path) {
            (&Method::GET, "/health" | "/ping") => self.health(),
            (&Method::GET, "/metrics") => self.metrics(),
            (&Method::GET | &Method::HEAD, _) => self.ask_anyone(request).await,
            (&Method::POST, path) if path.ends_with("/abort_requests") => self.abort(request).await,
            _ => self.pass_on(request).await.unwrap_or_else(Refusal::into_response),
        }
    }

    /// Well as long as one server is.
    fn health(&self) -> Response<Reply> {
        let fleet = self.balancer.snapshot();
        let live = fleet.servers.iter().filter(|server| server.state.is_live()).count();
        let status = if live > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        say(status, json!({ "servers": fleet.servers.len(), "live": live, "waiting": fleet.waiting }))
    }

    fn metrics(&self) -> Response<Reply> {
        let Some(RenderMetrics(render)) = &self.config.metrics else {
            let message = "no metrics are kept here";
            return Refusal::new(StatusCode::NOT_FOUND, "not_found", message).into_response();
        };
        let mut response = Response::new(Reply::Whole(Some(render().into())));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4"));
        response
    }

    /// What any server answers alike, such as what models there are: it takes no place.
    async fn ask_anyone(&self, request: Request<Incoming>) -> Response<Reply> {
        let (head, _) = request.into_parts();
        let mut reason = "there is no server".to_owned();
        let fleet = self.balancer.snapshot();
        for server in fleet.servers.iter().filter(|server| server.state.is_live()) {
            let Some(url) = &server.url else { continue };
            match self.upstreams.send_to(url, &head, &Bytes::new()).await {
                Ok(answer) => {
                    let upstream::Answer { mut head, body, wire } = answer;
                    upstream::strip_hop_by_hop(&mut head.headers);
                    match wire.whole(Limited::new(body, self.config.body_bytes_max)).await {
                        Ok(bytes) => return Response::from_parts(head, Reply::Whole(Some(bytes))),
                        Err(failure) => reason = failure.to_string(),
                    }
                }
                Err(failure) => reason = failure.to_string(),
            }
        }
        Refusal::new(StatusCode::BAD_GATEWAY, "bad_gateway", reason).into_response()
    }

    async fn body(&self, body: Incoming) -> Result<Bytes, Refusal> {
        let bytes_max = self.config.body_bytes_max;
        if body.size_hint().lower() > bytes_max as u64 {
            return Err(Refusal::too_long(bytes_max));
        }
        match Limited::new(body, bytes_max).collect().await {
            Ok(whole) => Ok(whole.to_bytes()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(Refusal::too_long(bytes_max)),
            Err(error) => Err(Refusal::new(StatusCode::BAD_REQUEST, "bad_request", error.to_string())),
        }
    }

    /// Tells every server: which one has the requests is not known here, and an id that is not theirs is nothing to them.
    async fn abort(&self, request: Request<Incoming>) -> Response<Reply> {
        let (head, body) = request.into_parts();
        let body = match self.body(body).await {
            Ok(body) => body,
            Err(refusal) => return refusal.into_response(),
        };
        let ids = ask::request_ids(&body);
        let servers: Vec<_> = self.balancer.snapshot().servers;
        let told = servers.iter().map(|server| self.upstreams.tell(server, &head, &body));
        let told = futures::future::join_all(told).await;
        let heard = told.iter().filter(|told| **told).count();
        for (server, heard) in servers.iter().zip(&told) {
            crate::aborts_sent(&server.name, ids as u64);
            if *heard {
                crate::aborts_confirmed(&server.name, ids as u64);
            }
        }
        let status = if heard > 0 { StatusCode::OK } else { StatusCode::BAD_GATEWAY };
        say(status, json!({ "status": "aborted", "aborted": ids, "servers": heard }))
    }

    async fn pass_on(&self, request: Request<Incoming>) -> Result<Response<Reply>, Refusal> {
        let (head, body) = request.into_parts();
        let body = self.body(body).await?;
        let wanted = Wanted::of(&head, &body, self.config.counts_tokens);
        let mut failed_on: Vec<ServerId> = Vec::new();
        let mut attempt = 0;
        loop {
            attempt += 1;
            let permit = self.permit(&wanted, &failed_on).await?;
            let server = permit.server();
            let sent = self.upstreams.send(&permit, &head, &body);
            let sent = tokio::select! {
                biased;
                sent = sent => sent,
                () = permit.revoked() => Err(Failure::lost("the server was lost")),
            };
            let is_last = attempt >= self.config.attempts_max;
            let failure = match sent {
                Ok(answer) => {
                    let outcome = outcome_of(&answer.head);
                    if is_last || !matches!(outcome, Outcome::Backpressure { .. }) {
                        return Ok(self.relayed(answer, permit, outcome));
                    }
                    permit.finish(outcome);
                    None
                }
                Err(failure) => {
                    permit.finish(Outcome::Fault);
                    Some(failure)
                }
            };
            if let Some(failure) = failure {
                tracing::debug!(attempt, %failure, "a request was not answered");
                if is_last {
                    let message = format!("attempts={attempt}, the last of them: {failure}");
                    return Err(Refusal::new(StatusCode::BAD_GATEWAY, "bad_gateway", message));
                }
            }
            metrics::counter!("rolldock_proxy_replays_total").increment(1);
            failed_on.push(server);
        }
    }

    fn relayed(&self, answer: upstream::Answer, permit: Permit, outcome: Outcome) -> Response<Reply> {
        let upstream::Answer { mut head, body, wire } = answer;
        upstream::strip_hop_by_hop(&mut head.headers);
        let relayed = Relayed::new(body, wire, permit, outcome, self.upstreams.clone());
        Response::from_parts(head, Reply::Relayed(Box::new(relayed)))
    }

    async fn permit(&self, wanted: &Wanted, exclude: &[ServerId]) -> Result<Permit, Refusal> {
        let request = PermitRequest {
            expected_tokens: wanted.expected_tokens,
            group: wanted.group,
            exclude: exclude.to_vec(),
            deadline: Some(Instant::now() + self.config.permit_wait),
            // More than a server has places for has one to itself; whether it is too many is the engine's to say.
            ..PermitRequest::new(wanted.samples.min(self.balancer.largest_capacity()).max(1))
        };
        self.balancer.acquire(request).await.map_err(|error| {
            let (status, kind) = match error {
                BalancerError::TooHeavy { .. } | BalancerError::Weightless => {
                    (StatusCode::BAD_REQUEST, "bad_request")
                }
                _ => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
            };
            Refusal::new(status, kind, error.to_string())
        })
    }
}

/// What an answer's head says about the server.
fn outcome_of(head: &hyper::http::response::Parts) -> Outcome {
    match head.status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
            let seconds = head.headers.get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
            Outcome::Backpressure { retry_after: seconds.map(Duration::from_secs) }
        }
        status if status.is_client_error() => Outcome::ClientError,
        status if status.is_server_error() => Outcome::Fault,
        _ => Outcome::Success { tokens: 0 },
    }
}

/// Why a request is not passed on, as OpenAI's servers say it.
struct Refusal {
    status: StatusCode,
    kind: &'static str,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into() }
    }

    fn too_long(bytes_max: usize) -> Self {
        let message = format!("the body has more than bytes={bytes_max}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    fn into_response(self) -> Response<Reply> {
        let Self { status, kind, message } = self;
        let error = json!({ "message": message, "type": kind, "param": null, "code": status.as_u16() });
        say(status, json!({ "error": error }))
    }
}

fn say(status: StatusCode, body: serde_json::Value) -> Response<Reply> {
    let mut response = Response::new(Reply::Whole(Some(Bytes::from(body.to_string()))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests;
