//! Connections to a queue's server, and the retries when they fail.
//!
//! A call drives its connection in the caller's own task, so an answer wakes the waiting caller directly. If
//! the last answer came faster than a thread wakes up, the call first polls for the next answer. Dropping a
//! call closes its connection.
//!
//! # Deliberately absent
//! There is no TLS: traffic between machines belongs on a private network.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::body::{Content, RequestBody};
use super::config::RemoteConfig;
use super::connection::{Answer, Failure, Wire, innermost};
use crate::QueueError;
use crate::edges::wire::ErrorBody;
use crate::edges::wire::ipc::Blocks;

/// The client waits for an answer as long as the request may wait at the server, and then for the client's
/// patience. For each piece of an answer, the client waits for its patience. The patience is always clamped
/// to these bounds.
const ANSWER_MIN: Duration = Duration::from_secs(10);
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// If the caller has a deadline, the answer may arrive this much later: it may be in transit at the deadline,
/// or the server may just have restarted.
const LATE_MAX: Duration = Duration::from_secs(1);
/// The slowest rate at which bodies are expected to be sent, in bytes per second.
const RATE_MIN: f64 = 4e6;
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// The maximum number of idle connections that are kept.
const IDLE_MAX: usize = 64;
/// The maximum size of an answer that is read as a whole, in bytes.
const JSON_BYTES_MAX: usize = 256 << 20;

/// Whether a call may be sent again when it is unknown whether the server has executed it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// A repetition changes nothing.
    Safe,
    /// The call is repeated only if it was not sent.
    Unsent,
}

pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) content: Content,
    pub(super) repeat: Repeat,
    /// The time that the call may wait at the server.
    pub(super) wait: Duration,
    /// The time until which a server that does not answer is tried. If absent, the link's patience applies.
    pub(super) give_up: Option<Instant>,
    /// The caller's deadline, which applies whatever the server does.
    pub(super) deadline: Option<Instant>,
    /// Makes a call that undoes this call, if the caller is dropped before the answer has arrived.
    pub(super) undo: Option<Undo>,
}

/// Makes the call that undoes another call, from the head of the other call's answer.
pub(super) type Undo = Arc<dyn Fn(&HeaderMap) -> Option<Call> + Send + Sync>;

impl Call {
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, repeat: Repeat::Safe, ..Self::post(path, Content::Nothing) }
    }

    pub(super) fn post(path: impl Into<String>, content: Content) -> Self {
        let (method, path) = (Method::POST, path.into());
        Self {
            method,
            path,
            content,
            repeat: Repeat::Unsent,
            wait: Duration::ZERO,
            give_up: None,
            deadline: None,
            undo: None,
        }
    }

    pub(super) fn json(path: impl Into<String>, value: &impl Serialize) -> Result<Self, QueueError> {
        let bytes = serde_json::to_vec(value);
        let bytes = bytes.map_err(|error| QueueError::BadRequest { reason: error.to_string() })?;
        Ok(Self::post(path, Content::Json(bytes.into())))
    }

    pub(super) fn repeatable(self) -> Self {
        Self { repeat: Repeat::Safe, ..self }
    }

    /// The time until which an attempt that begins now waits for the head of its answer.
    fn limit(&self, answer_max: Duration) -> Instant {
        let sending = Duration::from_secs_f64(self.content.bytes() as f64 / RATE_MIN);
        let limit = Instant::now() + self.wait + answer_max + sending;
        self.deadline.map_or(limit, |deadline| limit.min(deadline + LATE_MAX + sending))
    }
}

/// A request that was sent. If it is dropped before the head of its answer has arrived, a task waits for that
/// head and undoes the call.
struct Sent {
    link: Arc<Link>,
    /// `None` after the outcome.
    pending: Option<(Wire, Answer)>,
    undo: Option<Undo>,
}

impl Sent {
    async fn finish(mut self) -> Result<(Wire, hyper::Response<Incoming>), Failure> {
        let has_outcome = || Failure::Lost("the answer was read before".to_owned());
        let (wire, answer) = self.pending.as_mut().ok_or_else(has_outcome)?;
        let outcome = wire.finish(answer).await;
        let (wire, _) = self.pending.take().ok_or_else(has_outcome)?;
        Ok((wire, outcome?))
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let (Some((mut wire, mut answer)), Some(undo)) = (self.pending.take(), self.undo.take()) else {
            return;
        };
        wire.end_requests();
        let link = Arc::clone(&self.link);
        let undoing = async move {
            let arriving = tokio::time::timeout(link.answer_max(), wire.finish(&mut answer));
            if let Ok(Ok(head)) = arriving.await
                && let Some(call) = undo(head.headers())
            {
                // If this fails, the rows become ready again when the lease expires.
                let _ = link.done(call).await;
            }
        };
        crate::tasks::spawn_on(&self.link.tasks, "undo of a call", undoing, &self.link.runtime);
    }
}

