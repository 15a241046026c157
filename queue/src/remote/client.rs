//! The client's side.

mod maintenance;

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::ipc;
use super::wire::{ARROW_STREAM, ClearBody, ENDED, ErrorBody, LEASE, PutAnswer, PutQuery, TakeBody};
use crate::partition::Hold;
use crate::{Lease, PartitionSpec, PartitionStats, Put, Queue, QueueError, QueueInspection, RowHandle, Take};

/// One request waits at the server no longer than this; then it is asked again, so that a connection that died silently
/// is noticed.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Beyond what a request may wait at the server, an answer takes at most this.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const CONNECT_MAX: Duration = Duration::from_secs(5);
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// How to reach a queue's server.
#[derive(Debug, Clone)]
pub struct RemoteConfig {
    /// `http://host:port`
    pub url: String,
    /// The bearer token, where the server asks for one.
    pub token: Option<String>,
    /// For how long a server that is away is tried again before a call fails.
    pub patience: Duration,
}

impl RemoteConfig {
    /// Without a token, trying for 30 s.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), token: None, patience: Duration::from_secs(30) }
    }
}

#[derive(Debug)]
struct Link {
    client: Client,
    config: RemoteConfig,
    /// Where leases are given back that were dropped.
    runtime: Handle,
    tasks: TaskTracker,
}

/// A queue of a server. Clones use the same connections.
#[derive(Debug, Clone)]
pub struct RemoteQueue {
    link: Arc<Link>,
}

/// What a request carries.
#[derive(Clone)]
enum Content {
    Nothing,
    Json(Bytes),
    Rows(Bytes),
}

/// Whether it may be sent again when nobody knows what became of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// Sent twice it does what it does once.
    Safe,
    /// Sent again only if it was not sent.
    Unsent,
}

struct Call {
    method: Method,
    path: String,
    content: Content,
    repeat: Repeat,
    /// How long the server may take of its own accord.
    wait: Duration,
}

impl Call {
    fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, repeat: Repeat::Safe, ..Self::post(path, Content::Nothing) }
    }

    fn post(path: impl Into<String>, content: Content) -> Self {
        Self {
            method: Method::POST,
            path: path.into(),
            content,
            repeat: Repeat::Unsent,
            wait: Duration::ZERO,
        }
    }

    fn repeatable(self) -> Self {
        Self { repeat: Repeat::Safe, ..self }
    }
}

fn json_of(value: &impl Serialize) -> Result<Content, QueueError> {
    let bytes =
        serde_json::to_vec(value).map_err(|error| QueueError::BadRequest { reason: error.to_string() })?;
    Ok(Content::Json(bytes.into()))
}

fn path(partition: &str, what: &str) -> String {
    let name: String = url::form_urlencoded::byte_serialize(partition.as_bytes()).collect();
    format!("/v1/partitions/{}{what}", name.replace('+', "%20"))
}

impl Link {
    fn unreachable(&self, reason: impl ToString) -> QueueError {
        QueueError::Unreachable { url: self.config.url.clone(), reason: reason.to_string() }
    }

    fn request(&self, call: &Call) -> RequestBuilder {
        let url = format!("{}{}", self.config.url.trim_end_matches('/'), call.path);
        let mut request = self.client.request(call.method.clone(), url).timeout(call.wait + ANSWER_MAX);
        if let Some(token) = &self.config.token {
            request = request.bearer_auth(token);
        }
        match &call.content {
            Content::Nothing => request,
            Content::Json(body) => request.header("content-type", "application/json").body(body.clone()),
            Content::Rows(body) => request.header("content-type", ARROW_STREAM).body(body.clone()),
        }
    }

