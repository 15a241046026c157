//! The client of a queue's server on the same host.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::time::Instant;

use super::connection::{Connection, Failure, Reply, TakenRegions};
use super::held::Held;
use super::link::{Attempts, Link, LocalConfig, Locate, Repeat};
use super::load::{Load, load};
use super::parcel::unpack;
use super::protocol::{Ask, LeaseName, RowsPlace, TakeAnswer};
use crate::api::Transport;
use crate::batches::{common_schema, conform};
use crate::edges::wire::ipc;
use crate::edges::wire::{PutAnswer, PutQuery, TakeBody};
use crate::lease::Labels;
use crate::put::check_counts;
use crate::tasks;
use crate::{
    ClosedGroup, KeyedRow, Lease, PartitionSpec, PartitionStats, Put, Queue, QueueError, QueueInspection,
    RowHandle, Take, Unfinished,
};

/// The maximum time that one call waits at the server. After that, the client calls again, so that it detects
/// a server that hangs.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// A put may be answered up to this much later than its deadline, because a put that finds room at the last
/// moment still has to be written.
const WRITE_MAX: Duration = Duration::from_secs(4);
/// A lease with at most this many bytes is read on the caller's task. A larger lease is read on the blocking
/// pool.
const READ_INLINE_BYTES_MAX: usize = 1 << 20;

/// A queue of a server on this host, reached through a socket and shared memory. Clones use the same
/// connection.
#[derive(Debug, Clone)]
pub struct LocalQueue {
    link: Arc<Link>,
}

impl LocalQueue {
    /// Makes a client for a server's socket. Nothing is sent yet. Must be called in a tokio runtime.
    pub fn new(config: LocalConfig) -> Result<Self, QueueError> {
        Ok(Self { link: Arc::new(Link::new(config)?) })
    }

    /// Makes a client that asks a server for its socket whenever it connects.
    pub(crate) fn of_server(
        server: Arc<dyn Locate>,
        url: String,
        patience: Duration,
    ) -> Result<Self, QueueError> {
        Ok(Self { link: Arc::new(Link::of_server(server, url, patience)?) })
    }

    /// Connects now, in a single attempt.
    pub(crate) async fn connect(&self) -> std::io::Result<()> {
        self.link.connected().await.map(drop)
    }

    /// Repeats a call that carries rows until the server answers. Rows that were already loaded are loaded
    /// again only if the connection has changed.
    async fn put_rows(
        &self,
        batch: &RecordBatch,
        deadline: Option<Instant>,
        ask: impl Fn(RowsPlace, Duration) -> Ask,
        mut attempts: Attempts<'_>,
    ) -> Result<Reply, QueueError> {
        let mut loaded: Option<Load> = None;
        loop {
            let connection = attempts.connection().await?;
            let load = match loaded.take().filter(|load| Arc::ptr_eq(&load.connection, &connection)) {
                Some(load) => load,
                None => match load(&connection, batch, attempts.limit(Duration::ZERO)).await {
                    Ok(load) => load,
                    // A repeated request for room is harmless, even if the server has already lent a region.
                    Err(failure) => {
                        attempts.again(failure, Repeat::Safe).await?;
                        continue;
                    }
                },
            };
            let left = deadline.map_or(WAIT_MAX, |deadline| deadline - Instant::now());
            let wait = left.min(WAIT_MAX);
            let limit = attempts.limit(wait);
            let put = connection.call(connection.number(), ask(load.place, wait), &load.tail, limit);
            match put.await {
                Ok(reply) => {
                    load.done();
                    return Ok(reply);
                }
                Err(Failure::Refused(QueueError::Deadline { .. })) if left > wait || deadline.is_none() => {
                    attempts.answered();
                }
                // Each of these calls has a token, which makes a repetition harmless.
                Err(failure) => attempts.again(failure, Repeat::Safe).await?,
            }
            loaded = Some(load);
        }
    }

    async fn send_columns(
        &self,
        partition: &str,
        rows: &[RowHandle],
        batch: RecordBatch,
        overwrite: bool,
    ) -> Result<(), QueueError> {
        check_counts(rows, batch.num_rows())?;
        let batch = ipc::with_handles(rows, &batch)?;
        let token = ipc::fresh_token();
        let ask = |rows, _| Ask::WriteColumns {
            partition: partition.to_owned(),
            rows,
            token: token.clone(),
            overwrite,
        };
        let now = Some(Instant::now());
        self.put_rows(&batch, now, ask, self.link.attempts(None)).await.map(drop)
    }

