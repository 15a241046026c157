//! What a server learns of a client, and what it asks about the client, for each request.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::extract::FromRequestParts;
use http::request::Parts;
use tokio::io::ReadBuf;

use crate::connections::Seat;

/// The connection of a request, for what a server learns of its client. Handlers of axum get it as an argument.
/// Without a listener of this crate it knows of no connection, and its calls have no effect.
#[derive(Debug, Clone, Default)]
pub struct Client {
    seat: Option<Arc<Seat>>,
}

impl Client {
    pub(crate) fn of(seat: Arc<Seat>) -> Self {
        Self { seat: Some(seat) }
    }

    /// A request begins. Completes at once, or never if the connection has to be closed: its task drops the
    /// request then.
    pub async fn begin(&self) -> Busy {
        if self.seat.as_ref().is_some_and(|seat| !seat.begin()) {
            return std::future::pending().await;
        }
        Busy { seat: self.seat.clone() }
    }

    /// The client has sent a valid token, or needs none. Completes at once, or never if the connection has to be
    /// closed: then the request has no effect.
    pub async fn authenticated(&self) {
        if self.seat.as_ref().is_some_and(|seat| !seat.authenticate()) {
            std::future::pending().await
        }
    }

    /// The client holds a lease for `term`, counted from now. The connection is not closed for others in this
    /// time.
    pub fn leases_for(&self, term: Duration) {
        if let Some(seat) = &self.seat {
            seat.lease_for(term);
        }
    }

    /// Completes when the client has closed its side of the connection. It may still read an answer, or it may
    /// be gone: before an answer is written there is no difference. Never completes if the client has already
    /// sent another request.
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

/// A request and its answer. Dropping this ends them: the connection is idle again.
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