/// An answer whose body has not been read yet.
pub(super) struct Response<'a> {
    link: &'a Link,
    wire: Wire,
    /// The maximum time until a piece arrives.
    piece_max: Duration,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Incoming,
}

impl Response<'_> {
    /// The next bytes of the body. Cancel-safe.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, QueueError> {
        loop {
            let body = &mut self.body;
            let reading = self.wire.until(|context| body.frame().poll_unpin(context));
            let lost = |reason: &str| self.link.unreachable(reason);
            let frame = match tokio::time::timeout(self.piece_max, reading).await {
                Err(_) => return Err(lost("the answer stopped arriving")),
                // Everything that arrived before the connection ended has been read by now.
                Ok(None) => return Err(lost("the connection was closed within an answer")),
                Ok(Some(None)) => return Ok(None),
                Ok(Some(Some(Err(error)))) => return Err(lost(&innermost(&error))),
                Ok(Some(Some(Ok(frame)))) => frame,
            };
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// Reads the whole body, and frees the connection for another call.
    pub(super) async fn bytes(mut self) -> Result<Bytes, QueueError> {
        let Some(first) = self.chunk().await? else {
            self.done().await;
            return Ok(Bytes::new());
        };
        if self.body.is_end_stream() {
            self.done().await;
            return Ok(first);
        }
        let mut bytes = first.to_vec();
        while let Some(more) = self.chunk().await? {
            if bytes.len() + more.len() > JSON_BYTES_MAX {
                return Err(QueueError::BodyTooLarge { bytes_max: JSON_BYTES_MAX });
            }
            bytes.extend_from_slice(&more);
        }
        self.done().await;
        Ok(bytes.into())
    }

    /// Frees the connection for another call, after the body has been read.
    pub(super) async fn done(self) {
        let Self { link, mut wire, body, .. } = self;
        drop(body);
        if wire.is_reusable().await {
            let mut idle = link.idle.lock();
            if idle.len() < IDLE_MAX {
                idle.push(wire);
            }
        }
    }
}