    /// Sends, again while the server is away and that is harmless, and returns an answer that is no error.
    async fn send(&self, call: Call) -> Result<Response, QueueError> {
        let give_up = Instant::now() + self.config.patience;
        let mut pause = RETRY_MIN;
        loop {
            let error = match self.request(&call).send().await {
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response) => return Err(self.refusal(response).await),
                Err(error) => error,
            };
            let harmless = call.repeat == Repeat::Safe || error.is_connect();
            if error.is_builder() || !harmless || Instant::now() + pause >= give_up {
                return Err(self.unreachable(innermost(&error)));
            }
            if pause == RETRY_MIN {
                let (url, patience_s) = (&self.config.url, self.config.patience.as_secs());
                tracing::warn!(%url, patience_s, reason = innermost(&error), "the queue's server is away; trying again");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    async fn refusal(&self, response: Response) -> QueueError {
        let status = response.status();
        match response.bytes().await.ok().and_then(|body| serde_json::from_slice::<ErrorBody>(&body).ok()) {
            Some(body) => body.error.error,
            None => self.unreachable(format!("status={status}, and no error of a queue")),
        }
    }

    async fn bytes(&self, response: Response) -> Result<Bytes, QueueError> {
        response.bytes().await.map_err(|error| self.unreachable(innermost(&error)))
    }

    async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, QueueError> {
        let body = self.bytes(self.send(call).await?).await?;
        serde_json::from_slice(&body)
            .map_err(|error| self.unreachable(format!("an answer that is not its own: {error}")))
    }

    async fn done(&self, call: Call) -> Result<(), QueueError> {
        self.send(call).await.map(drop)
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

impl RemoteQueue {
    /// Names a server; nothing is sent yet. Needs to be called inside a tokio runtime.
    pub fn new(config: RemoteConfig) -> Result<Self, QueueError> {
        let refuse = |reason: String| QueueError::Unreachable { url: config.url.clone(), reason };
        let client = Client::builder()
            .connect_timeout(CONNECT_MAX)
            .no_proxy()
            .build()
            .map_err(|error| refuse(innermost(&error)))?;
        let runtime = Handle::try_current().map_err(|error| refuse(error.to_string()))?;
        Ok(Self { link: Arc::new(Link { client, config, runtime, tasks: TaskTracker::new() }) })
    }

    /// Waits until leases that were dropped have been given back.
    pub async fn close(&self) {
        self.link.tasks.close();
        self.link.tasks.wait().await;
    }

    /// Reads taken rows as they arrive.
    async fn rows(
        &self,
        mut response: Response,
    ) -> Result<(Vec<RowHandle>, (Vec<String>, Vec<u64>), Vec<RecordBatch>), QueueError> {
        let mut decoder = ipc::Decoder::new();
        let (mut rows, mut groups, mut versions, mut batches) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let lost = |error: reqwest::Error| self.link.unreachable(innermost(&error));
        while let Some(bytes) = response.chunk().await.map_err(lost)? {
            decoder.feed(bytes, |batch| {
                let labelled = ipc::split_labels(batch)?;
                rows.extend(labelled.rows);
                groups.extend(labelled.groups);
                versions.extend(labelled.policy_versions);
                batches.push(labelled.batch);
                Ok(())
            })?;
        }
        decoder.finish()?;
        Ok((rows, (groups, versions), batches))
    }

    /// Asks once; says how long the server was asked to wait.
    async fn take_once(
        &self,
        partition: &str,
        take: &Take,
        wait: Option<Duration>,
    ) -> Result<Taken, QueueError> {
        let body = json_of(&TakeBody::new(take, wait))?;
        // A take whose answer is lost gives its rows back.
        let mut call = Call::post(path(partition, "/take"), body).repeatable();
        call.wait = wait.unwrap_or_default();
        let response = match self.link.send(call).await {
            Err(QueueError::Deadline { .. }) if wait.is_some() => return Ok(Taken::Nothing),
            response => response?,
        };
        if response.status() == StatusCode::NO_CONTENT {
            let ended = response.headers().get(ENDED).is_some_and(|value| value == "true");
            return Ok(if ended { Taken::Ended } else { Taken::Nothing });
        }
        let name = response.headers().get(LEASE).and_then(|name| name.to_str().ok()).map(str::to_owned);
        let name = name.ok_or_else(|| self.link.unreachable("rows without a lease"))?;
        let (rows, labels, batches) = self.rows(response).await?;
        let id = name.split('-').nth(1).and_then(|id| id.parse().ok()).unwrap_or_default();
        let hold = Held { link: Arc::clone(&self.link), path: path(partition, &format!("/leases/{name}")) };
        Ok(Taken::Lease(Lease::new(Box::new(hold), id, rows, labels, batches)))
    }
}

enum Taken {
    Lease(Lease),
    Nothing,
    Ended,
}

/// A lease that a server holds for this client.
struct Held {
    link: Arc<Link>,
    path: String,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Held").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Held {
    fn call(&self, what: &str) -> Call {
        Call::post(format!("{}/{what}", self.path), Content::Nothing).repeatable()
    }
}

impl Hold for Held {
    fn ack(&self) -> BoxFuture<'_, Result<(), QueueError>> {
        self.link.done(self.call("ack")).boxed()
    }

    fn nack(&self) -> BoxFuture<'_, Result<(), QueueError>> {
        self.link.done(self.call("nack")).boxed()
    }

    fn renew(&self) -> BoxFuture<'_, Result<(), QueueError>> {
        self.link.done(self.call("renew")).boxed()
    }

    fn abandon(&self) {
        let (link, call) = (Arc::clone(&self.link), self.call("nack"));
        let tasks = link.tasks.clone();
        let runtime = link.runtime.clone();
        tasks.spawn_on(
            async move {
                // Where it fails, the lease's expiry gives the rows back.
                let _ = link.done(call).await;
            },
            &runtime,
        );
    }
}

impl Queue for RemoteQueue {
    fn declare(&self, spec: PartitionSpec) -> BoxFuture<'_, Result<(), QueueError>> {
        async move { self.link.done(Call::post("/v1/partitions", json_of(&spec)?).repeatable()).await }
            .boxed()
    }

