//! Taking: the request, the rows as they arrive, and the lease that holds them.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::{HeaderMap, StatusCode};
use tokio::time::Instant;

use super::{Call, Content, RemoteQueue, path};
use crate::edges::remote::link::{Link, Response, Undo};
use crate::edges::wire::ipc;
use crate::edges::wire::{ENDED, FRESH_FROM, LEASE, PlacedAnswer, TakeBody};
use crate::lease::{Hold, Labels};
use crate::{Lease, QueueError, RowHandle, Take};

impl RemoteQueue {
    /// Reads taken rows as they arrive.
    async fn rows(
        &self,
        mut answer: Response<'_>,
    ) -> Result<(Vec<RowHandle>, Labels, Vec<RecordBatch>), QueueError> {
        let mut decoder = ipc::Decoder::into_blocks(&self.link.blocks);
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

    /// Asks the server for rows once, and reads them.
    pub(super) async fn take_once(
        &self,
        partition: &str,
        take: &Take,
        wait: Option<Duration>,
        patience: Patience,
    ) -> Result<Taken, QueueError> {
        let placed = !self.live_units(patience.deadline).await.is_empty();
        match self.take_from(partition, take, wait, patience, placed).await {
            // The controller reads the rows itself and frees the damaged rows as lost. Otherwise every later
            // take would get the damaged rows again.
            Err(QueueError::Corrupt { .. }) if placed => {
                self.take_from(partition, take, wait, patience, false).await
            }
            taken => taken,
        }
    }

    /// Asks the server for rows, or if `placed`, for the places of rows on storage units.
    async fn take_from(
        &self,
        partition: &str,
        take: &Take,
        wait: Option<Duration>,
        patience: Patience,
        placed: bool,
    ) -> Result<Taken, QueueError> {
        // The call may be repeated: the rows of an answer that was lost are given back.
        let body = TakeBody { placed, ..TakeBody::new(take, wait) };
        let call = Call::json(path(partition, "/take"), &body)?.repeatable();
        let Patience { give_up, deadline } = patience;
        let leases = path(partition, "/leases/");
        let undo: Undo = Arc::new(move |head| Some(give_back(&format!("{leases}{}", lease_name(head)?))));
        let wait_max = wait.unwrap_or_default();
        let call = Call { wait: wait_max, give_up: Some(give_up), deadline, undo: Some(undo), ..call };
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
        let name = lease_name(&answer.headers);
        let name = name.ok_or_else(|| self.link.unreachable("rows without a lease"))?;
        let is_placed = answer.headers.get("content-type").is_some_and(|kind| kind == "application/json");
        let id = name.split('-').next().and_then(|id| u64::from_str_radix(id, 16).ok()).unwrap_or_default();
        let hold = Held { link: Arc::clone(&self.link), path: path(partition, &format!("/leases/{name}")) };
        // The lease is created before its rows arrive. If they do not arrive, dropping the lease gives them
        // back.
        let mut lease = Lease::new(Box::new(hold), id, Vec::new(), Labels::default(), Vec::new());
        lease.fresh_from = fresh_from;
        if !is_placed {
            let (rows, labels, batches) = self.rows(answer).await?;
            return Ok(Taken::Lease(lease.with_rows(rows, labels, batches)));
        }
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

/// The result of a take.
pub(super) enum Taken {
    Lease(Lease),
    Nothing,
    Ended,
}

/// The time for which a take is tried.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// The time until which a server that does not answer is tried.
    pub(super) give_up: Instant,
    /// The caller's deadline, which applies whatever the server does.
    pub(super) deadline: Option<Instant>,
}

/// The name of the lease in the head of an answer.
fn lease_name(head: &HeaderMap) -> Option<String> {
    head.get(LEASE).and_then(|text| text.to_str().ok()).map(str::to_owned)
}

/// The call that makes the rows of a lease ready again.
fn give_back(lease: &str) -> Call {
    Call::post(format!("{lease}/nack"), Content::Nothing).repeatable()
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
        self.link.done(give_back(&self.path)).boxed()
    }

    fn renew(&self) -> BoxFuture<'_, Result<(), QueueError>> {
        self.link.done(self.call("renew")).boxed()
    }

    fn abandon(&self) {
        let (link, call) = (Arc::clone(&self.link), give_back(&self.path));
        let tasks = link.tasks.clone();
        let runtime = link.runtime.clone();
        let giving_back = async move {
            // If this fails, the rows become ready again when the lease expires.
            let _ = link.done(call).await;
        };
        crate::tasks::spawn_on(&tasks, "lease nack", giving_back, &runtime);
    }
}
