//! The transfer of rows to the server: through a region, or through the socket if the rows are small.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::RecordBatch;
use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::connection::{Connection, Failure, Limit};
use super::fill::fill;
use super::parcel::{Streams, is_large};
use super::protocol::{Ask, RoomAnswer, RowsPlace, ToServer};

/// Rows at a place where the server can read them.
pub(super) struct Load {
    pub(super) connection: Arc<Connection>,
    pub(super) place: RowsPlace,
    pub(super) tail: Bytes,
    loan: Option<Arc<Loan>>,
}

impl Load {
    /// Ends the load after its put or column write: the server then owns the region, so the client does not give it
    /// back.
    pub(super) fn done(self) {
        if let Some(loan) = &self.loan {
            loan.is_ours.store(false, Ordering::Relaxed);
        }
    }
}

/// A region that the server has lent. When its last user drops it, it is given back, unless the server has taken
/// over the rows.
struct Loan {
    connection: Arc<Connection>,
    id: u64,
    is_ours: AtomicBool,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Loan {
    fn drop(&mut self) {
        if !*self.is_ours.get_mut() {
            return;
        }
        self.connection.tell(&ToServer::Release { id: self.id });
    }
}

/// Writes rows to a place where the server can read them. Rows for a region are not copied into another buffer
/// first.
///
/// Cancel-safe: a dropped call gives the region back.
pub(super) async fn load(
    connection: &Arc<Connection>,
    batch: &RecordBatch,
    limit: Limit,
) -> Result<Load, Failure> {
    let streams = Streams::of(std::slice::from_ref(batch))?;
    let owner = Arc::clone(connection);
    if !is_large(streams.bytes) {
        let mut tail = Vec::new();
        streams.append_to(&mut tail);
        return Ok(Load { connection: owner, place: RowsPlace::Tail, tail: tail.into(), loan: None });
    }
    let ended = |_| Failure::Unsent("the connection has ended".to_owned());
    let waiting = tokio::time::timeout_at(limit.at, Arc::clone(&connection.loans).acquire_owned());
    let late = |_| Failure::Unsent("too many puts and column writes are in progress".to_owned());
    let permit = waiting.await.map_err(late)?.map_err(ended)?;
    let id = connection.number();
    let ask = Ask::Room { bytes: streams.bytes };
    let reply = connection.call(id, ask, &[], limit).await?;
    let loan =
        Loan { connection: Arc::clone(connection), id, is_ours: AtomicBool::new(true), _permit: permit };
    let loan = Arc::new(loan);
    let mapping = connection.region(reply.body::<RoomAnswer>()?.region)?;
    let length = fill(mapping, streams.buffers, Arc::clone(&loan)).await?;
    let place = RowsPlace::Loan { id, length };
    Ok(Load { connection: owner, place, tail: Bytes::new(), loan: Some(loan) })
}
