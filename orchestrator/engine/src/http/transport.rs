//! The transport of bytes to and from servers: the connection pool, the bounds on answers, and the classes of
//! failures.
//!
//! The engines use HTTP/1.1 over plain TCP. A connection carries one request at a time. Dropping the
//! request's future closes the connection, which tells the engine that no caller waits. Idle connections are
//! closed before the server's keep-alive ends, so a request is rarely sent on a connection that the server is
//! closing. A connection that closes before the request is written is replaced.
//!
//! # Deliberately absent
//! There is no TLS, because engines run on private networks. Redirects are not followed, because a redirect
//! would lose the body.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderValue;
use http::{Method, StatusCode, Uri};
use parking_lot::Mutex;
use rolldock_loadbalancer::control::excerpt;
use rolldock_loadbalancer::is_exhaustion;
use rolldock_scope::Scope;
use tokio::time::Instant;

use super::connection::{Body, Connection};
use super::server::Server;
use crate::EngineError;

/// Idle connections are closed after this time, before vLLM closes them after 5 s.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// Maximum number of idle connections that are kept per server. Further idle connections are closed.
const CONNECTIONS_IDLE_MAX: usize = 1024;

/// Maximum number of bytes of an error's body that are read; vLLM echoes the whole request in some errors.
const ERROR_BODY_BYTES_MAX: usize = 256 << 10;

/// Maximum number of characters of an error's message that are passed on.
pub(super) const REASON_CHARS_MAX: usize = 300;

/// vLLM's message if logits are NaN. Its status is 400, although the request is correct.
pub(super) const NAN_WORDS: &str = "Out of range float values are not JSON compliant";

/// The header by which vLLM names a request; it takes precedence over the body's `request_id`.
const REQUEST_ID: &str = "x-request-id";

/// Sends requests. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Transport {
    pool: Arc<Pool>,
    connect_max: Duration,
    authorization: Option<HeaderValue>,
}

impl Transport {
    /// `authorization` is the whole header value. Idle connections are closed when `scope` ends. Connections
    /// in use are closed when their futures are dropped.
    pub(super) fn new(connect_max: Duration, authorization: Option<HeaderValue>, scope: &Scope) -> Self {
        let pool = Pool { scope: scope.clone(), idle: Mutex::default() };
        Self { pool: Arc::new(pool), connect_max, authorization }
    }

    /// Sends a request and returns the head of the answer, with any status.
    ///
    /// Cancel-safe: dropping the future, and later the reply, closes the connection.
    pub(super) async fn send(
        &self,
        server: &Server,
        method: Method,
        uri: Uri,
        request_id: Option<&str>,
        body: Bytes,
    ) -> Result<Reply, EngineError> {
        let authority: Arc<str> = uri.authority().map_or("", |authority| authority.as_str()).into();
        let head = self.head(&authority, &method, &uri, request_id, body.len());
        let connection = loop {
            let (mut connection, is_new) = match self.pool.take(&authority) {
                Some(connection) => (connection, false),
                None => (self.open(server, &uri).await?, true),
            };
            match connection.write(head.clone(), body.clone()).await {
                Ok(()) => break connection,
                Err(error) if is_new => return Err(lost(server, &error)),
                // The connection broke before the whole request was written, so the request was not admitted.
                Err(_) => {}
            }
        };
        let body = connection.read_head().await.map_err(|error| lost(server, &error))?;
        Ok(Reply { body, pool: Arc::clone(&self.pool), authority })
    }

    /// Opens a connection. A server closes a connection on which it receives nothing for a few seconds, and a
    /// busy task may take that long to use a new connection. In that case a second connection is opened,
    /// once.
    async fn open(&self, server: &Server, uri: &Uri) -> Result<Connection, EngineError> {
        for _ in 0..2 {
            let opening = Connection::open(uri, self.connect_max);
            let connection = opening.await.map_err(|error| unreachable(server, &error))?;
            if connection.is_quiet() {
                return Ok(connection);
            }
        }
        let error = std::io::Error::new(
            std::io::ErrorKind::ConnectionAborted,
            "closed immediately after it was opened",
        );
        Err(unreachable(server, &error))
    }

    fn head(
        &self,
        authority: &str,
        method: &Method,
        uri: &Uri,
        request_id: Option<&str>,
        body_bytes: usize,
    ) -> Bytes {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-type: application/json\r\n\
             content-length: {body_bytes}\r\n"
        )
        .into_bytes();
        let mut header = |name: &str, value: &[u8]| {
            head.extend_from_slice(name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value);
            head.extend_from_slice(b"\r\n");
        };
        if let Some(authorization) = &self.authorization {
            header("authorization", authorization.as_bytes());
        }
        // An id that is not a valid header value is sent only in the body.
        if let Some(value) = request_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            header(REQUEST_ID, value.as_bytes());
        }
        head.extend_from_slice(b"\r\n");
        head.into()
    }
}

