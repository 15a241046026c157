//! The client's side: the queue's calls.

mod direct;
mod maintenance;
mod units;

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::StatusCode;
use serde_json::Value;
use tokio::time::Instant;

use direct::Direct;

use super::body::Content;
use super::ipc;
use super::link::{Answer, Call, Link};
use super::wire::{
    ClearBody, Cleared, CloseBody, ClosedAnswer, ENDED, FRESH_FROM, FindBody, FoundAnswer, GetBody, LEASE,
    NamesAnswer, PlacedAnswer, PutAnswer, PutQuery, ResetAnswer, SampleBody, TagsBody, TakeBody, VersionBody,
};
use crate::partition::{Hold, Labels};
use crate::{
    ClosedGroup, KeyedRow, Lease, PartitionSpec, PartitionStats, Put, Queue, QueueError, QueueInspection,
    RowHandle, Take, Unfinished,
};

/// One request waits at the server no longer than this; then it is asked again, so that a connection that died silently
/// is noticed.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// After rows that were lost on their way.
const RETRY: Duration = Duration::from_millis(50);

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

/// A queue of a server. Clones use the same connections.
#[derive(Debug, Clone)]
pub struct RemoteQueue {
    link: Arc<Link>,
    direct: Arc<Direct>,
}

fn path(partition: &str, what: &str) -> String {
    let name: String = url::form_urlencoded::byte_serialize(partition.as_bytes()).collect();
    format!("/v1/partitions/{}{what}", name.replace('+', "%20"))
}

fn query(value: &impl serde::Serialize) -> Result<String, QueueError> {
    serde_urlencoded::to_string(value).map_err(|error| QueueError::BadRequest { reason: error.to_string() })
}

impl RemoteQueue {
    /// Names a server; nothing is sent yet. Needs to be called inside a tokio runtime.
    pub fn new(config: RemoteConfig) -> Result<Self, QueueError> {
        Ok(Self { link: Arc::new(Link::new(config)?), direct: Arc::default() })
    }

    /// Waits until leases that were dropped have been given back.
    pub async fn close(&self) {
        self.link.tasks.close();
        self.link.tasks.wait().await;
    }

    /// Reads taken rows as they arrive.
    async fn rows(
        &self,
        mut answer: Answer<'_>,
    ) -> Result<(Vec<RowHandle>, Labels, Vec<RecordBatch>), QueueError> {
        let mut decoder = ipc::Decoder::new();
        let (mut rows, mut labels, mut batches) = (Vec::new(), Labels::default(), Vec::new());
        while let Some(bytes) = answer.chunk().await? {
            decoder.feed(bytes, |batch| {
                let labelled = ipc::split_labels(batch)?;
                rows.extend(labelled.rows);
                labels.append(labelled.labels);
                batches.push(labelled.batch);
                Ok(())
            })?;
        }
        decoder.finish()?;
        answer.done().await;
        Ok((rows, labels, batches))
    }

    /// Asks once.
    async fn take_once(
        &self,
        partition: &str,
        take: &Take,
        wait: Option<Duration>,
        give_up: Instant,
    ) -> Result<Taken, QueueError> {
        // A take whose answer is lost gives its rows back.
        let placed = !self.live_units().await.is_empty();
        let body = TakeBody { placed, ..TakeBody::new(take, wait) };
        let call = Call::json(path(partition, "/take"), &body)?.repeatable();
        let call = Call { wait: wait.unwrap_or_default(), give_up: Some(give_up), ..call };
        let answer = match self.link.send(call).await {
            Err(QueueError::Deadline { .. }) if wait.is_some() => return Ok(Taken::Nothing),
            answer => answer?,
        };
        if answer.status == StatusCode::NO_CONTENT {
            let ended = answer.headers.get(ENDED).is_some_and(|value| value == "true");
            answer.bytes().await?;
            return Ok(if ended { Taken::Ended } else { Taken::Nothing });
        }
        let text =
            |name: &str| answer.headers.get(name).and_then(|text| text.to_str().ok()).map(str::to_owned);
        let fresh_from = text(FRESH_FROM).and_then(|version| version.parse().ok()).unwrap_or_default();
        let name = text(LEASE);
        let name = name.ok_or_else(|| self.link.unreachable("rows without a lease"))?;
        let is_placed = answer.headers.get("content-type").is_some_and(|kind| kind == "application/json");
        let id = name.split('-').next().and_then(|id| u64::from_str_radix(id, 16).ok()).unwrap_or_default();
        let hold = Held { link: Arc::clone(&self.link), path: path(partition, &format!("/leases/{name}")) };
        if !is_placed {
            let (rows, labels, batches) = self.rows(answer).await?;
            let mut lease = Lease::new(Box::new(hold), id, rows, labels, batches);
            lease.fresh_from = fresh_from;
            return Ok(Taken::Lease(lease));
        }
        // Made first: it gives the rows back if they cannot be fetched.
        let mut lease = Lease::new(Box::new(hold), id, Vec::new(), Labels::default(), Vec::new());
        lease.fresh_from = fresh_from;
        let bytes = answer.bytes().await?;
        let placed: PlacedAnswer = serde_json::from_slice(&bytes)
            .map_err(|error| self.link.unreachable(format!("an answer that is not its own: {error}")))?;
        let PlacedAnswer { rows, groups, policy_versions, keys, tags, stretches } = placed;
        match self.fetch(stretches, take.columns.as_deref()).await {
            Ok(batches) => {
                let labels = Labels { groups, policy_versions, keys, tags };
                Ok(Taken::Lease(lease.with_rows(rows, labels, batches)))
            }
            Err(error) => {
                lease.nack().await?;
                Err(error)
            }
        }
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
        async move { self.link.done(Call::json("/v1/partitions", &spec)?.repeatable()).await }.boxed()
    }