/// The connections of a client to its server.
pub(super) struct Link {
    pub(super) config: RemoteConfig,
    authority: String,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
    idle: Mutex<Vec<Wire>>,
    /// The memory into which rows are read.
    pub(super) blocks: Arc<Blocks>,
    /// The runtime in which dropped leases are given back.
    pub(super) runtime: Handle,
    pub(super) tasks: TaskTracker,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Link").field("url", &self.config.url).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(config: RemoteConfig) -> Result<Self, QueueError> {
        let refuse = |reason: String| QueueError::Unreachable { url: config.url.clone(), reason };
        let url = url::Url::parse(&config.url).map_err(|error| refuse(error.to_string()))?;
        let (Some(host), "http") = (url.host_str(), url.scheme()) else {
            return Err(refuse("expected http://HOST:PORT".to_owned()));
        };
        let authority = format!("{host}:{}", url.port_or_known_default().unwrap_or(80));
        let header = |text: String| HeaderValue::from_str(&text).map_err(|error| refuse(error.to_string()));
        let authorization =
            config.token.as_ref().map(|token| header(format!("Bearer {token}"))).transpose()?;
        let host = header(authority.clone())?;
        let runtime = Handle::try_current().map_err(|error| refuse(error.to_string()))?;
        let tasks = config.tasks.clone();
        Ok(Self {
            config,
            authority,
            host,
            authorization,
            idle: Mutex::default(),
            blocks: Arc::default(),
            runtime,
            tasks,
        })
    }

    pub(super) fn unreachable(&self, reason: impl ToString) -> QueueError {
        QueueError::Unreachable { url: self.config.url.clone(), reason: reason.to_string() }
    }

    fn request(
        &self,
        call: &Call,
        kind: Option<&str>,
        body: RequestBody,
    ) -> Result<Request<RequestBody>, Failure> {
        let mut request =
            Request::builder().method(call.method.clone()).uri(&call.path).header(header::HOST, &self.host);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if let Some(kind) = kind {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let bad = |error: hyper::http::Error| QueueError::BadRequest { reason: error.to_string() };
        request.body(body).map_err(|error| Failure::Refused(bad(error)))
    }

    /// An open connection, and whether it has been used before.
    async fn wire(&self) -> Result<(Wire, bool), Failure> {
        loop {
            let idle = self.idle.lock().pop();
            let Some(mut wire) = idle else { return Ok((Wire::connect(&self.authority).await?, false)) };
            if wire.is_reusable().await {
                return Ok((wire, true));
            }
        }
    }

    /// The time for which a server that has accepted a request may be silent.
    fn answer_max(&self) -> Duration {
        self.config.patience.clamp(ANSWER_MIN, ANSWER_MAX)
    }

    async fn exchange(self: &Arc<Self>, call: &Call) -> Result<Response<'_>, Failure> {
        let limit = call.limit(self.answer_max());
        let exchanging = tokio::time::timeout_at(limit, self.exchange_unbounded(call));
        exchanging.await.unwrap_or_else(|_| Err(Failure::Lost("no answer in time".to_owned())))
    }

    async fn exchange_unbounded(self: &Arc<Self>, call: &Call) -> Result<Response<'_>, Failure> {
        loop {
            let (mut wire, was_used) = self.wire().await?;
            let request = self.request(call, call.content.kind(), call.content.body())?;
            let answer = wire.begin(request);
            let sent =
                Sent { link: Arc::clone(self), pending: Some((wire, answer)), undo: call.undo.clone() };
            match sent.finish().await {
                // The server closed the connection between two requests. Another connection is tried.
                Err(Failure::Unsent(_)) if was_used => {}
                Err(failure) => return Err(failure),
                Ok((wire, response)) => return Ok(self.answer(call, wire, response)),
            }
        }
    }

    fn answer(&self, call: &Call, wire: Wire, response: hyper::Response<Incoming>) -> Response<'_> {
        let (head, body) = response.into_parts();
        let piece_max = if call.wait > ANSWER_MAX { ANSWER_MAX } else { self.answer_max() };
        Response { link: self, wire, piece_max, status: head.status, headers: head.headers, body }
    }

    /// Sends a call, and returns a successful answer. While the server cannot answer, the call is sent again
    /// if that is harmless.
    pub(super) async fn send(self: &Arc<Self>, call: Call) -> Result<Response<'_>, QueueError> {
        let give_up = call.give_up.unwrap_or_else(|| Instant::now() + self.config.patience);
        let give_up = call.deadline.map_or(give_up, |deadline| give_up.min(deadline + LATE_MAX));
        let mut pause = RETRY_MIN;
        loop {
            let (error, harmless) = match self.exchange(&call).await {
                Ok(answer) if answer.status.is_success() => return Ok(answer),
                Ok(answer) => match self.refusal(answer).await {
                    // The server may be about to start again, or to close connections.
                    away @ (QueueError::Stopping | QueueError::OutOfFiles { .. }) => (away, true),
                    refusal => return Err(refusal),
                },
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::Unsent(reason)) => (self.unreachable(reason), true),
                Err(Failure::Lost(reason)) => (self.unreachable(reason), call.repeat == Repeat::Safe),
            };
            if !harmless || Instant::now() + pause >= give_up {
                return Err(error);
            }
            if pause == RETRY_MIN {
                let patience_s = self.config.patience.as_secs();
                tracing::warn!(patience_s, %error, "the queue's server cannot answer now; trying again");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Sends a body that cannot be sent a second time.
    pub(super) async fn upload<T: DeserializeOwned>(
        &self,
        call: &Call,
        kind: &str,
        body: RequestBody,
    ) -> Result<T, QueueError> {
        let lost = |failure| match failure {
            Failure::Refused(error) => error,
            Failure::Unsent(reason) | Failure::Lost(reason) => self.unreachable(reason),
        };
        let mut wire = Wire::connect(&self.authority).await.map_err(lost)?;
        let request = self.request(call, Some(kind), body).map_err(lost)?;
        let sending = tokio::time::timeout(call.wait + ANSWER_MAX, wire.send(request));
        let response = sending.await.map_err(|_| self.unreachable("no answer in time"))?.map_err(lost)?;
        let answer = self.answer(call, wire, response);
        if !answer.status.is_success() {
            return Err(self.refusal(answer).await);
        }
        let body = answer.bytes().await?;
        serde_json::from_slice(&body).map_err(|error| {
            self.unreachable(format!("expected the answer of a queue, found something else: {error}"))
        })
    }

    async fn refusal(&self, answer: Response<'_>) -> QueueError {
        let status = answer.status;
        match answer.bytes().await.ok().and_then(|body| serde_json::from_slice::<ErrorBody>(&body).ok()) {
            Some(body) => body.error.error,
            None => self.unreachable(format!("expected an error of a queue, found status={status}")),
        }
    }

    pub(super) async fn json<T: DeserializeOwned>(self: &Arc<Self>, call: Call) -> Result<T, QueueError> {
        let body = self.send(call).await?.bytes().await?;
        serde_json::from_slice(&body).map_err(|error| {
            self.unreachable(format!("expected the answer of a queue, found something else: {error}"))
        })
    }

    pub(super) async fn done(self: &Arc<Self>, call: Call) -> Result<(), QueueError> {
        self.send(call).await?.bytes().await.map(drop)
    }
}
