//! The calls for operators: snapshots, restoring, verifying, exports, and the removal of partitions.

use std::io::{Read, Write};
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use tokio::sync::mpsc;

use super::{Call, Content, RemoteQueue, path, query};
use crate::edges::remote::body::RequestBody;
use crate::edges::remote::link::Response;
use crate::edges::wire::{ExportQuery, SNAPSHOT_STREAM, SnapshotQuery};
use crate::tasks;
use crate::{ExportFormat, QueueError, SnapshotCounts, VerifyReport};

/// The maximum time of a snapshot, a restore, a verification or an export.
const WHOLE_MAX: Duration = Duration::from_secs(24 * 3600);
/// The maximum size of one piece of a file that is sent, in bytes.
const PIECE_BYTES: usize = 256 << 10;
/// The maximum number of pieces that wait to be sent.
const PIECES_MAX: usize = 8;

/// Writes an answer to `into` as it arrives. Returns its length in bytes.
async fn receive(mut answer: Response<'_>, into: &mut (impl Write + Send)) -> Result<u64, QueueError> {
    let mut length = 0;
    while let Some(piece) = answer.chunk().await? {
        into.write_all(&piece).map_err(QueueError::io("write", "the output of a snapshot or an export"))?;
        length += piece.len() as u64;
    }
    answer.done().await;
    into.flush().map_err(QueueError::io("write", "the output of a snapshot or an export"))?;
    Ok(length)
}

/// Reads a source and sends its pieces, at most [`PIECES_MAX`] ahead. The call blocks its thread.
fn read_pieces(mut source: impl Read, pieces: &mpsc::Sender<std::io::Result<Bytes>>) {
    loop {
        let mut piece = vec![0; PIECE_BYTES];
        let read = match source.read(&mut piece) {
            Ok(0) => return,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Ok(length) => {
                piece.truncate(length);
                Ok(Bytes::from(piece))
            }
            Err(error) => Err(error),
        };
        let is_end = read.is_err();
        // If the receiver was dropped, the request has ended.
        if pieces.blocking_send(read).is_err() || is_end {
            return;
        }
    }
}

impl RemoteQueue {
    /// Writes the current state of `partition`, or of the whole queue; see
    /// [`TransferQueue::snapshot`](crate::TransferQueue::snapshot). Returns the snapshot's length in bytes.
    ///
    /// Not cancel-safe: a dropped call leaves half a snapshot, which cannot be restored.
    pub async fn snapshot(
        &self,
        partition: Option<&str>,
        mut into: impl Write + Send,
    ) -> Result<u64, QueueError> {
        let what = query(&SnapshotQuery { partition: partition.map(str::to_owned) })?;
        let call = Call { wait: WHOLE_MAX, ..Call::get(format!("/v1/snapshot?{what}")) };
        receive(self.link.send(call).await?, &mut into).await
    }

    /// Creates the partitions of a snapshot, all or none; see
    /// [`TransferQueue::restore`](crate::TransferQueue::restore).
    ///
    /// Cancel-safe: the server creates the partitions only if it gets the whole snapshot. The snapshot is
    /// sent only once. If the answer is lost, the existing partitions show whether the snapshot was restored.
    pub async fn restore(&self, source: impl Read + Send + 'static) -> Result<SnapshotCounts, QueueError> {
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        let reading = tasks::blocking("snapshot upload", move || read_pieces(source, &sender));
        let call = Call { wait: WHOLE_MAX, ..Call::post("/v1/restore", Content::Nothing) };
        let restored = self.link.upload(&call, SNAPSHOT_STREAM, RequestBody::Stream(pieces)).await?;
        // The upload has ended, so the thread that reads the source has ended or ends now.
        reading.await.map_err(|error| self.link.unreachable(error))?;
        Ok(restored)
    }

    /// Checks the whole queue on the server. Cancel-safe: the call changes nothing.
    pub async fn verify(&self) -> Result<VerifyReport, QueueError> {
        self.link.json(Call { wait: WHOLE_MAX, ..Call::get("/v1/verify") }).await
    }

    /// Removes a partition with all of its rows. Cancel-safe: a dropped call takes effect completely or not
    /// at all.
    pub async fn remove(&self, partition: &str) -> Result<(), QueueError> {
        let call = Call { method: Method::DELETE, ..Call::post(path(partition, ""), Content::Nothing) };
        self.link.done(call).await
    }

    /// Writes all existing rows to `into`. Returns the length in bytes. Nothing is consumed.
    ///
    /// Not cancel-safe: a dropped call leaves an incomplete file.
    pub async fn export(
        &self,
        partition: &str,
        format: ExportFormat,
        into: impl Write + Send,
    ) -> Result<u64, QueueError> {
        self.export_as(partition, &ExportQuery { format, skip_damaged: false }, into).await
    }

    /// Like [`export`](Self::export), but skips rows whose payload is damaged. The server's log has a warning
    /// for each damaged part.
    ///
    /// Not cancel-safe: a dropped call leaves an incomplete file.
    pub async fn export_sound(
        &self,
        partition: &str,
        format: ExportFormat,
        into: impl Write + Send,
    ) -> Result<u64, QueueError> {
        self.export_as(partition, &ExportQuery { format, skip_damaged: true }, into).await
    }

    async fn export_as(
        &self,
        partition: &str,
        what: &ExportQuery,
        mut into: impl Write + Send,
    ) -> Result<u64, QueueError> {
        let what = query(what)?;
        let call = Call { wait: WHOLE_MAX, ..Call::get(path(partition, &format!("/export?{what}"))) };
        receive(self.link.send(call).await?, &mut into).await
    }
}
