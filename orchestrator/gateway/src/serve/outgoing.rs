//! Answers on their way to an agent.
//!
//! The body of an answer records whether the answer was delivered. It was delivered if the connection asked
//! for more after the last byte. Before the last part and before the end, the connection gets time to write
//! what it has, so a client that is gone is noticed before the end.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::Stream;
use futures::future::BoxFuture;
use rolldock_trajectory::{Delivery, TurnId};
use tokio::time::{Instant, Sleep};

use super::respond::refused;
use crate::answer::Answer;
use crate::core::Core;
use crate::refusal::Refusal;
use crate::surfaces::{Asked, Event, Surface};
use crate::trajectories::One;

/// Records, when it is dropped, whether the answer of a turn was delivered.
#[derive(Debug)]
pub(super) struct Receipt {
    core: Arc<Core>,
    one: Arc<One>,
    turn: TurnId,
    is_replay: bool,
    is_delivered: bool,
}

impl Receipt {
    pub(super) fn new(core: Arc<Core>, one: Arc<One>, turn: TurnId, is_replay: bool) -> Self {
        Self { core, one, turn, is_replay, is_delivered: false }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        let delivery = match (self.is_delivered, self.is_replay) {
            (true, true) => Delivery::Replayed,
            (true, false) => Delivery::Delivered,
            (false, _) => {
                metrics::counter!("rolldock_gateway_undelivered_total").increment(1);
                Delivery::Failed
            }
        };
        self.core.delivery(&self.one, self.turn, delivery);
    }
}

/// A turn that is durable, and the receipt for its delivery.
pub(super) struct Turned {
    pub(super) answer: Answer,
    pub(super) receipt: Receipt,
}

type Making = BoxFuture<'static, Result<Turned, Refusal>>;

/// The body of an answer.
pub(super) struct Outgoing {
    surface: Surface,
    asked: Arc<Asked>,
    /// The turn that is still being made.
    making: Option<Making>,
    heartbeat: Duration,
    beat: Pin<Box<Sleep>>,
    parts: VecDeque<Bytes>,
    /// Whether the connection shall write what it has before the next part.
    pauses: bool,
    receipt: Option<Receipt>,
}

impl Outgoing {
    fn new(surface: Surface, asked: Arc<Asked>, heartbeat: Duration) -> Self {
        Self {
            surface,
            asked,
            making: None,
            heartbeat,
            beat: Box::pin(tokio::time::sleep(heartbeat)),
            parts: VecDeque::new(),
            pauses: false,
            receipt: None,
        }
    }

    /// A whole answer.
    pub(super) fn whole(surface: Surface, asked: &Arc<Asked>, turned: Turned) -> Response {
        let mut outgoing = Self::new(surface, Arc::clone(asked), Duration::MAX / 4);
        let json = surface.whole(asked, &turned.answer).to_string();
        outgoing.parts.push_back(json.into());
        outgoing.receipt = Some(turned.receipt);
        ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(outgoing)).into_response()
    }

    /// An answer as a stream. An error before the first heartbeat is answered with its own status.
    pub(super) async fn streamed(
        surface: Surface,
        asked: Arc<Asked>,
        making: impl Future<Output = Result<Turned, Refusal>> + Send + 'static,
        heartbeat: Duration,
    ) -> Response {
        let mut making: Making = Box::pin(making);
        let mut outgoing = Self::new(surface, asked, heartbeat);
        match tokio::time::timeout(heartbeat, &mut making).await {
            Ok(Ok(turned)) => outgoing.made(Ok(turned)),
            Ok(Err(refusal)) => return refused(surface, &refusal),
            Err(_elapsed) => {
                outgoing.parts.push_back(Event::heartbeat().0.into());
                outgoing.making = Some(making);
            }
        }
        let headers =
            [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
        (headers, Body::from_stream(outgoing)).into_response()
    }

    /// Adds the parts of a turn that is complete or has failed.
    fn made(&mut self, made: Result<Turned, Refusal>) {
        match made {
            Ok(Turned { answer, receipt }) => {
                let events = self.surface.events(&self.asked, &answer);
                self.parts.extend(events.into_iter().map(|event| Bytes::from(event.0)));
                self.receipt = Some(receipt);
            }
            Err(refusal) => {
                metrics::counter!("rolldock_gateway_refusals_total", "code" => refusal.code()).increment(1);
                self.parts.push_back(self.surface.error_event(&refusal).0.into());
            }
        }
    }
}

impl Stream for Outgoing {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.pauses) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(part) = self.parts.pop_front() {
            // The connection writes what it has before the last part, and again before the end of the body.
            self.pauses = self.parts.len() <= 1;
            return Poll::Ready(Some(Ok(part)));
        }
        let Some(making) = &mut self.making else {
            if let Some(receipt) = &mut self.receipt {
                receipt.is_delivered = true;
            }
            return Poll::Ready(None);
        };
        if let Poll::Ready(made) = making.as_mut().poll(context) {
            self.making = None;
            self.made(made);
            return self.poll_next(context);
        }
        if self.beat.as_mut().poll(context).is_ready() {
            let next = Instant::now() + self.heartbeat;
            self.beat.as_mut().reset(next);
            return Poll::Ready(Some(Ok(Event::heartbeat().0.into())));
        }
        Poll::Pending
    }
}