/// Connections that wait for their next request, by authority. The connection that was used last is taken
/// first.
struct Pool {
    scope: Scope,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    connections: HashMap<Arc<str>, Vec<(Instant, Connection)>>,
    /// Whether the task that closes old connections runs.
    swept: bool,
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Pool {
    fn take(&self, authority: &str) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let connections = idle.connections.get_mut(authority)?;
        while let Some((since, connection)) = connections.pop() {
            if since.elapsed() >= IDLE_MAX {
                // All other connections to this server have been idle for longer.
                connections.clear();
                return None;
            }
            if connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    }

    fn put(self: &Arc<Self>, authority: Arc<str>, connection: Connection) {
        if self.scope.token().is_cancelled() {
            return;
        }
        let mut idle = self.idle.lock();
        let connections = idle.connections.entry(authority).or_default();
        if connections.len() < CONNECTIONS_IDLE_MAX {
            connections.push((Instant::now(), connection));
        }
        if !idle.swept {
            idle.swept = true;
            let pool = Arc::clone(self);
            let token = self.scope.token().clone();
            self.scope.spawn_detached("engine connections", async move {
                if token.run_until_cancelled(pool.sweep()).await.is_none() {
                    pool.idle.lock().connections.clear();
                }
            });
        }
    }

    /// Closes connections that were idle for [`IDLE_MAX`]. Ends when no idle connection is left.
    async fn sweep(&self) {
        loop {
            tokio::time::sleep(IDLE_MAX / 2).await;
            let mut idle = self.idle.lock();
            idle.connections.retain(|_, connections| {
                connections.retain(|(since, _)| since.elapsed() < IDLE_MAX);
                !connections.is_empty()
            });
            if idle.connections.is_empty() {
                idle.swept = false;
                return;
            }
        }
    }
}

/// An answer whose body has not been read. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Reply {
    body: Body,
    pool: Arc<Pool>,
    authority: Arc<str>,
}

impl Reply {
    pub(super) fn status(&self) -> StatusCode {
        self.body.head.status
    }
}

/// Feeds the body to `take` piece by piece.
///
/// Cancel-safe: dropping the future closes the connection.
///
/// # Errors
/// [`EngineError::BadAnswer`] for more than `bytes_max` bytes, [`EngineError::Failed`] if the connection ends
/// first, and the errors of `take`.
pub(super) async fn read_body(
    server: &Server,
    reply: Reply,
    bytes_max: usize,
    mut take: impl FnMut(&[u8]) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let Reply { mut body, pool, authority } = reply;
    let too_long = || server.bad_answer(format!("body longer than body_bytes_max={bytes_max}"));
    if body.length().is_some_and(|length| length > bytes_max as u64) {
        return Err(too_long());
    }
    let mut bytes_read: usize = 0;
    loop {
        let piece = body.next().await.map_err(|error| {
            server.failed(format!("connection lost after bytes={bytes_read} of the answer: {error}"))
        })?;
        let Some(piece) = piece else { break };
        bytes_read += piece.len();
        if bytes_read > bytes_max {
            return Err(too_long());
        }
        take(piece)?;
    }
    if let Some(connection) = body.into_reusable() {
        pool.put(authority, connection);
    }
    Ok(())
}

/// Reads the whole body of a small answer.
///
/// Cancel-safe, like [`read_body`].
pub(super) async fn collect_body(
    server: &Server,
    reply: Reply,
    bytes_max: usize,
) -> Result<Vec<u8>, EngineError> {
    let mut bytes = Vec::new();
    read_body(server, reply, bytes_max, |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })
    .await?;
    Ok(bytes)
}

/// The error for an answer whose status is not a success.
///
/// Cancel-safe.
pub(super) async fn refusal(server: &Server, reply: Reply) -> EngineError {
    let status = reply.status();
    let retry_after = reply.body.head.retry_after;
    // The reason of the error is in the body, which may be missing.
    let body = collect_body(server, reply, ERROR_BODY_BYTES_MAX).await.unwrap_or_default();
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
            reason: format!("{reason}; the server requires an API key that it knows"),
        },
        status if status.is_server_error() => server.failed(format!("status={}: {reason}", status.as_u16())),
        status => EngineError::Refused { server: server.name.to_string(), status: status.as_u16(), reason },
    }
}

/// Returns the message in the body of an error, in any of the engines' forms. If the body has another form,
/// returns its first line, or the title of an HTML page.
pub(super) fn error_words(body: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message = parsed.as_ref().and_then(|value| {
        let error = value.get("error");
        let nested = error.and_then(|error| error.get("message"));
        nested.or(error).or(value.get("detail")).and_then(serde_json::Value::as_str)
    });
    let words = message.map_or_else(|| excerpt(body), str::to_owned);
    words.chars().take(REASON_CHARS_MAX).collect()
}

/// The error if no connection could be opened, so that nothing was sent. If this machine lacks the resources
/// for a connection, the server is not at fault, and a later attempt may succeed.
pub(super) fn unreachable(server: &Server, error: &std::io::Error) -> EngineError {
    let (name, reason) = (server.name.to_string(), server.at_url(&error.to_string()));
    if is_exhaustion(error) {
        return EngineError::Busy { server: name, retry_after: None, reason };
    }
    EngineError::Unreachable { server: name, reason }
}

/// The error if the connection was lost after the request was sent. The request may have been admitted.
fn lost(server: &Server, error: &std::io::Error) -> EngineError {
    server.failed(format!("connection lost before the answer: {error}"))
}
