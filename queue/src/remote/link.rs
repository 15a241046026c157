//! Connections to a queue's server, and what is done when they fail.
//!
//! A call drives its connection in the caller's own task: an answer wakes the one that waits for it, and nobody in
//! between. Where answers have come faster than a thread wakes up, the next one is waited for awake. Dropping a call closes
//! its connection.
//!
//! # Deliberately absent
//! TLS: what leaves the machine belongs on a private network.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::RemoteConfig;
use super::body::{Content, RequestBody};
use super::wire::ErrorBody;
use crate::QueueError;

/// Beyond what a request may wait at the server, an answer or a piece of it takes at most this.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// An answer that comes within this time is waited for awake, if the one before did; waking up takes about as long.
const AWAKE_MAX: Duration = Duration::from_micros(200);
/// Turns of waiting awake, where time stands still.
const AWAKE_TURNS_MAX: u32 = 10_000;
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Idle connections that are kept.
const IDLE_MAX: usize = 64;
/// JSON answers are no longer than this; bytes.
const JSON_BYTES_MAX: usize = 256 << 20;

/// Whether a call may be sent again when nobody knows what became of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Sent twice it does what it does once.
    Safe,
    /// Sent again only if it was not sent.
    Unsent,
}

pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) content: Content,
    pub(super) repeat: Repeat,
    /// How long the server may take of its own accord.
    pub(super) wait: Duration,
    /// When a server that is away is tried no longer; `None`: after the link's patience.
    pub(super) give_up: Option<Instant>,
}

impl Call {
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, repeat: Repeat::Safe, ..Self::post(path, Content::Nothing) }
    }

    pub(super) fn post(path: impl Into<String>, content: Content) -> Self {
        let (method, path) = (Method::POST, path.into());
        Self { method, path, content, repeat: Repeat::Unsent, wait: Duration::ZERO, give_up: None }
    }

    pub(super) fn json(path: impl Into<String>, value: &impl Serialize) -> Result<Self, QueueError> {
        let bytes = serde_json::to_vec(value);
        let bytes = bytes.map_err(|error| QueueError::BadRequest { reason: error.to_string() })?;
        Ok(Self::post(path, Content::Json(bytes.into())))
    }

    pub(super) fn repeatable(self) -> Self {
        Self { repeat: Repeat::Safe, ..self }
    }
}

/// Why there is no answer.
enum Failure {
    /// The request did not leave.
    Unsent(String),
    /// Nobody knows what became of it.
    Lost(String),
}

impl Failure {
    fn lost(error: &dyn std::error::Error) -> Self {
        Self::Lost(innermost(error))
    }
}

type Connection = http1::Connection<TokioIo<TcpStream>, RequestBody>;

/// A connection and the right to send on it.
struct Wire {
    sender: SendRequest<RequestBody>,
    /// `None` once it has ended.
    connection: Option<Pin<Box<Connection>>>,
    /// What was waited for last came within [`AWAKE_MAX`].
    is_prompt: bool,
}

impl Wire {
    async fn connect(authority: &str) -> Result<Self, Failure> {
        let connecting = tokio::time::timeout(CONNECT_MAX, TcpStream::connect(authority));
        let unsent = |error: std::io::Error| Failure::Unsent(error.to_string());
        let stream =
            connecting.await.map_err(|_| Failure::Unsent("it does not take connections".to_owned()))?;
        let stream = stream.map_err(unsent)?;
        stream.set_nodelay(true).map_err(unsent)?;
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|error| Failure::Unsent(innermost(&error)))?;
        Ok(Self { sender, connection: Some(Box::pin(connection)), is_prompt: false })
    }

    fn drive(&mut self, context: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && connection.as_mut().poll(context).is_ready()
        {
            self.connection = None;
        }
    }

    /// Drives the connection until `ours` has an outcome; `None` if the connection ended before.
    async fn until<T>(&mut self, mut ours: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
        let started = Instant::now();
        let stays_awake = std::mem::replace(&mut self.is_prompt, false);
        let mut turns = 0;
        let outcome = loop {
            turns += 1;
            let sleeps = !stays_awake || turns > AWAKE_TURNS_MAX || started.elapsed() > AWAKE_MAX;
            let waiting = poll_fn(|context| match self.turn(&mut ours, context) {
                Poll::Pending if !sleeps => Poll::Ready(None),
                polled => polled.map(Some),
            });
            match waiting.await {
                Some(outcome) => break outcome,
                None => tokio::task::yield_now().await,
            }
        };
        self.is_prompt = started.elapsed() < AWAKE_MAX;
        outcome
    }

    fn turn<T>(
        &mut self,
        ours: &mut impl FnMut(&mut Context<'_>) -> Poll<T>,
        context: &mut Context<'_>,
    ) -> Poll<Option<T>> {
        // Twice: what we ask for in the first turn is often there in the second.
        for _ in 0..2 {
            self.drive(context);
            if let Poll::Ready(outcome) = ours(context) {
                return Poll::Ready(Some(outcome));
            }
        }
        if self.connection.is_none() { Poll::Ready(None) } else { Poll::Pending }
    }

    /// Whether another request can go on it.
    async fn is_reusable(&mut self) -> bool {
        poll_fn(|context| {
            self.drive(context);
            Poll::Ready(
                self.connection.is_some() && matches!(self.sender.poll_ready(context), Poll::Ready(Ok(()))),
            )
        })
        .await
    }

    async fn send(&mut self, request: Request<RequestBody>) -> Result<hyper::Response<Incoming>, Failure> {
        let mut response = Box::pin(self.sender.send_request(request));
        match self.until(|context| response.poll_unpin(context)).await {
            Some(Ok(response)) => Ok(response),
            // It was closed before anything was written.
            Some(Err(error)) if error.is_canceled() => Err(Failure::Unsent(innermost(&error))),
            Some(Err(error)) => Err(Failure::lost(&error)),
            None => Err(Failure::Lost("the connection was closed".to_owned())),
        }
    }
}

