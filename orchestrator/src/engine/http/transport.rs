//! Bytes to and from servers: one pool, bounded answers, and what each failure means.
//!
//! HTTP/1.1 over plain TCP, because that is what the engines speak: one running request per connection, and a
//! dropped future closes its connection, which is how the engine learns that nobody waits. Idle connections are
//! let go before the server's keep-alive ends, so that a request hardly ever meets a connection that is being
//! closed; one that was closed before a byte was written is replaced by the pool itself.
//!
//! # Deliberately absent
//! TLS and redirects: engines stand on private networks, and a redirect would lose the body.

use std::error::Error as StdError;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::server::Server;
use crate::engine::EngineError;
use crate::scope::Scope;

/// Below the 5 s after which vLLM closes an idle connection.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// Idle connections kept per server; more are closed.
const CONNECTIONS_IDLE_MAX: usize = 1024;

/// Most bytes a connection reads at once; it starts with 8 KiB and grows only under a steady stream.
const READ_BUFFER_BYTES_MAX: usize = 64 << 10;

/// Most of an error's body that is looked at; vLLM echoes the whole request in some.
const ERROR_BODY_BYTES_MAX: usize = 256 << 10;

/// Most of an error's words that are passed on.
const REASON_CHARS_MAX: usize = 300;

/// vLLM's words where logits are NaN: a 400 for which the request is not to blame.
const NAN_WORDS: &str = "Out of range float values are not JSON compliant";

/// The header by which vLLM names a request; it goes before the body's `request_id`.
const REQUEST_ID: &str = "x-request-id";

/// Sends requests. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Transport {
    client: Client<Connector, Full<Bytes>>,
    authorization: Option<HeaderValue>,
}

impl Transport {
    /// `authorization` is the whole header. Connections run as tasks of `scope` and end with it.
    pub(super) fn new(connect_max: Duration, authorization: Option<HeaderValue>, scope: &Scope) -> Self {
        let executor = ScopedExecutor { tracker: scope.tracker().clone(), token: scope.token().clone() };
        let client = Client::builder(executor)
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(CONNECTIONS_IDLE_MAX)
            .pool_timer(TokioTimer::new())
            .http1_max_buf_size(READ_BUFFER_BYTES_MAX)
            .build(Connector { connect_max });
        Self { client, authorization }
    }

    /// Sends a request and returns the answer's head, whatever its status.
    ///
    /// Cancel-safe: dropping the future, and later the response, closes the connection.
    pub(super) async fn send(
        &self,
        server: &Server,
        method: Method,
        uri: Uri,
        request_id: Option<&str>,
        body: Bytes,
    ) -> Result<Response<Incoming>, EngineError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        if let Some(value) = request_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.insert(REQUEST_ID, value);
        }
        self.client.request(request).await.map_err(|error| send_error(server, &error))
    }
}

/// Feeds the body to `take` chunk by chunk.
///
/// Cancel-safe: dropping the future closes the connection.
///
/// # Errors
/// [`EngineError::BadAnswer`] for more than `bytes_max` bytes and for what `take` says,
/// [`EngineError::Failed`] when the connection ends first.
pub(super) async fn read_body<E: ToString>(
    server: &Server,
    response: Response<Incoming>,
    bytes_max: usize,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), EngineError> {
    let mut body = response.into_body();
    let too_long = || server.bad_answer(format!("body longer than body_bytes_max={bytes_max}"));
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_long());
    }
    let mut bytes_read: usize = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            server.failed(format!(
                "connection lost after bytes={bytes_read} of the answer: {}",
                root_cause(&error)
            ))
        })?;
        let Ok(chunk) = frame.into_data() else { continue };
        bytes_read += chunk.len();
        if bytes_read > bytes_max {
            return Err(too_long());
        }
        take(&chunk).map_err(|error| server.bad_answer(error.to_string()))?;
    }
    Ok(())
}

