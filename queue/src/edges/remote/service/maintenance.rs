//! The calls for operators: snapshots, restoring, verifying, exports, and the removal of partitions.
//!
//! Long bodies are sent and received in pieces. Reading and checking the bodies blocks the thread. This work
//! therefore runs on separate threads, a few at a time. At most a few pieces wait between such a thread and
//! the connection. The faster side waits for the slower side.

use std::io::{self, Read};
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use axum::routing::{delete, get, post};
use futures::stream;
use http_body_util::BodyExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::{Answer, Path, Query, Service, Shared, done, json};
use crate::edges::export::{Export, OnDamage};
use crate::edges::wire::{ExportQuery, SNAPSHOT_STREAM, SnapshotQuery};
use crate::{ExportFormat, QueueError, Snapshot, TransferQueue};

/// The maximum number of pieces of a body that wait to be read.
const PIECES_MAX: usize = 8;
/// After an error, at most this many bytes of the rest of a body are read and dropped, so that the client can
/// read the answer.
const PASSED_OVER_MAX: usize = 64 << 20;
/// Small pieces of a snapshot are sent together until they have this many bytes.
const SENT_BYTES: usize = 256 << 10;

/// The method, path and handler of each call. `openapi.json` has the same list.
pub(super) fn routes() -> Router<Arc<Service>> {
    Router::new()
        .route("/v1/snapshot", get(snapshot))
        .route("/v1/restore", post(restore))
        .route("/v1/verify", get(verify))
        .route("/v1/partitions/{partition}/export", get(export))
        .route("/v1/partitions/{partition}", delete(remove))
}

fn streamed(body: Body, content_type: &'static str) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The next pieces of a snapshot, joined until they have `SENT_BYTES`. Blocks.
fn next_pieces(snapshot: &mut Snapshot) -> Result<Option<Bytes>, QueueError> {
    let Some(first) = snapshot.next_piece()? else { return Ok(None) };
    if first.len() >= SENT_BYTES {
        return Ok(Some(first));
    }
    let mut bytes = first.to_vec();
    while bytes.len() < SENT_BYTES {
        let Some(piece) = snapshot.next_piece()? else { break };
        bytes.extend_from_slice(&piece);
    }
    Ok(Some(bytes.into()))
}

async fn snapshot(State(service): Shared, Query(query): Query<SnapshotQuery>) -> Answer {
    let begun = service.queue.begin_snapshot(query.partition.as_deref()).await?;
    let queue = service.queue.clone();
    let pieces = stream::try_unfold((begun, queue), async |(mut snapshot, queue)| {
        let read = move || next_pieces(&mut snapshot).map(|bytes| (bytes, snapshot));
        let (bytes, snapshot) = queue.in_turn("snapshot read", read).await?;
        Ok::<_, QueueError>(bytes.map(|bytes| (bytes, (snapshot, queue))))
    });
    Ok(streamed(Body::from_stream(pieces), SNAPSHOT_STREAM))
}

/// The body of a request, for a thread that may block while it reads.
struct Arriving {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    rest: Bytes,
}

impl Read for Arriving {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.rest = piece?,
                None => return Ok(0),
            }
        }
        let length = into.len().min(self.rest.len());
        into[..length].copy_from_slice(&self.rest.split_to(length));
        Ok(length)
    }
}

async fn restore(State(service): Shared, mut body: Body) -> Answer {
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    let restoring = service.queue.restore(Arriving { pieces, rest: Bytes::new() });
    let sending = async {
        let mut passed_over = 0;
        while let Some(frame) = body.frame().await {
            let piece = match frame.map(|frame| frame.into_data()) {
                Ok(Ok(data)) => Ok(data),
                Ok(Err(_)) => continue,
                Err(error) => Err(io::Error::other(error)),
            };
            let length = piece.as_ref().map_or(0, Bytes::len);
            if sender.send(piece).await.is_err() {
                passed_over += length;
                if passed_over > PASSED_OVER_MAX {
                    break;
                }
            }
        }
        drop(sender);
    };
    let (restored, ()) = tokio::join!(restoring, sending);
    Ok(json(&restored?))
}

async fn verify(State(service): Shared) -> Answer {
    Ok(json(&service.queue.verify().await?))
}

async fn remove(State(service): Shared, Path(partition): Path<String>) -> Answer {
    service.queue.remove(&partition).await?;
    done()
}

async fn export(
    State(service): Shared,
    Path(partition): Path<String>,
    Query(query): Query<ExportQuery>,
) -> Answer {
    let on_damage = if query.skip_damaged { OnDamage::Skip } else { OnDamage::Fail };
    let begun = service.queue.partition(&partition)?.begin_export(query.format, on_damage).await?;
    let queue = service.queue.clone();
    let pieces = stream::try_unfold((begun, queue), async |(mut export, queue): (Export, TransferQueue)| {
        // Encoding takes long, because a piece may be a row group of a Parquet file. Encoding must not delay other
        // clients.
        let runtime = Handle::current();
        let write = move || runtime.block_on(export.next_piece()).map(|bytes| (bytes, export));
        let (bytes, export) = queue.in_turn("export", write).await?;
        Ok::<_, QueueError>(bytes.map(|bytes| (bytes, (export, queue))))
    });
    let content_type = match query.format {
        ExportFormat::Parquet => "application/vnd.apache.parquet",
        ExportFormat::Jsonl => "application/x-ndjson",
        ExportFormat::Arrow => "application/vnd.apache.arrow.file",
    };
    Ok(streamed(Body::from_stream(pieces), content_type))
}