/// An answer whose body is still to be read.
pub(super) struct Answer<'a> {
    link: &'a Link,
    wire: Wire,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Incoming,
}

impl Answer<'_> {
    /// The next bytes of the body. Cancel-safe.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, QueueError> {
        loop {
            let body = &mut self.body;
            let reading = self.wire.until(|context| body.frame().poll_unpin(context));
            let lost = |reason: &str| self.link.unreachable(reason);
            let frame = match tokio::time::timeout(ANSWER_MAX, reading).await {
                Err(_) => return Err(lost("the answer stands still")),
                // What had arrived before the end was read before.
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

    /// The whole body; the connection is free again.
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

    /// The body has been read: the connection is free again.
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

/// How a server is reached.
pub(super) struct Link {
    pub(super) config: RemoteConfig,
    authority: String,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
    idle: Mutex<Vec<Wire>>,
    /// Where leases are given back that were dropped.
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
        let tasks = TaskTracker::new();
        Ok(Self { config, authority, host, authorization, idle: Mutex::default(), runtime, tasks })
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
        request.body(body).map_err(|error| Failure::Unsent(error.to_string()))
    }

    /// A connection that stands, and whether it has been used before.
    async fn wire(&self) -> Result<(Wire, bool), Failure> {
        loop {
            let idle = self.idle.lock().pop();
            let Some(mut wire) = idle else { return Ok((Wire::connect(&self.authority).await?, false)) };
            if wire.is_reusable().await {
                return Ok((wire, true));
            }
        }
    }

    async fn exchange(&self, call: &Call) -> Result<Answer<'_>, Failure> {
        loop {
            let (mut wire, was_used) = self.wire().await?;
            let request = self.request(call, call.content.kind(), call.content.body())?;
            let sending = wire.send(request);
            match tokio::time::timeout(call.wait + ANSWER_MAX, sending).await {
                Err(_) => return Err(Failure::Lost("no answer in time".to_owned())),
                // The server closed it between two requests.
                Ok(Err(Failure::Unsent(_))) if was_used => {}
                Ok(Err(failure)) => return Err(failure),
                Ok(Ok(response)) => {
                    let (head, body) = response.into_parts();
                    let (status, headers) = (head.status, head.headers);
                    return Ok(Answer { link: self, wire, status, headers, body });
                }
            }
        }
    }

    /// Sends, again while the server is away and that is harmless, and returns an answer that is no error.
    pub(super) async fn send(&self, call: Call) -> Result<Answer<'_>, QueueError> {
        let give_up = call.give_up.unwrap_or_else(|| Instant::now() + self.config.patience);
        let mut pause = RETRY_MIN;
        loop {
            let (error, harmless) = match self.exchange(&call).await {
                Ok(answer) if answer.status.is_success() => return Ok(answer),
                Ok(answer) => match self.refusal(answer).await {
                    // Perhaps to start again.
                    QueueError::Stopping => (QueueError::Stopping, true),
                    refusal => return Err(refusal),
                },
                Err(Failure::Unsent(reason)) => (self.unreachable(reason), true),
                Err(Failure::Lost(reason)) => (self.unreachable(reason), call.repeat == Repeat::Safe),
            };
            if !harmless || Instant::now() + pause >= give_up {
                return Err(error);
            }
            if pause == RETRY_MIN {
                let patience_s = self.config.patience.as_secs();
                tracing::warn!(patience_s, %error, "the queue's server is away; trying again");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Sends a body that there is only once.
    pub(super) async fn upload<T: DeserializeOwned>(
        &self,
        call: &Call,
        kind: &str,
        body: RequestBody,
    ) -> Result<T, QueueError> {
        let lost = |failure| match failure {
            Failure::Unsent(reason) | Failure::Lost(reason) => self.unreachable(reason),
        };
        let mut wire = Wire::connect(&self.authority).await.map_err(lost)?;
        let request = self.request(call, Some(kind), body).map_err(lost)?;
        let sending = tokio::time::timeout(call.wait + ANSWER_MAX, wire.send(request));
        let response = sending.await.map_err(|_| self.unreachable("no answer in time"))?.map_err(lost)?;
        let (head, body) = response.into_parts();
        let answer = Answer { link: self, wire, status: head.status, headers: head.headers, body };
        if !answer.status.is_success() {
            return Err(self.refusal(answer).await);
        }
        let body = answer.bytes().await?;
        serde_json::from_slice(&body)
            .map_err(|error| self.unreachable(format!("an answer that is not its own: {error}")))
    }

    async fn refusal(&self, answer: Answer<'_>) -> QueueError {
        let status = answer.status;
        match answer.bytes().await.ok().and_then(|body| serde_json::from_slice::<ErrorBody>(&body).ok()) {
            Some(body) => body.error.error,
            None => self.unreachable(format!("status={status}, and no error of a queue")),
        }
    }

    pub(super) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, QueueError> {
        let body = self.send(call).await?.bytes().await?;
        serde_json::from_slice(&body)
            .map_err(|error| self.unreachable(format!("an answer that is not its own: {error}")))
    }

    pub(super) async fn done(&self, call: Call) -> Result<(), QueueError> {
        self.send(call).await?.bytes().await.map(drop)
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
