//! The HTTP server of a queue.

mod bodies;
mod control;
mod maintenance;
mod naming;
mod sending;
mod units;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use rolldock_listener::{Client, ConnectionLimits, Connections, HalfClosed, RenderMetrics};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::edges::wire::ipc;
use crate::edges::wire::{
    self, ARROW_STREAM, ClearBody, Cleared, ColumnsQuery, ENDED, ErrorBody, FRESH_FROM, LEASE, LocalAnswer,
    LocalPlace, NamesAnswer, PlacedAnswer, PutAnswer, PutQuery, TakeBody,
};
use crate::lease::lease_name;
use crate::units::UnitClient;
use crate::{Lease, Partition, PartitionSpec, Put, QueueError, RemoteQueue, Take, TransferQueue};
use bodies::{json_of, rows_of};
use naming::{Path, Query};
use sending::rows_body;
use units::stretches;

const OPENAPI: &str = include_str!("../../../../openapi.json");

/// The configuration of a server.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// The token that clients must send as `Authorization: Bearer ...`. If absent, clients need no token.
    pub token: Option<String>,
    /// The maximum size of the body of a request, in bytes.
    pub body_bytes_max: usize,
    /// The connections of clients. Servers with clones of this value share one limit.
    pub connections: Connections,
    /// The socket for processes of this host, if there is one. Clients on this host find it at `/v1/local`.
    pub local: Option<LocalPlace>,
    /// Renders the answer of `/metrics`. If absent, the server has no such path.
    pub metrics: Option<RenderMetrics>,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        let connections = Connections::new("queue", &ConnectionLimits::default());
        Self { token: None, body_bytes_max: 256 << 20, connections, local: None, metrics: None }
    }
}

struct Service {
    queue: TransferQueue,
    config: ServiceConfig,
    /// Ends the server and its waiting calls.
    end: CancellationToken,
}

type Shared = State<Arc<Service>>;
type Answer = Result<Response, Failure>;

/// Serves `queue` until `end`. Then waiting calls are told that the server is stopping, and answers that have
/// begun are finished.
///
/// Cancel-safe: a dropped call accepts no more connections.
pub async fn serve(
    queue: TransferQueue,
    listener: TcpListener,
    config: ServiceConfig,
    end: CancellationToken,
) -> std::io::Result<()> {
    let upkeep = queue.clone();
    let (served, ()) = tokio::join!(answer(queue, listener, config, end.clone()), upkeep.keep_up(&end));
    served
}

/// Answers requests on a second listener of a queue that [`serve`] serves. Only [`serve`] runs the upkeep.
///
/// Cancel-safe: a dropped call accepts no more connections.
pub async fn answer(
    queue: TransferQueue,
    listener: TcpListener,
    config: ServiceConfig,
    end: CancellationToken,
) -> std::io::Result<()> {
    // Units have the same token as their controller.
    let token = config.token.clone();
    let connect = move |url: &str| -> Result<Arc<dyn UnitClient>, QueueError> {
        Ok(Arc::new(RemoteQueue::of_unit(url, token.clone())?))
    };
    queue.units().set_connect(Box::new(connect));
    let connections = config.connections.clone();
    let service = Arc::new(Service { queue, config, end: end.clone() });
    rolldock_listener::serve(listener, router(service), connections, HalfClosed::Answered, end).await;
    Ok(())
}

/// The method, path and handler of each call. `openapi.json` has the same list.
fn router(service: Arc<Service>) -> Router {
    let open = Router::new()
        .route("/health", get(async || json(&serde_json::json!({ "status": "ok" }))))
        .route("/openapi.json", get(async || ([(header::CONTENT_TYPE, "application/json")], OPENAPI)));
    let guarded = Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/inspect", get(inspect))
        .route("/v1/local", get(local))
        .route("/v1/partitions", get(list).post(declare))
        .route("/v1/partitions/{partition}/rows", post(put))
        .route("/v1/partitions/{partition}/columns", post(write_columns))
        .route("/v1/partitions/{partition}/take", post(take))
        .route("/v1/partitions/{partition}/clear", post(clear))
        .route("/v1/partitions/{partition}/end", post(end_of_puts))
        .route("/v1/partitions/{partition}/leases/{lease}/ack", post(ack))
        .route("/v1/partitions/{partition}/leases/{lease}/nack", post(nack))
        .route("/v1/partitions/{partition}/leases/{lease}/renew", post(renew))
        .merge(control::routes())
        .merge(maintenance::routes())
        .merge(units::routes())
        .layer(middleware::from_fn_with_state(Arc::clone(&service), check_token));
    // Bodies are limited where they are read, so that the error is an error of the queue.
    let all = open.merge(guarded).layer(DefaultBodyLimit::disable());
    all.fallback(naming::unknown_path).method_not_allowed_fallback(naming::wrong_method).with_state(service)
}

