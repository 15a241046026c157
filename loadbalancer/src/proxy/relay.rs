//! An engine's answer on its way to the client.

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
use super::tokens::{NanWords, TokenCount};
use super::upstream::{self, Upstreams, Wire};
use crate::Permit;
use crate::outcome::Outcome;

/// What a client is sent.
pub(super) enum Reply {
    Whole(Option<Bytes>),
    Relayed(Box<Relayed>),
}

/// The engine did not finish what it began to say.
#[derive(Debug)]
pub(super) struct CutOff {
    reason: String,
    /// Of the server; otherwise the request was too long.
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

/// What is read of an answer as it passes.
enum Reading {
    Tokens(TokenCount),
    Words(NanWords),
    Nothing,
}

impl Reading {
    fn of(outcome: &Outcome, status: StatusCode) -> Self {
        match outcome {
            Outcome::Success { .. } => Self::Tokens(TokenCount::default()),
            Outcome::ClientError if status == StatusCode::BAD_REQUEST => Self::Words(NanWords::default()),
            _ => Self::Nothing,
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        match self {
            Self::Tokens(tokens) => tokens.feed(bytes),
            Self::Words(words) => words.feed(bytes),
            Self::Nothing => {}
        }
    }

    /// What the head said, corrected.
    fn outcome(&self, said: &Outcome) -> Outcome {
        match self {
            Self::Tokens(tokens) => Outcome::Success { tokens: tokens.total() },
            Self::Words(words) if words.is_said() => Outcome::Fault,
            Self::Words(_) | Self::Nothing => said.clone(),
        }
    }
}

/// How long an answer may take.
pub(super) struct Patience {
    pub(super) timed: Timed,
    /// For all of it.
    pub(super) deadline: Instant,
    /// Without a byte.
    pub(super) idle: Duration,
}

impl Patience {
    /// Something has come, or is about to.
    fn renew(&self) {
        self.timed.until((Instant::now() + self.idle).min(self.deadline));
    }

    fn cut_off(&self) -> CutOff {
        let is_fault = Instant::now() < self.deadline;
        let reason = if is_fault {
            format!("nothing has come for {} s (idle timeout)", self.idle.as_secs_f64())
        } else {
            "it has taken too long (request timeout)".to_owned()
        };
        metrics::counter!("rolldock_proxy_timeouts_total", "phase" => if is_fault { "idle" } else { "answer" })
            .increment(1);
        CutOff { reason, is_fault }
    }
}

/// Holds the permit for as long as the engine works. Dropped before the end, it closes the engine's connection.
pub(super) struct Relayed {
    body: Incoming,
    wire: Option<Wire>,
    permit: Option<Permit>,
    /// Made when something has to be waited for.
    revoked: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// What the permit is returned with at the end.
    outcome: Outcome,
    reading: Reading,
    patience: Patience,
    upstreams: Upstreams,
}

impl Relayed {
    /// The client's answer, from the engine's head and the body to come.
    pub(super) fn response(
        answer: upstream::Answer,
        permit: Permit,
        outcome: Outcome,
        patience: Patience,
        upstreams: Upstreams,
    ) -> Response<Reply> {
        let upstream::Answer { mut head, body, wire } = answer;
        upstream::strip_hop_by_hop(&mut head.headers);
        let reading = Reading::of(&outcome, head.status);
        patience.renew();
        let (wire, permit) = (Some(wire), Some(permit));
        let relayed = Self { body, wire, permit, revoked: None, outcome, reading, patience, upstreams };
        Response::from_parts(head, Reply::Relayed(Box::new(relayed)))
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
        permit.finish(self.reading.outcome(&self.outcome));
    }

    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        // Twice: what is read in the first turn is there in the second.
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
        // A server that stalls in the middle of an answer is found by others.
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
                tracing::debug!(%error, "an answer breaks off");
                if let Some(permit) = self.permit.take() {
                    permit.finish(if error.is_fault { Outcome::Fault } else { Outcome::Cancelled });
                }
                // The engine learns of it.
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