    fn put<'a>(
        &'a self,
        partition: &'a str,
        put: Put,
        wait: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<RowHandle>, QueueError>> {
        async move {
            let deadline = wait.map(|wait| Instant::now() + wait);
            let rows = ipc::encode(&put.batch)?;
            // With a token a repetition is harmless.
            let token = put.token.unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
            let mut query = PutQuery {
                group: put.group,
                group_size: Some(put.group_size),
                policy_version: put.policy_version,
                priority: put.priority,
                token: Some(token),
                record: put.record,
                wait_ms: 0,
            };
            loop {
                let left = deadline.map_or(WAIT_MAX, |deadline| deadline - Instant::now());
                let wait = left.min(WAIT_MAX);
                query.wait_ms = wait.as_millis() as u64;
                let what = serde_urlencoded::to_string(&query)
                    .map_err(|error| QueueError::BadRequest { reason: error.to_string() })?;
                let to = path(partition, &format!("/rows?{what}"));
                let call = Call { wait, ..Call::post(to, Content::Rows(rows.clone())).repeatable() };
                match self.link.json::<PutAnswer>(call).await {
                    Err(QueueError::Deadline { .. }) if left > wait || deadline.is_none() => {}
                    answer => return answer.map(|answer| answer.rows),
                }
            }
        }
        .boxed()
    }

    fn write_columns<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        batch: RecordBatch,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        async move {
            if rows.is_empty() || rows.len() != batch.num_rows() {
                return Err(QueueError::Empty);
            }
            let body = ipc::encode(&ipc::with_handles(rows, &batch)?)?;
            self.link.done(Call::post(path(partition, "/columns"), Content::Rows(body))).await
        }
        .boxed()
    }

    fn take<'a>(
        &'a self,
        partition: &'a str,
        take: &'a Take,
    ) -> BoxFuture<'a, Result<Option<Lease>, QueueError>> {
        async move {
            loop {
                let left = take.deadline.map(|deadline| deadline - Instant::now());
                let wait = left.map(|left| left.min(WAIT_MAX));
                match self.take_once(partition, take, wait).await? {
                    Taken::Lease(lease) => return Ok(Some(lease)),
                    Taken::Ended => return Ok(None),
                    Taken::Nothing if left.is_none() => return Ok(None),
                    Taken::Nothing if left > wait => {}
                    Taken::Nothing => {
                        return Err(QueueError::Deadline {
                            what: "a ready group".into(),
                            partition: partition.to_owned(),
                            state: format!("at {}", self.link.config.url),
                        });
                    }
                }
            }
        }
        .boxed()
    }

    fn clear<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        async move {
            let body = json_of(&ClearBody { rows: rows.to_vec(), all: false })?;
            self.link.done(Call::post(path(partition, "/clear"), body)).await
        }
        .boxed()
    }

    fn end_of_puts<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<(), QueueError>> {
        async move { self.link.done(Call::post(path(partition, "/end"), Content::Nothing).repeatable()).await }.boxed()
    }

    fn status<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<PartitionStats, QueueError>> {
        async move { self.link.json(Call::get(path(partition, ""))).await }.boxed()
    }

    fn inspect(&self) -> BoxFuture<'_, Result<QueueInspection, QueueError>> {
        self.link.json(Call::get("/v1/inspect")).boxed()
    }
}
