//! The transfer of taken rows to the client.
//!
//! When the last byte is handed to the connection, the lease passes to the client. A body that is dropped
//! earlier gives the rows back.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use arrow_schema::SchemaRef;
use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use http_body::{Frame, SizeHint};

use crate::batches::common_schema;
use crate::edges::wire::ipc::{self, Encoder};
use crate::{Lease, QueueError};

/// An answer of at most about this many bytes is sent as a whole, in one write.
const WHOLE_BYTES_MAX: usize = 64 << 10;

/// The rows of a lease as an Arrow stream. Large rows are encoded piece by piece.
pub(super) fn rows_body(lease: Lease) -> Result<Body, QueueError> {
    let is_small = lease.batches().iter().map(ipc::encoded_bytes).sum::<usize>() <= WHOLE_BYTES_MAX;
    let mut sending = Sending::new(lease)?;
    if is_small {
        let mut bytes = Vec::new();
        while let Some(piece) = sending.next()? {
            bytes.extend_from_slice(&piece);
        }
        return Ok(Body::new(Whole { bytes: bytes.into(), lease: Some(sending.lease) }));
    }
    Ok(Body::from_stream(stream::try_unfold(Some(sending), |sending| async {
        let Some(mut sending) = sending else { return Ok(None) };
        let Some(bytes) = sending.next()? else { return Ok::<_, QueueError>(None) };
        if sending.encoder.is_none() {
            sending.lease.detach();
            return Ok(Some((bytes, None)));
        }
        Ok(Some((bytes, Some(sending))))
    })))
}

/// An answer of one frame.
struct Whole {
    bytes: Bytes,
    lease: Option<Lease>,
}

impl http_body::Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(lease) = self.lease.take() else { return Poll::Ready(None) };
        lease.detach();
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.lease.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

/// A lease whose rows are being encoded, and the progress of the encoding.
struct Sending {
    lease: Lease,
    /// `None` after the stream has ended.
    encoder: Option<Encoder>,
    schema: SchemaRef,
    next_batch: usize,
    /// The rows of the next batch that have been encoded.
    next_in_batch: usize,
    next_row: usize,
}

impl Sending {
    fn new(lease: Lease) -> Result<Self, QueueError> {
        let schema = common_schema(lease.batches());
        let encoder = Some(Encoder::new(&ipc::labelled_schema(&schema, &lease))?);
        Ok(Self { lease, encoder, schema, next_batch: 0, next_in_batch: 0, next_row: 0 })
    }

    fn next(&mut self) -> Result<Option<Bytes>, QueueError> {
        let Some(encoder) = &mut self.encoder else { return Ok(None) };
        let Some(batch) = self.lease.batches().get(self.next_batch) else {
            let end = self.encoder.take().map(Encoder::end).transpose()?;
            return Ok(end.map(Bytes::from));
        };
        let rest = batch.num_rows() - self.next_in_batch;
        let piece = batch.slice(self.next_in_batch, ipc::rows_of_a_piece(batch).min(rest));
        let rows = self.next_row..self.next_row + piece.num_rows();
        self.next_row = rows.end;
        self.next_in_batch += piece.num_rows();
        if piece.num_rows() == rest {
            self.next_batch += 1;
            self.next_in_batch = 0;
        }
        let labelled = ipc::labelled(&piece, &self.schema, &self.lease, rows)?;
        // The frame is copied into one piece: shorter pieces would cost the reader more than the copy costs
        // the server.
        Ok(Some(encoder.batch(&labelled)?.into()))
    }
}
