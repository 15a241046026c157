//! The client of a request. A server uses [`Client`] to report facts about the client, and to find out
//! whether the client has closed its side of the connection.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::extract::FromRequestParts;
use http::request::Parts;
use tokio::io::ReadBuf;

use crate::connections::Seat;

/// A handle to the connection of a request. The server reports facts about the client through it. Handlers of
/// axum get it as an argument. If the request did not come through a listener of this crate, the handle has
/// no connection, and calls on the handle have no effect.
#[derive(Debug, Clone, Default)]
pub struct Client {
    seat: Option<Arc<Seat>>,
}

impl Client {
    pub(crate) fn of(seat: Arc<Seat>) -> Self {
        Self { seat: Some(seat) }
    }

    /// Notes that a request begins. Completes immediately, unless the connection has to be closed. In that
    /// case the future never completes, and the connection's task drops the request.
    pub async fn begin(&self) -> Busy {
        if self.seat.as_ref().is_some_and(|seat| !seat.begin()) {
            return std::future::pending().await;
        }
        Busy { seat: self.seat.clone() }
    }

    /// Notes that the client has sent a valid token, or needs no token. Completes immediately, unless the
    /// connection has to be closed. In that case the future never completes, and the request has no effect.
    pub async fn authenticated(&self) {
        if self.seat.as_ref().is_some_and(|seat| !seat.authenticate()) {
            std::future::pending().await
        }
    }

    /// Notes that the client holds a lease for `term`, counted from now. During this time the connection is
    /// not closed to make room for others.
    pub fn leases_for(&self, term: Duration) {
        if let Some(seat) = &self.seat {
            seat.lease_for(term);
        }
    }

    /// Completes when the client has closed its side of the connection. The client may still read an answer,
    /// or may have disappeared. Before an answer is written, the server cannot distinguish these cases. Never
    /// completes if the client has already sent another request.
    ///
    /// Cancel-safe. Only for the task of the request, because one task at a time waits for a connection's
    /// bytes.
    pub async fn closed_its_side(&self) {
        let Some(seat) = &self.seat else { return std::future::pending().await };
        poll_fn(|context| {
            let mut byte = [0];
            let mut byte = ReadBuf::new(&mut byte);
            match seat.stream.lock().poll_peek(context, &mut byte) {
                Poll::Ready(Ok(1..)) | Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(()),
            }
        })
        .await;
    }
}

#[cfg(test)]
impl Client {
    pub(crate) fn seat(&self) -> Option<&Seat> {
        self.seat.as_deref()
    }
}

impl<S: Sync> FromRequestParts<S> for Client {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// A request and its answer. When this value is dropped, both have ended, and the connection is idle again.
#[derive(Debug)]
pub struct Busy {
    seat: Option<Arc<Seat>>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(seat) = &self.seat {
            seat.end();
        }
    }
}
