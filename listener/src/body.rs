//! The bodies of requests, which have to arrive in time, and the bodies of answers. The end of an answer's
//! body ends its request.

use std::error::Error;
use std::fmt;
use std::future::{poll_fn, ready};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body as AnyBody;
use bytes::{Bytes, BytesMut};
use futures::stream;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use crate::client::Busy;
use crate::connections::Connections;

/// Bodies of at most this many bytes are read whole before their request is handled.
const SMALL_MAX: u64 = 16 << 10;

/// A body did not arrive in time.
#[derive(Debug)]
struct Slow(Duration);

impl fmt::Display for Slow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "no byte of the body for {} s", self.0.as_secs_f64())
    }
}

impl Error for Slow {}

/// The body of a request. The body ends with an error if the server waits too long for a byte.
pub(crate) struct Arriving {
    incoming: Incoming,
    connections: Connections,
    /// Created when the server first has to wait.
    alarm: Option<Pin<Box<Sleep>>>,
    /// Whether the server has been waiting since the last byte.
    is_waiting: bool,
}

impl Arriving {
    pub(crate) fn new(incoming: Incoming, connections: Connections) -> Self {
        Self { incoming, connections, alarm: None, is_waiting: false }
    }

    /// Returns the body that the handler gets. A small body is read whole before the handler runs. Otherwise
    /// a handler could answer without reading the body, and the bytes that arrive after the answer would
    /// close the client's connection.
    pub(crate) async fn whole_if_small(mut self) -> AnyBody {
        if self.size_hint().exact().is_none_or(|length| length > SMALL_MAX) {
            return AnyBody::new(self);
        }
        let mut whole = BytesMut::new();
        loop {
            match poll_fn(|context| Pin::new(&mut self).poll_frame(context)).await {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if whole.is_empty() && self.is_end_stream() {
                        return AnyBody::from(data);
                    }
                    whole.extend_from_slice(&data);
                }
                Some(Err(error)) => {
                    return AnyBody::from_stream(stream::once(ready(Err::<Bytes, _>(error))));
                }
                None => return AnyBody::from(whole.freeze()),
            }
        }
    }

    fn poll_alarm(&mut self, context: &mut Context<'_>) -> Poll<Slow> {
        let limit = self.connections.bounds().body;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if !self.is_waiting {
            self.is_waiting = true;
            alarm.as_mut().reset(tokio::time::Instant::now() + limit);
        }
        alarm.as_mut().poll(context).map(|()| Slow(limit))
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(context) {
            self.is_waiting = false;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        self.poll_alarm(context).map(|slow| {
            self.connections.count_timeout("body");
            Some(Err(slow.into()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// The body of an answer. When it is dropped, the connection becomes idle.
#[derive(Debug)]
pub struct Leaving<B> {
    body: B,
    _busy: Busy,
}

impl<B> Leaving<B> {
    /// Wraps `body`. `busy` is dropped together with it.
    pub fn new(body: B, busy: Busy) -> Self {
        Self { body, _busy: busy }
    }
}

impl<B: Body + Unpin> Body for Leaving<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