    async fn take_once(
        &self,
        partition: &str,
        take: &Take,
        wait: Option<Duration>,
        deadline: Option<Instant>,
    ) -> Result<Taken, QueueError> {
        let mut attempts = self.link.attempts(deadline);
        loop {
            let connection = attempts.connection().await?;
            let id = connection.number();
            let ask = Ask::Take { partition: partition.to_owned(), take: TakeBody::new(take, wait) };
            let limit = attempts.limit(wait.unwrap_or_default());
            let taken = match connection.call(id, ask, &[], limit).await {
                Ok(reply) => self.lease(&connection, id, partition, take, reply).await,
                Err(Failure::Refused(QueueError::Deadline { .. })) if wait.is_some() => {
                    return Ok(Taken::Nothing);
                }
                Err(failure) => Err(failure),
            };
            match taken {
                Ok(taken) => return Ok(taken),
                // If the answer to a take is lost, the server takes the rows back.
                Err(failure) => attempts.again(failure, Repeat::Safe).await?,
            }
        }
    }

    /// Returns the lease that an answer describes, with its rows.
    async fn lease(
        &self,
        connection: &Arc<Connection>,
        id: u64,
        partition: &str,
        take: &Take,
        reply: Reply,
    ) -> Result<Taken, Failure> {
        let (life, lease, fresh_from, parcel) = match reply.body()? {
            TakeAnswer::Nothing { ended: true } => return Ok(Taken::Ended),
            TakeAnswer::Nothing { ended: false } => return Ok(Taken::Nothing),
            TakeAnswer::Rows { life, lease, fresh_from, parcel } => (life, lease, fresh_from, parcel),
        };
        let member = take.share.map_or(0, |share| share.member);
        let name = LeaseName { partition: partition.to_owned(), life, lease, member, take: id };
        let hold = Box::new(Held { link: Arc::clone(&self.link), connection: Arc::clone(connection), name });
        let mut given_back = Lease::new(hold, lease, Vec::new(), Labels::default(), Vec::new());
        given_back.fresh_from = fresh_from;
        let regions = TakenRegions::new(Arc::clone(connection), id, parcel.has_regions());
        let bytes = parcel.bytes();
        let tail = reply.tail;
        let read = move || {
            let (labels, batches) = unpack(parcel, &tail, &|number| regions.buffer(number))?;
            let schema = common_schema(&batches);
            let batches = batches.into_iter().map(|batch| match batch.schema_ref() == &schema {
                true => Ok(batch),
                false => conform(&batch, &schema),
            });
            Ok((labels, batches.collect::<Result<Vec<_>, QueueError>>()?))
        };
        let read: Result<_, QueueError> = if bytes > READ_INLINE_BYTES_MAX {
            let reading = tasks::blocking("local read", read);
            reading.await.map_err(|error| QueueError::Arrow { reason: error.to_string() })?
        } else {
            read()
        };
        let (labels, batches) = read?;
        Ok(Taken::Lease(given_back.with_rows(labels.rows, labels.labels, batches)))
    }
}

enum Taken {
    Lease(Lease),
    Nothing,
    Ended,
}

impl Queue for LocalQueue {
    fn transport(&self) -> Option<Transport> {
        Some(Transport::SharedMemory)
    }

