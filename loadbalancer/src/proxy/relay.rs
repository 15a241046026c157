//! Passes an engine's answer on to the client.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Response, StatusCode};
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::clock::Timed;
use super::tokens::{NanMessage, TokenCount};
use super::upstream::{self, Upstreams, Wire};
use crate::Permit;
use crate::outcome::Outcome;

/// The body of an answer to a client.
pub(super) enum Reply {
    /// An answer of the proxy itself, or a small answer of a server that was read completely.
    Whole(Option<Bytes>),
    /// An engine's answer, passed on as it arrives.
    Relayed(Box<Relayed>),
}

/// The error of an answer that is cut off after its beginning.
#[derive(Debug)]
pub(super) struct CutOff {
    reason: String,
    /// Whether the server is at fault; otherwise the request has taken too long.
    is_fault: bool,
}

impl CutOff {
    fn fault(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), is_fault: true }
    }
}

impl fmt::Display for CutOff {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the answer is cut off: {}", self.reason)
    }
}

impl std::error::Error for CutOff {}

impl From<Infallible> for CutOff {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// The data that the proxy extracts from an answer while it passes the answer on.
enum Reading {
    /// The number of tokens of a good answer.
    Tokens(TokenCount),
    /// The message of an error that the engine may have caused.
    Error(NanMessage),
    Nothing,
}

impl Reading {
    fn of(outcome: &Outcome, status: StatusCode) -> Self {
        match outcome {
            Outcome::Success { .. } => Self::Tokens(TokenCount::default()),
            Outcome::ClientError if status == StatusCode::BAD_REQUEST => Self::Error(NanMessage::default()),
            _ => Self::Nothing,
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        match self {
            Self::Tokens(tokens) => tokens.feed(bytes),
            Self::Error(message) => message.feed(bytes),
            Self::Nothing => {}
        }
    }

    /// The outcome that the answer's head shows, corrected by its body.
    fn outcome(&self, of_head: &Outcome) -> Outcome {
        match self {
            Self::Tokens(tokens) => Outcome::Success { tokens: tokens.total() },
            Self::Error(message) if message.is_found() => Outcome::Fault,
            Self::Error(_) | Self::Nothing => of_head.clone(),
        }
    }
}

/// The time limits of an answer.
pub(super) struct Patience {
    pub(super) timed: Timed,
    /// End of the time for the whole answer.
    pub(super) deadline: Instant,
    /// Longest time without a byte.
    pub(super) idle: Duration,
}

impl Patience {
    /// Starts the idle time again, since bytes have arrived or are about to arrive.
    fn renew(&self) {
        self.timed.until((Instant::now() + self.idle).min(self.deadline));
    }

    fn cut_off(&self) -> CutOff {
        let is_fault = Instant::now() < self.deadline;
        let reason = if is_fault {
            format!("no bytes for {} s (idle timeout)", self.idle.as_secs_f64())
        } else {
            "it has taken too long (request timeout)".to_owned()
        };
        metrics::counter!("rolldock_proxy_timeouts_total", "phase" => if is_fault { "idle" } else { "answer" })
            .increment(1);
        CutOff { reason, is_fault }
    }
}

/// An answer that is being passed on. It holds the permit for as long as the engine works. If this value is
/// dropped before the end of the answer, the connection to the engine is closed.
pub(super) struct Relayed {
    body: Incoming,
    wire: Option<Wire>,
    permit: Option<Permit>,
    /// Created when the proxy first has to wait for the body.
    revoked: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// The outcome that the head of the answer shows.
    outcome: Outcome,
    reading: Reading,
    patience: Patience,
    upstreams: Upstreams,
}

impl Relayed {
    /// The answer to the client: the engine's head, and its body as it arrives.
    pub(super) fn response(
        answer: upstream::Begun,
        permit: Permit,
        outcome: Outcome,
        patience: Patience,
        upstreams: Upstreams,
    ) -> Response<Reply> {
        let upstream::Begun { mut head, body, wire } = answer;
        upstream::strip_hop_by_hop(&mut head.headers);
        let reading = Reading::of(&outcome, head.status);
        patience.renew();
        let (wire, permit) = (Some(wire), Some(permit));
        let relayed = Self { body, wire, permit, revoked: None, outcome, reading, patience, upstreams };
        Response::from_parts(head, Reply::Relayed(Box::new(relayed)))
    }

    /// Frees the connection and the permit after the last byte has been passed on.
    fn end(&mut self, context: &mut Context<'_>) {
        let Some(permit) = self.permit.take() else { return };
        if let Some(mut wire) = self.wire.take()
            && wire.is_reusable(context)
            && let Some(url) = permit.url()
        {
            self.upstreams.give_back(url, wire);
        }
        permit.finish(self.reading.outcome(&self.outcome));
    }

    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        // Polls twice: the first poll often reads bytes that the second one needs.
        for _ in 0..2 {
            if let Some(wire) = &mut self.wire {
                wire.drive(context);
            }
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => return Poll::Ready(Some(Ok(frame))),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(CutOff::fault(error)))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {}
            }
        }
        if self.patience.timed.is_over() {
            return Poll::Ready(Some(Err(self.patience.cut_off())));
        }
        // If a server stalls in the middle of an answer, the monitor notices this and ends the server's life.
        let Some(permit) = &self.permit else { return Poll::Pending };
        let revoked = self.revoked.get_or_insert_with(|| Box::pin(permit.revoked_owned()));
        revoked.poll_unpin(context).map(|()| Some(Err(CutOff::fault("the server was lost"))))
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let frame = ready!(self.poll_body(context));
        if let Some(Ok(frame)) = &frame
            && let Some(bytes) = frame.data_ref()
        {
            self.reading.feed(bytes);
        }
        match &frame {
            Some(Ok(_)) if self.body.is_end_stream() => self.end(context),
            Some(Ok(_)) => self.patience.renew(),
            Some(Err(error)) => {
                tracing::debug!(%error, "an answer is cut off");
                if let Some(permit) = self.permit.take() {
                    permit.finish(if error.is_fault { Outcome::Fault } else { Outcome::Cancelled });
                }
                // This closes the connection, and the engine stops.
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
