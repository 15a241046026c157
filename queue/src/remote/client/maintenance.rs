//! What operators ask of a server: snapshots, restoring, verifying, exports, and the end of partitions.

use std::io::{Read, Write};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body::Frame;
use http_body_util::StreamBody;
use reqwest::{Body, Method, Response};
use tokio::sync::mpsc;

use super::{Call, Content, Link, RemoteQueue, innermost, json_of, path};
use crate::remote::wire::{ClearBody, Cleared, ExportQuery, SNAPSHOT_STREAM, SnapshotQuery};
use crate::{ExportFormat, QueueError, SnapshotCounts, VerifyReport};

/// How long a whole queue may take to be sent, restored or looked through.
const WHOLE_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long the next piece of it may.
const PIECE_MAX: Duration = Duration::from_secs(60);
/// Of a file that is sent.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that wait to be sent.
const PIECES_MAX: usize = 8;

fn query(what: &impl serde::Serialize) -> Result<String, QueueError> {
    serde_urlencoded::to_string(what).map_err(|error| QueueError::BadRequest { reason: error.to_string() })
}

impl Link {
    /// Writes an answer as it comes; returns its length.
    async fn receive(
        &self,
        mut response: Response,
        into: &mut (impl Write + Send),
    ) -> Result<u64, QueueError> {
        let mut length = 0;
        loop {
            let arriving = tokio::time::timeout(PIECE_MAX, response.chunk()).await;
            let silent = |_| self.unreachable(format!("nothing came for {} s", PIECE_MAX.as_secs()));
            let Some(piece) =
                arriving.map_err(silent)?.map_err(|error| self.unreachable(innermost(&error)))?
            else {
                break;
            };
            into.write_all(&piece).map_err(QueueError::io("write", "what a server sends"))?;
            length += piece.len() as u64;
        }
        into.flush().map_err(QueueError::io("write", "what a server sends"))?;
        Ok(length)
    }
}

/// Reads a source on a thread of its own, a few pieces ahead.
fn read_pieces(mut source: impl Read, pieces: &mpsc::Sender<std::io::Result<Frame<Bytes>>>) {
    loop {
        let mut piece = vec![0; PIECE_BYTES];
        let read = match source.read(&mut piece) {
            Ok(0) => return,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Ok(length) => {
                piece.truncate(length);
                Ok(Frame::data(piece.into()))
            }
            Err(error) => Err(error),
        };
        let is_end = read.is_err();
        // The request is over when nobody takes its pieces.
        if pieces.blocking_send(read).is_err() || is_end {
            return;
        }
    }
}

impl RemoteQueue {
    /// Writes what `partition` is now, or the whole queue, as [`TransferQueue::snapshot`](crate::TransferQueue::snapshot)
    /// does; returns the snapshot's length in bytes.
    ///
    /// Not cancel-safe: a dropped call leaves half a snapshot, which cannot be restored.
    pub async fn snapshot(
        &self,
        partition: Option<&str>,
        mut into: impl Write + Send,
    ) -> Result<u64, QueueError> {
        let what = query(&SnapshotQuery { partition: partition.map(str::to_owned) })?;
        let call = Call { wait: WHOLE_MAX, ..Call::get(format!("/v1/snapshot?{what}")) };
        let response = self.link.send(call).await?;
        self.link.receive(response, &mut into).await
    }

    /// Makes the partitions of a snapshot, all or none; see [`TransferQueue::restore`](crate::TransferQueue::restore).
    ///
    /// Cancel-safe: partitions of which the server did not get all are not there. It is sent once: where the answer is
    /// lost, the partitions say whether it happened.
    pub async fn restore(&self, source: impl Read + Send + 'static) -> Result<SnapshotCounts, QueueError> {
        let (sender, mut pieces) = mpsc::channel(PIECES_MAX);
        let reading = tokio::task::spawn_blocking(move || read_pieces(source, &sender));
        let pieces = stream::poll_fn(move |context| pieces.poll_recv(context));
        let call = Call { wait: WHOLE_MAX, ..Call::post("/v1/restore", Content::Nothing) };
        let request = self.link.request(&call).header("content-type", SNAPSHOT_STREAM);
        let sent = request.body(Body::wrap(StreamBody::new(pieces))).send().await;
        let response = sent.map_err(|error| self.link.unreachable(innermost(&error)))?;
        if !response.status().is_success() {
            return Err(self.link.refusal(response).await);
        }
        let body = self.link.bytes(response).await?;
        // It is over: its pieces are all sent.
        reading.await.map_err(|error| self.link.unreachable(error))?;
        serde_json::from_slice(&body)
            .map_err(|error| self.link.unreachable(format!("an answer that is not its own: {error}")))
    }

    /// Looks through the whole queue, at the server. Cancel-safe: it changes nothing.
    pub async fn verify(&self) -> Result<VerifyReport, QueueError> {
        self.link.json(Call { wait: WHOLE_MAX, ..Call::get("/v1/verify") }).await
    }

    /// Removes a partition with everything in it. Cancel-safe: it happens or it does not.
    pub async fn remove(&self, partition: &str) -> Result<(), QueueError> {
        let call = Call { method: Method::DELETE, ..Call::post(path(partition, ""), Content::Nothing) };
        self.link.done(call).await
    }

    /// Frees every row that is there, whoever holds it; returns their number. Cancel-safe: it happens or it does not.
    pub async fn clear_all(&self, partition: &str) -> Result<usize, QueueError> {
        let body = json_of(&ClearBody { rows: Vec::new(), all: true })?;
        let cleared: Cleared = self.link.json(Call::post(path(partition, "/clear"), body)).await?;
        Ok(cleared.rows)
    }

    /// Writes all rows that are there; returns the length in bytes. Nothing is consumed.
    ///
    /// Not cancel-safe: a dropped call leaves half a file.
    pub async fn export(
        &self,
        partition: &str,
        format: ExportFormat,
        mut into: impl Write + Send,
    ) -> Result<u64, QueueError> {
        let what = query(&ExportQuery { format })?;
        let call = Call { wait: WHOLE_MAX, ..Call::get(path(partition, &format!("/export?{what}"))) };
        let response = self.link.send(call).await?;
        self.link.receive(response, &mut into).await
    }
}