    fn declare(&self, spec: PartitionSpec) -> BoxFuture<'_, Result<(), QueueError>> {
        async move { self.link.ask(|| Ask::Declare(spec.clone()), Repeat::Safe).await.map(drop) }.boxed()
    }

    fn put<'a>(
        &'a self,
        partition: &'a str,
        put: Put,
        wait: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<RowHandle>, QueueError>> {
        async move {
            let deadline = wait.map(|wait| Instant::now() + wait);
            let rows = ipc::one(&ipc::put_with_labels(&put)?)?;
            let query = PutQuery::new(&put);
            let query = PutQuery { record: put.record, ..query };
            let ask = |rows, wait: Duration| Ask::Put {
                partition: partition.to_owned(),
                query: PutQuery { wait_ms: wait.as_millis() as u64, ..query.clone() },
                rows,
            };
            let attempts = self.link.attempts(deadline.map(|deadline| deadline + WRITE_MAX));
            let reply = self.put_rows(&rows, deadline, ask, attempts).await?;
            self.link.said(reply.body()).map(|PutAnswer { rows }| rows)
        }
        .boxed()
    }

    fn write_columns<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        batch: RecordBatch,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        self.send_columns(partition, rows, batch, false).boxed()
    }

    fn overwrite_columns<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
        batch: RecordBatch,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        self.send_columns(partition, rows, batch, true).boxed()
    }

    fn take<'a>(
        &'a self,
        partition: &'a str,
        take: &'a Take,
    ) -> BoxFuture<'a, Result<Option<Lease>, QueueError>> {
        async move {
            let now = Instant::now();
            let deadline = take.deadline.map(|deadline| deadline.max(now));
            loop {
                let left = take.deadline.map(|deadline| deadline - Instant::now());
                let wait = left.map(|left| left.min(WAIT_MAX));
                match self.take_once(partition, take, wait, deadline).await? {
                    Taken::Lease(lease) => return Ok(Some(lease)),
                    Taken::Ended => return Ok(None),
                    Taken::Nothing if left.is_none() => return Ok(None),
                    Taken::Nothing if left > wait => {}
                    Taken::Nothing => {
                        return Err(QueueError::Deadline {
                            what: "ready group".into(),
                            partition: partition.to_owned(),
                            state: format!("at {}", self.link.url),
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
        let ask = move || Ask::Get {
            partition: partition.to_owned(),
            rows: rows.to_vec(),
            columns: columns.map(<[String]>::to_vec),
        };
        async move {
            let reply = self.link.ask(ask, Repeat::Safe).await?;
            ipc::decode_batches(reply.tail.into(), usize::MAX)
        }
        .boxed()
    }

    fn find<'a>(
        &'a self,
        partition: &'a str,
        keys: Option<&'a [String]>,
    ) -> BoxFuture<'a, Result<Vec<KeyedRow>, QueueError>> {
        let keys = move || keys.map(<[String]>::to_vec);
        self.link.ask_for(move || Ask::Find { partition: partition.to_owned(), keys: keys() }).boxed()
    }

    fn set_tags<'a>(
        &'a self,
        partition: &'a str,
        tags: Vec<(RowHandle, Value)>,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        self.link
            .ask_for(move || Ask::SetTags { partition: partition.to_owned(), tags: tags.clone() })
            .boxed()
    }

    fn reset<'a>(&'a self, partition: &'a str, task: &'a str) -> BoxFuture<'a, Result<usize, QueueError>> {
        let ask = move || Ask::Reset { partition: partition.to_owned(), task: task.to_owned() };
        self.link.ask_for(ask).boxed()
    }

    fn announce<'a>(
        &'a self,
        partition: &'a str,
        policy_version: u64,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        let ask = move || Ask::Announce { partition: partition.to_owned(), policy_version };
        self.link.ask_for(ask).boxed()
    }

    fn clear<'a>(
        &'a self,
        partition: &'a str,
        rows: &'a [RowHandle],
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        let token = ipc::fresh_token();
        let ask =
            move || Ask::Clear { partition: partition.to_owned(), rows: rows.to_vec(), token: token.clone() };
        async move { self.link.ask(ask, Repeat::Safe).await.map(drop) }.boxed()
    }

    fn clear_all<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<usize, QueueError>> {
        let token = ipc::fresh_token();
        let ask = move || Ask::ClearAll { partition: partition.to_owned(), token: token.clone() };
        self.link.ask_for(ask).boxed()
    }

    fn end_sample<'a>(
        &'a self,
        partition: &'a str,
        sample: &'a str,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        let ask = move || Ask::EndSample { partition: partition.to_owned(), sample: sample.to_owned() };
        self.link.ask_for(ask).boxed()
    }

    fn close_groups<'a>(
        &'a self,
        partition: &'a str,
        older_than: Duration,
        unfinished: Unfinished,
    ) -> BoxFuture<'a, Result<Vec<ClosedGroup>, QueueError>> {
        let older_than_ms = older_than.as_millis() as u64;
        let ask = move || Ask::CloseGroups { partition: partition.to_owned(), older_than_ms, unfinished };
        self.link.ask_for(ask).boxed()
    }

    fn end_of_puts<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<(), QueueError>> {
        self.link.ask_for(|| Ask::EndOfPuts { partition: partition.to_owned() }).boxed()
    }

    fn status<'a>(&'a self, partition: &'a str) -> BoxFuture<'a, Result<PartitionStats, QueueError>> {
        self.link.ask_for(|| Ask::Status { partition: partition.to_owned() }).boxed()
    }

    fn status_after<'a>(
        &'a self,
        partition: &'a str,
        revision: u64,
        wait: Duration,
    ) -> BoxFuture<'a, Result<PartitionStats, QueueError>> {
        let wait = wait.min(WAIT_MAX);
        let wait_ms = wait.as_millis() as u64;
        let ask = move || Ask::StatusAfter { partition: partition.to_owned(), revision, wait_ms };
        async move {
            let reply = self.link.ask_by(Some(Instant::now() + wait), ask, Repeat::Safe).await?;
            self.link.said(reply.body())
        }
        .boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<String>, QueueError>> {
        self.link.ask_for(|| Ask::Names).boxed()
    }

    fn inspect(&self) -> BoxFuture<'_, Result<QueueInspection, QueueError>> {
        self.link.ask_for(|| Ask::Inspect).boxed()
    }
}