/// An error as a response.
struct Failure(QueueError);

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(wire::status(&self.0)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, axum::Json(ErrorBody::from(self.0))).into_response()
    }
}

fn json(value: &impl Serialize) -> Response {
    axum::Json(value).into_response()
}

fn done() -> Answer {
    Ok(json(&serde_json::json!({})))
}

fn bad(reason: impl ToString) -> QueueError {
    QueueError::BadRequest { reason: reason.to_string() }
}

async fn check_token(State(service): Shared, client: Client, request: Request, next: Next) -> Response {
    let sent = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let sent = sent.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    let is_right =
        service.config.token.as_deref().is_none_or(|token| same(token.as_bytes(), sent.as_bytes()));
    if !is_right {
        return Failure(QueueError::Unauthorized).into_response();
    }
    client.authenticated().await;
    next.run(request).await
}

/// Compares two texts in a time that does not depend on how many of their bytes agree.
fn same(left: &[u8], right: &[u8]) -> bool {
    let different = left.iter().zip(right).fold(0, |different, (left, right)| different | (left ^ right));
    left.len() == right.len() && different == 0
}

async fn metrics(State(service): Shared, uri: Uri) -> Response {
    match &service.config.metrics {
        Some(metrics) => metrics.into_response(),
        None => naming::unknown_path(uri).await.into_response(),
    }
}

async fn inspect(State(service): Shared) -> Response {
    json(&service.queue.inspect())
}

async fn local(State(service): Shared) -> Response {
    // Clients read the rows of units directly.
    let has_units = !service.queue.units().inspect().is_empty();
    let place = service.config.local.clone().filter(|_| !has_units);
    json(&LocalAnswer { place })
}

async fn list(State(service): Shared) -> Response {
    let partitions = service.queue.partitions();
    let partitions = partitions.iter().map(|partition| partition.name().to_owned()).collect();
    json(&NamesAnswer { partitions })
}

async fn declare(State(service): Shared, body: Body) -> Answer {
    let spec: PartitionSpec = json_of(&service, body).await?;
    let partition = service.queue.declare(spec).await?;
    Ok(json(&partition.spec()))
}

async fn put(
    State(service): Shared,
    Path(partition): Path<String>,
    Query(query): Query<PutQuery>,
    body: Body,
) -> Answer {
    let rows_max = service.queue.rows_max_of_put(&partition)?;
    let mut batches = rows_of(&service, body, rows_max).await?;
    let record = ipc::split_record(&mut batches)?;
    let (keys, batches) = ipc::split_all(batches, ipc::split_keys)?;
    let (tags, batches) = ipc::split_all(batches, ipc::split_tags)?;
    let wait_ms = query.wait_ms;
    let put = Put { keys, tags, ..query.into_put(batches, record) };
    let deadline = Instant::now() + std::time::Duration::from_millis(wait_ms);
    let rows = until_end(&service, service.queue.put_into(&partition, put, Some(deadline))).await?;
    Ok(json(&PutAnswer { rows }))
}

async fn write_columns(
    State(service): Shared,
    Path(partition): Path<String>,
    Query(query): Query<ColumnsQuery>,
    body: Body,
) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let batches = rows_of(&service, body, partition.capacity_rows()).await?;
    let (rows, batches) = ipc::split_all(batches, ipc::split_handles)?;
    partition.write_columns_once(&rows, batches, query.overwrite, query.token).await?;
    done()
}