    fn put<'a>(
        &'a self,
        partition: &'a str,
        put: Put,
        wait: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<RowHandle>, QueueError>> {
        async move {
            let deadline = wait.map(|wait| Instant::now() + wait);
            // With a token a repetition is harmless.
            let token = put.token.clone().unwrap_or_else(ipc::fresh_token);
            let mut what = PutQuery {
                group: put.group.clone(),
                group_size: Some(put.group_size),
                sample_is_last: put.sample.as_ref().is_some_and(|part| part.is_last),
                sample: put.sample.as_ref().map(|part| part.uid.clone()),
                policy_version: put.policy_version,
                priority: put.priority,
                token: Some(token),
                record: put.record.clone(),
                wait_ms: 0,
            };
            let rows = ipc::put_with_labels(&put)?;
            let mut upload = None;
            loop {
                let left = deadline.map_or(WAIT_MAX, |deadline| deadline - Instant::now());
                let wait = left.min(WAIT_MAX);
                what.wait_ms = wait.as_millis() as u64;
                let mut answer = self.put_direct(partition, &put, &what, &mut upload).await;
                if let Ok(None) = answer {
                    let to = path(partition, &format!("/rows?{}", query(&what)?));
                    let call = Call { wait, ..Call::post(to, Content::Rows(rows.clone())).repeatable() };
                    answer = self.link.json::<PutAnswer>(call).await.map(Some);
                }
                match answer {
                    Ok(Some(answer)) => return Ok(answer.rows),
                    Ok(None) => {}
                    Err(QueueError::Deadline { .. }) if left > wait || deadline.is_none() => {}
                    Err(error) => {
                        self.take_back(upload, &error).await;
                        return Err(error);
                    }
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
            let body = Content::Rows(vec![ipc::with_handles(rows, &batch)?]);
            let to = path(partition, &format!("/columns?token={}", ipc::fresh_token()));
            self.link.done(Call::post(to, body).repeatable()).await
        }
        .boxed()
    }

    fn take<'a>(
        &'a self,
        partition: &'a str,
        take: &'a Take,
    ) -> BoxFuture<'a, Result<Option<Lease>, QueueError>> {
        async move {
            let mut give_up = Instant::now() + self.link.config.patience;
            loop {
                let left = take.deadline.map(|deadline| deadline - Instant::now());
                let wait = left.map(|left| left.min(WAIT_MAX));
                let taken = match self.take_once(partition, take, wait, give_up).await {
                    // The rows were on their way: they are given again.
                    Err(QueueError::Unreachable { .. } | QueueError::UnitAway { .. })
                        if Instant::now() < give_up =>
                    {
                        tokio::time::sleep(RETRY).await;
                        continue;
                    }
                    taken => taken?,
                };
                match taken {
                    Taken::Lease(lease) => return Ok(Some(lease)),
                    Taken::Ended => return Ok(None),
                    Taken::Nothing if left.is_none() => return Ok(None),
                    // It answered: from here on it is patience anew.
                    Taken::Nothing if left > wait => give_up = Instant::now() + self.link.config.patience,
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

    fn get<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Result<Vec<RecordBatch>, QueueError>> {
        async move {
            let body = GetBody { rows: rows.to_vec(), columns: columns.map(<[String]>::to_vec) };
            let mut answer = self.link.send(Call::json(path(partition, "/get"), &body)?.repeatable()).await?;
            let mut decoder = ipc::Decoder::new();
            let mut batches = Vec::new();
            while let Some(bytes) = answer.chunk().await? {
                decoder.feed(bytes, |batch| {
                    batches.push(batch);
                    Ok(())
                })?;
            }
            decoder.finish()?;
            answer.done().await;
            Ok(batches)
        }
        .boxed()
    }

    fn find<'a>(
        &'a self,
        partition: &'a str,
        keys: Option<&'a [String]>,
    ) -> BoxFuture<'a, Result<Vec<KeyedRow>, QueueError>> {
        async move {
            let body = FindBody { keys: keys.map(<[String]>::to_vec) };
            let call = Call::json(path(partition, "/find"), &body)?.repeatable();
            Ok(self.link.json::<FoundAnswer>(call).await?.rows)
        }
        .boxed()
    }

    fn set_tags<'a>(
        &'a self,
        partition: &'a str,
        tags: Vec<(RowHandle, Value)>,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        async move {
            self.link.done(Call::json(path(partition, "/tags"), &TagsBody { tags })?.repeatable()).await
        }
        .boxed()
    }

    fn reset<'a>(&'a self, partition: &'a str, task: &'a str) -> BoxFuture<'a, Result<usize, QueueError>> {
        async move {
            let task: String = url::form_urlencoded::byte_serialize(task.as_bytes()).collect();
            let to = path(partition, &format!("/tasks/{}/reset", task.replace('+', "%20")));
            let answer: ResetAnswer = self.link.json(Call::post(to, Content::Nothing).repeatable()).await?;
            Ok(answer.rows)
        }
        .boxed()
    }

    fn announce<'a>(
        &'a self,
        partition: &'a str,
        policy_version: u64,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        async move {
            let body = VersionBody { policy_version };
            self.link.done(Call::json(path(partition, "/version"), &body)?.repeatable()).await
        }
        .boxed()
    }

    fn clear<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        async move {
            let body = ClearBody { rows: rows.to_vec(), all: false, token: Some(ipc::fresh_token()) };
            self.link.done(Call::json(path(partition, "/clear"), &body)?.repeatable()).await
        }
        .boxed()
    }

    fn clear_all<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<usize, QueueError>> {
        async move {
            let body = ClearBody { rows: Vec::new(), all: true, token: Some(ipc::fresh_token()) };
            let call = Call::json(path(partition, "/clear"), &body)?.repeatable();
            Ok(self.link.json::<Cleared>(call).await?.rows)
        }
        .boxed()
    }

    fn end_sample<'a>(
        &'a self,
        partition: &'a str,
        sample: &'a str,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        async move {
            let body = SampleBody { sample: sample.to_owned() };
            self.link.done(Call::json(path(partition, "/samples/end"), &body)?.repeatable()).await
        }
        .boxed()
    }

    fn close_groups<'a>(
        &'a self,
        partition: &'a str,
        older_than: Duration,
        unfinished: Unfinished,
    ) -> BoxFuture<'a, Result<Vec<ClosedGroup>, QueueError>> {
        async move {
            let body = CloseBody { older_than_ms: older_than.as_millis() as u64, unfinished };
            let call = Call::json(path(partition, "/groups/close"), &body)?.repeatable();
            Ok(self.link.json::<ClosedAnswer>(call).await?.groups)
        }
        .boxed()
    }

    fn end_of_puts<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<(), QueueError>> {
        async move { self.link.done(Call::post(path(partition, "/end"), Content::Nothing).repeatable()).await }.boxed()
    }

    fn status<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<PartitionStats, QueueError>> {
        async move { self.link.json(Call::get(path(partition, ""))).await }.boxed()
    }

    fn status_after<'a>(
        &'a self,
        partition: &'a str,
        revision: u64,
        wait: Duration,
    ) -> BoxFuture<'a, Result<PartitionStats, QueueError>> {
        async move {
            let wait = wait.min(WAIT_MAX);
            let to = format!("?after={revision}&wait_ms={}", wait.as_millis());
            self.link.json(Call { wait, ..Call::get(path(partition, &to)) }).await
        }
        .boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<String>, QueueError>> {
        async move { Ok(self.link.json::<NamesAnswer>(Call::get("/v1/partitions")).await?.partitions) }
            .boxed()
    }

    fn inspect(&self) -> BoxFuture<'_, Result<QueueInspection, QueueError>> {
        self.link.json(Call::get("/v1/inspect")).boxed()
    }
}
