//! The byte stream of a connection. Reads and writes on the stream decide whether the connection is idle.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connections::Seat;

/// A connection's stream of bytes.
#[derive(Debug)]
pub struct Socket {
    seat: Arc<Seat>,
}

impl Socket {
    pub(crate) fn new(seat: Arc<Seat>) -> Self {
        Self { seat }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = ready!(Pin::new(&mut *self.seat.stream.lock()).poll_read(context, into));
        if into.filled().len() > before {
            self.seat.has_read();
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.seat.writes(true);
        Pin::new(&mut *self.seat.stream.lock()).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.seat.writes(true);
        Pin::new(&mut *self.seat.stream.lock()).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut *self.seat.stream.lock()).poll_flush(context));
        self.seat.writes(false);
        Poll::Ready(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.seat.stream.lock()).poll_shutdown(context)
    }
}
