//! An engine's answer on its way to the client.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::FutureExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::tokens::TokenCount;
use super::upstream::{Upstreams, Wire};
use crate::{Outcome, Permit};

/// What a client is sent.
pub(super) enum Reply {
    Whole(Option<Bytes>),
    Relayed(Box<Relayed>),
}

/// The engine did not finish what it began to say.
#[derive(Debug)]
pub(super) struct CutOff(String);

impl fmt::Display for CutOff {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the server broke off: {}", self.0)
    }
}

impl std::error::Error for CutOff {}

impl From<Infallible> for CutOff {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Holds the permit for as long as the engine works. Dropped before the end, it closes the engine's connection.
pub(super) struct Relayed {
    body: Incoming,
    wire: Option<Wire>,
    permit: Option<Permit>,
    revoked: Pin<Box<WaitForCancellationFutureOwned>>,
    /// What the permit is returned with at the end.
    outcome: Outcome,
    tokens: TokenCount,
    upstreams: Upstreams,
}

impl Relayed {
    pub(super) fn new(
        body: Incoming,
        wire: Wire,
        permit: Permit,
        outcome: Outcome,
        upstreams: Upstreams,
    ) -> Self {
        let revoked = Box::pin(permit.revoked_owned());
        let tokens = TokenCount::default();
        Self { body, wire: Some(wire), permit: Some(permit), revoked, outcome, tokens, upstreams }
    }

    /// The last byte is out: the connection and the permit are free.
    fn end(&mut self, context: &mut Context<'_>) {
        let Some(permit) = self.permit.take() else { return };
        if let Some(mut wire) = self.wire.take()
            && wire.is_reusable(context)
            && let Some(url) = permit.url()
        {
            self.upstreams.give_back(url, wire);
        }
        permit.finish(match &self.outcome {
            Outcome::Success { .. } => Outcome::Success { tokens: self.tokens.total() },
            other => other.clone(),
        });
    }

    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        // Twice: what is read in the first turn is there in the second.
        for _ in 0..2 {
            if let Some(wire) = &mut self.wire {
                wire.drive(context);
            }
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => return Poll::Ready(Some(Ok(frame))),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(CutOff(error.to_string())))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {}
            }
        }
        // A server that stalls in the middle of an answer is found by others.
        match self.revoked.poll_unpin(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err(CutOff("it was lost".to_owned())))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let frame = ready!(self.poll_body(context));
        if let Some(Ok(frame)) = &frame
            && let Some(bytes) = frame.data_ref()
        {
            self.tokens.feed(bytes);
        }
        match &frame {
            Some(Ok(_)) if self.body.is_end_stream() => self.end(context),
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!(%error, "an answer is cut off");
                if let Some(permit) = self.permit.take() {
                    permit.finish(Outcome::Fault);
                }
                self.wire = None;
            }
            None => self.end(context),
        }
        Poll::Ready(frame)
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Relayed(relayed) => relayed.poll_next(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Relayed(relayed) => relayed.body.is_end_stream() && relayed.permit.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Relayed(relayed) => relayed.body.size_hint(),
        }
    }
}
