//! The content and the bodies of requests.

use std::pin::Pin;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use crate::QueueError;
use crate::batches::common_schema;
use crate::edges::wire::ARROW_STREAM;
use crate::edges::wire::ipc::{self, Pieces, Segments};

/// The content of a request. Each attempt to send the request makes a new body from its content.
#[derive(Clone)]
pub(super) enum Content {
    Nothing,
    Json(Bytes),
    Rows(Vec<RecordBatch>),
}

impl Content {
    pub(super) fn kind(&self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Json(_) => Some("application/json"),
            Self::Rows(_) => Some(ARROW_STREAM),
        }
    }

    /// The approximate number of bytes to send.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Json(bytes) => bytes.len(),
            Self::Rows(batches) => batches.iter().map(ipc::encoded_bytes).sum(),
        }
    }

    pub(super) fn body(&self) -> RequestBody {
        match self {
            Self::Nothing => RequestBody::Whole(None),
            Self::Json(bytes) => RequestBody::Whole(Some(bytes.clone())),
            Self::Rows(batches) => match batches.as_slice() {
                [batch] if ipc::is_one_piece(batch) => {
                    ipc::encode(batch).map_or_else(|_| RequestBody::pieces(batches), RequestBody::from)
                }
                _ => RequestBody::pieces(batches),
            },
        }
    }
}

/// The body of one attempt. Rows are encoded piece by piece while they are sent, so a large put needs no
/// large buffer.
pub(super) enum RequestBody {
    Whole(Option<Bytes>),
    Pieces(Box<Pieces>),
    /// Pieces that a thread reads from a source.
    Stream(mpsc::Receiver<std::io::Result<Bytes>>),
}

impl RequestBody {
    fn pieces(batches: &[RecordBatch]) -> Self {
        let schema = common_schema(batches);
        Self::Pieces(Box::new(Pieces::new(schema, batches.to_vec())))
    }
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(Some(bytes))
    }
}

impl Body for RequestBody {
    type Data = Segments;
    type Error = QueueError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Segments>, QueueError>>> {
        let bytes = match &mut *self {
            Self::Whole(bytes) => bytes.take().map(|bytes| Ok(bytes.into())),
            Self::Pieces(pieces) => pieces.next().transpose(),
            Self::Stream(pieces) => {
                let piece = std::task::ready!(pieces.poll_recv(context));
                piece.map(|piece| {
                    piece.map(Segments::from).map_err(QueueError::io("read", "the source of a request"))
                })
            }
        };
        Poll::Ready(bytes.map(|bytes| bytes.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Pieces(_) | Self::Stream(_) => SizeHint::default(),
        }
    }
}