async fn take(State(service): Shared, client: Client, Path(partition): Path<String>, body: Body) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let body = json_of::<TakeBody>(&service, body).await?;
    let placed = body.placed;
    let take = body.into_take()?;
    let (lease, ended) = until_end(&service, take_rows(&partition, &take, placed, &client)).await?;
    let Some(mut lease) = lease else {
        let ended = if ended { "true" } else { "false" };
        return Ok((StatusCode::NO_CONTENT, [(ENDED, ended)]).into_response());
    };
    client.leases_for(partition.lease_term());
    let name = held_name(lease.id(), take.share.map_or(0, |share| share.member));
    let fresh_from = lease.fresh_from();
    let places = match placed {
        true => partition.places(lease.rows(), take.columns.as_deref(), Some(lease.id()))?,
        false => None,
    };
    let mut response = match stretches(service.queue.units(), places)? {
        Some(stretches) => {
            let answer = json(&PlacedAnswer {
                rows: lease.rows().to_vec(),
                groups: lease.groups().to_vec(),
                policy_versions: lease.policy_versions().to_vec(),
                keys: lease.keys().to_vec(),
                tags: lease.tags().to_vec(),
                stretches,
            });
            lease.detach();
            answer
        }
        None => {
            if placed {
                lease = partition.read_lease(lease, take.columns.as_deref()).await?;
            }
            streamed(rows_body(lease)?)
        }
    };
    let headers = response.headers_mut();
    headers.insert(FRESH_FROM, HeaderValue::from(fresh_from));
    if let Ok(name) = HeaderValue::from_str(&name) {
        headers.insert(LEASE, name);
    }
    Ok(response)
}

/// Takes rows. If there is no lease, the flag tells whether no more rows can become ready.
async fn take_rows(
    partition: &Partition,
    take: &Take,
    placed: bool,
    client: &Client,
) -> Result<(Option<Lease>, bool), QueueError> {
    let taking = async |take: &Take| match placed {
        true => partition.take_unread(take).await,
        false => partition.take(take).await,
    };
    let waits = take.deadline.is_some();
    tokio::select! {
        biased;
        // A waiting take ends without rows only if no more rows can become ready.
        taken = taking(take) => taken.map(|lease| (lease, waits)),
        // The client may have died, so rows that become ready later must not be leased to it. If it still
        // reads, it gets the rows that are ready now.
        () = client.closed_its_side(), if waits => {
            let at_once = Take { deadline: None, ..take.clone() };
            taking(&at_once).await.map(|lease| (lease, false))
        }
    }
}

fn streamed(body: Body) -> Response {
    ([(header::CONTENT_TYPE, ARROW_STREAM)], body).into_response()
}

/// Waits, but fails with `QueueError::Stopping` if the server ends first.
async fn until_end<T>(
    service: &Service,
    waiting: impl Future<Output = Result<T, QueueError>>,
) -> Result<T, QueueError> {
    service.end.run_until_cancelled(waiting).await.unwrap_or(Err(QueueError::Stopping))
}

fn held_name(id: u64, member: u32) -> String {
    format!("{}-{member}", lease_name(id))
}

/// The number of a lease, and the member that holds it.
fn lease_number(name: &str) -> Result<(u64, u32), QueueError> {
    let parsed = name
        .split_once('-')
        .and_then(|(id, member)| Some((u64::from_str_radix(id, 16).ok()?, member.parse().ok()?)));
    parsed.ok_or_else(|| bad(format!("lease={name} is no lease's name")))
}

async fn ack(State(service): Shared, Path((partition, lease)): Path<(String, String)>) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let (lease, member) = lease_number(&lease)?;
    partition.ack_lease(lease, member).await?;
    done()
}

async fn nack(State(service): Shared, Path((partition, lease)): Path<(String, String)>) -> Answer {
    service.queue.partition(&partition)?.nack_lease(lease_number(&lease)?.0)?;
    done()
}

async fn renew(
    State(service): Shared,
    client: Client,
    Path((partition, lease)): Path<(String, String)>,
) -> Answer {
    let partition = service.queue.partition(&partition)?;
    partition.renew_lease(lease_number(&lease)?.0)?;
    client.leases_for(partition.lease_term());
    done()
}

async fn clear(State(service): Shared, Path(partition): Path<String>, body: Body) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let ClearBody { mut rows, all, skip_gone, token } = json_of(&service, body).await?;
    if all && rows.is_empty() {
        return Ok(json(&Cleared { rows: partition.clear_all_once(token).await? }));
    }
    if all {
        return Err(bad("expected rows or all, found both").into());
    }
    if skip_gone {
        rows = partition.still_there(rows);
    }
    partition.clear_once(&rows, token).await?;
    Ok(json(&Cleared { rows: rows.len() }))
}

async fn end_of_puts(State(service): Shared, Path(partition): Path<String>) -> Answer {
    service.queue.partition(&partition)?.end().await?;
    done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same(b"secret", b"secret"));
        assert!(!same(b"secret", b"secreT"));
        assert!(!same(b"secret", b"secret2"));
        assert!(!same(b"secret", b""));
    }
}
