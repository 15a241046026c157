//! The ticket of a connection, which the connection's task holds. It reports when the connection has to be
//! closed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep};

use crate::client::Client;
use crate::connections::Seat;

/// The part of a connection that belongs to the task which drives it. When the ticket is dropped, the
/// connection no longer counts.
#[derive(Debug)]
pub struct Ticket {
    seat: Arc<Seat>,
    alarm: Pin<Box<Sleep>>,
}

impl Ticket {
    pub(crate) fn new(seat: Arc<Seat>) -> Self {
        let first = Instant::now() + seat.bounds().head;
        Self { seat, alarm: Box::pin(tokio::time::sleep_until(first)) }
    }

    /// A handle for the requests of this connection.
    pub fn client(&self) -> Client {
        Client::of(Arc::clone(&self.seat))
    }

    /// Ready when the connection has to be closed, either to make room for another connection or because a
    /// time limit of the client is over. Has to be polled after each poll of the connection, because such a
    /// poll may change the time limit.
    pub fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.seat.wake_when_shed(context.waker());
        loop {
            if self.seat.is_shed() {
                return Poll::Ready(());
            }
            let limit = self.seat.limit();
            if let Some((at, _)) = limit
                && at < self.alarm.deadline()
            {
                self.alarm.as_mut().reset(at);
            }
            if self.alarm.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            match limit {
                Some((at, phase)) if at <= now => {
                    // A request cannot begin meanwhile, because this is the task that drives the connection.
                    self.seat.count_timeout(phase);
                    return Poll::Ready(());
                }
                Some((at, _)) => self.alarm.as_mut().reset(at),
                // Every phase that follows a request lasts at least this long.
                None => self.alarm.as_mut().reset(now + self.seat.bounds().head),
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.seat.leave();
    }
}