/// The whole body, for the small answers of the probe.
///
/// Cancel-safe, like [`read_body`].
pub(super) async fn collect_body(
    server: &Server,
    response: Response<Incoming>,
    bytes_max: usize,
) -> Result<Vec<u8>, EngineError> {
    let mut bytes = Vec::new();
    read_body(server, response, bytes_max, |chunk| {
        bytes.extend_from_slice(chunk);
        Ok::<(), String>(())
    })
    .await?;
    Ok(bytes)
}

/// What an answer that is no success means.
///
/// Cancel-safe.
pub(super) async fn refusal(server: &Server, response: Response<Incoming>) -> EngineError {
    let status = response.status();
    let retry_after = retry_after(&response);
    // The status alone decides; the words are for people.
    let body = collect_body(server, response, ERROR_BODY_BYTES_MAX).await.unwrap_or_default();
    let reason = error_words(&body);
    match status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
            EngineError::Busy { server: server.name.to_string(), retry_after, reason }
        }
        StatusCode::BAD_REQUEST if reason.contains(NAN_WORDS) => {
            server.bad_answer("poisoned: the engine's log-probabilities are not finite".to_owned())
        }
        StatusCode::UNAUTHORIZED => EngineError::Refused {
            server: server.name.to_string(),
            status: status.as_u16(),
            reason: format!("{reason}; the server wants an api key that it knows"),
        },
        status if status.is_server_error() => server.failed(format!("status={}: {reason}", status.as_u16())),
        status => EngineError::Refused { server: server.name.to_string(), status: status.as_u16(), reason },
    }
}

/// `Retry-After` in seconds; its form as a date is not used by engines.
fn retry_after(response: &Response<Incoming>) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The message of an error's body, in whichever of the engine's shapes it comes.
pub(super) fn error_words(body: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message = parsed.as_ref().and_then(|value| {
        let error = value.get("error");
        let nested = error.and_then(|error| error.get("message"));
        nested.or(error).or(value.get("detail")).and_then(serde_json::Value::as_str)
    });
    let words = match message {
        Some(message) => message.to_owned(),
        None if body.is_empty() => "no words".to_owned(),
        None => String::from_utf8_lossy(body).into_owned(),
    };
    words.chars().take(REASON_CHARS_MAX).collect()
}

/// Tells "cannot have been admitted" from "may have been".
fn send_error(server: &Server, error: &legacy::Error) -> EngineError {
    let reason = root_cause(error);
    let never_written = error.is_connect() || hyper_error(error).is_some_and(hyper::Error::is_canceled);
    if never_written {
        return EngineError::Unreachable { server: server.name.to_string(), reason: server.at_url(&reason) };
    }
    server.failed(format!("connection lost before the answer: {reason}"))
}

fn hyper_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a hyper::Error> {
    let mut cause = Some(error);
    while let Some(current) = cause {
        if let Some(found) = current.downcast_ref() {
            return Some(found);
        }
        cause = current.source();
    }
    None
}

/// The innermost cause's words: the outer ones only repeat what the caller says.
fn root_cause(error: &(dyn StdError + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Opens connections, name resolution included, within a bound.
#[derive(Debug, Clone)]
struct Connector {
    connect_max: Duration,
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<TokioIo<TcpStream>>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connect_max = self.connect_max;
        Box::pin(async move {
            let host =
                uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
            let port = uri.port_u16().unwrap_or(80);
            let connecting = TcpStream::connect((host, port));
            let stream = tokio::time::timeout(connect_max, connecting).await.map_err(|_elapsed| {
                let seconds = connect_max.as_secs_f64();
                io::Error::new(io::ErrorKind::TimedOut, format!("no connection within connect={seconds} s"))
            })??;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        })
    }
}

/// Lets connections run as tasks of the scope, so that its end closes them, idle ones too, and waits for that.
#[derive(Debug, Clone)]
struct ScopedExecutor {
    tracker: TaskTracker,
    token: CancellationToken,
}

impl<F> hyper::rt::Executor<F> for ScopedExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, connection: F) {
        let until_cancelled = self.token.clone().run_until_cancelled_owned(connection);
        self.tracker.spawn(async move {
            let _cancelled = until_cancelled.await;
        });
    }
}
