//! Rows on their way to the server: written to a region, or sent if they are few.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::connection::{Connection, Failure};
use super::parcel::{is_large, stream_length, write_stream};
use super::protocol::{Ask, RoomAnswer, RowsPlace, ToServer};
use crate::QueueError;
use crate::mapped::{Mapping, Writer};

/// Rows where the server can read them.
pub(super) struct Load {
    pub(super) connection: Arc<Connection>,
    pub(super) place: RowsPlace,
    pub(super) tail: Bytes,
    loan: Option<Loan>,
}

impl Load {
    /// The server has the rows: there is nothing to give back.
    pub(super) fn done(mut self) {
        if let Some(loan) = &mut self.loan {
            loan.ours = false;
        }
    }
}

/// A region that the server has lent; given back when it is dropped.
struct Loan {
    connection: Arc<Connection>,
    id: u64,
    ours: bool,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Loan {
    fn drop(&mut self) {
        if !self.ours {
            return;
        }
        self.connection.tell(&ToServer::Release { id: self.id });
    }
}

fn full(error: std::io::Error) -> QueueError {
    QueueError::io("share memory", "memfd")(error)
}

fn fill(batch: &RecordBatch, mapping: Arc<Mapping>, length: usize) -> Result<usize, QueueError> {
    mapping.touch(length).map_err(full)?;
    write_stream(batch, Writer::new(mapping).map_err(full)?)
}

/// Writes rows to where the server reads them: the one copy of a put.
///
/// Cancel-safe: the region is given back.
pub(super) async fn load(connection: &Arc<Connection>, batch: &RecordBatch) -> Result<Load, Failure> {
    let bytes = stream_length(batch)?;
    let owner = Arc::clone(connection);
    if !is_large(bytes) {
        let mut tail = Vec::with_capacity(bytes);
        write_stream(batch, &mut tail)?;
        return Ok(Load { connection: owner, place: RowsPlace::Tail, tail: tail.into(), loan: None });
    }
    let ended = |_| Failure::Unsent("the connection has ended".to_owned());
    let permit = Arc::clone(&connection.loans).acquire_owned().await.map_err(ended)?;
    let id = connection.number();
    let reply = connection.call(id, Ask::Room { bytes }, &[], Duration::ZERO).await?;
    let loan = Loan { connection: Arc::clone(connection), id, ours: true, _permit: permit };
    let mapping = connection.region(reply.body::<RoomAnswer>()?.region)?;
    let batch = batch.clone();
    // The loan goes along: nobody else may have the region as long as it is written to.
    let filling = tokio::task::spawn_blocking(move || Ok((fill(&batch, mapping, bytes)?, loan)));
    let filled: Result<(usize, Loan), QueueError> =
        filling.await.map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
    let (length, loan) = filled?;
    let place = RowsPlace::Loan { id, length };
    Ok(Load { connection: owner, place, tail: Bytes::new(), loan: Some(loan) })
}
