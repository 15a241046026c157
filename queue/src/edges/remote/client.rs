//! The client: the queue's calls over HTTP.

mod direct;
mod maintenance;
mod taking;
mod units;

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::time::Instant;

use direct::Direct;

use super::body::Content;
use super::config::RemoteConfig;
use super::link::{Call, Link};
use crate::api::Transport;
use crate::edges::wire::ipc;
use crate::edges::wire::{
    ClearBody, Cleared, CloseBody, ClosedAnswer, FindBody, FoundAnswer, LocalAnswer, LocalPlace, NamesAnswer,
    PutAnswer, PutQuery, ResetAnswer, SampleBody, TagsBody, VersionBody,
};
use crate::put::check_counts;
use crate::{
    ClosedGroup, KeyedRow, Lease, PartitionSpec, PartitionStats, Put, Queue, QueueError, QueueInspection,
    RowHandle, Take, Unfinished,
};
use taking::{Patience, Taken};

/// The maximum time that one request waits at the server. After that, the client sends the request again, so
/// that it detects a connection that died silently.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// The pause before a take is repeated because its rows were lost in transit.
const RETRY: Duration = Duration::from_millis(50);
/// A put may be answered up to this much later than its deadline, because a put that finds room at the last
/// moment still has to be written.
const WRITE_MAX: Duration = Duration::from_secs(4);

/// The maximum time to wait for a server to name its socket.
const LOCATE_MAX: Duration = Duration::from_secs(2);

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
    /// Makes a client for a server. Nothing is sent yet. Must be called in a tokio runtime.
    pub fn new(config: RemoteConfig) -> Result<Self, QueueError> {
        Ok(Self { link: Arc::new(Link::new(config)?), direct: Arc::default() })
    }

    /// Makes a client for a storage unit. Its calls fail immediately if the unit does not answer. The client
    /// does not ask the unit for further units.
    pub(crate) fn of_unit(url: &str, token: Option<String>) -> Result<Self, QueueError> {
        let config = RemoteConfig { token, patience: Duration::ZERO, ..RemoteConfig::new(url) };
        Ok(Self { direct: Arc::new(Direct::none()), ..Self::new(config)? })
    }

    /// Asks the server, once, for its socket on its own host.
    pub(crate) async fn local_place(&self) -> Result<Option<LocalPlace>, QueueError> {
        let now = Instant::now();
        let call = Call { give_up: Some(now), deadline: Some(now + LOCATE_MAX), ..Call::get("/v1/local") };
        Ok(self.link.json::<LocalAnswer>(call).await?.place)
    }

    /// Waits until dropped leases have been given back.
    pub async fn close(&self) {
        self.link.tasks.close();
        self.link.tasks.wait().await;
    }
}

impl Queue for RemoteQueue {
    fn transport(&self) -> Option<Transport> {
        Some(Transport::Http)
    }

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
            let answered_by = deadline.map(|deadline| deadline + WRITE_MAX);
            // The record is sent with the rows, because it may be too long for a query.
            let mut what = PutQuery::new(&put);
            let rows = ipc::put_with_record(&put)?;
            let mut upload = None;
            loop {
                let left = deadline.map_or(WAIT_MAX, |deadline| deadline - Instant::now());
                let wait = left.min(WAIT_MAX);
                what.wait_ms = wait.as_millis() as u64;
                let mut answer = self.put_direct(partition, &put, &what, &mut upload, answered_by).await;
                if let Ok(None) = answer {
                    let to = path(partition, &format!("/rows?{}", query(&what)?));
                    let call = Call::post(to, Content::Rows(rows.clone())).repeatable();
                    let call = Call { wait, deadline: answered_by, ..call };
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
            check_counts(rows, batch.num_rows())?;
            let token = ipc::fresh_token();
            if self.write_columns_direct(partition, rows, &batch, &token).await? {
                return Ok(());
            }
            let body = Content::Rows(vec![ipc::with_handles(rows, &batch)?]);
            let to = path(partition, &format!("/columns?token={token}"));
            self.link.done(Call::post(to, body).repeatable()).await
        }
        .boxed()
    }

    /// The rows are sent through the controller, which counts their tokens.
    fn overwrite_columns<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        batch: RecordBatch,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        async move {
            check_counts(rows, batch.num_rows())?;
            let body = Content::Rows(vec![ipc::with_handles(rows, &batch)?]);
            let to = path(partition, &format!("/columns?overwrite=true&token={}", ipc::fresh_token()));
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
            let now = Instant::now();
            let deadline = take.deadline.map(|deadline| deadline.max(now));
            let mut patience = Patience { give_up: now + self.link.config.patience, deadline };
            loop {
                let left = take.deadline.map(|deadline| deadline - Instant::now());
                let wait = left.map(|left| left.min(WAIT_MAX));
                let taken = match self.take_once(partition, take, wait, patience).await {
                    // The rows were lost in transit. The server delivers them again.
                    Err(QueueError::Unreachable { .. } | QueueError::UnitAway { .. })
                        if Instant::now()
                            < deadline.map_or(patience.give_up, |at| at.min(patience.give_up)) =>
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
                    // The server answered, so the time limit for its next answer starts again.
                    Taken::Nothing if left > wait => {
                        patience.give_up = Instant::now() + self.link.config.patience;
                    }
                    Taken::Nothing => {
                        return Err(QueueError::Deadline {
                            what: "ready group".into(),
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
        self.rows_of(partition, rows, columns).boxed()
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
            let body = ClearBody {
                rows: rows.to_vec(),
                all: false,
                skip_gone: false,
                token: Some(ipc::fresh_token()),
            };
            self.link.done(Call::json(path(partition, "/clear"), &body)?.repeatable()).await
        }
        .boxed()
    }

    fn clear_all<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<usize, QueueError>> {
        async move {
            let body =
                ClearBody { rows: Vec::new(), all: true, skip_gone: false, token: Some(ipc::fresh_token()) };
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
            let deadline = Some(Instant::now() + wait);
            self.link.json(Call { wait, deadline, ..Call::get(path(partition, &to)) }).await
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
