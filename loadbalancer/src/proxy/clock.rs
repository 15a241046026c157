//! The time limits of requests. Each connection has one alarm for the limits of its requests.
//!
//! Nearly all requests end before their limit, so a timer for every request would be wasted work. Instead, a
//! request only stores its limit. The alarm is set to the earliest limit that was stored since it last went off. When
//! the alarm goes off and the present limit has not passed, it is set to that limit. Otherwise the time is over.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// The time for which the alarm is set while the connection has no request.
const REST: Duration = Duration::from_secs(3600);

/// The state that a connection's request and its alarm share.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// The limit of the present request; `None` if there is no request.
    until: Cell<Option<Instant>>,
    is_over: Cell<bool>,
}

impl Clock {
    /// Begins a request. A connection has one request at a time.
    pub(super) fn start(self: &Rc<Self>, until: Instant) -> Timed {
        self.until.set(Some(until));
        self.is_over.set(false);
        Timed { clock: Rc::clone(self) }
    }

    /// Whether the time of the present request is over.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.get()
    }
}

/// The error of a wait that lasted until the request's time was over.
#[derive(Debug)]
pub(super) struct Over;

/// The time limit of the present request. Dropping this value removes the limit.
#[derive(Debug)]
pub(super) struct Timed {
    clock: Rc<Clock>,
}

impl Timed {
    /// Sets a new limit, also if the earlier one has passed.
    pub(super) fn until(&self, until: Instant) {
        self.clock.until.set(Some(until));
        self.clock.is_over.set(false);
    }

    pub(super) fn is_over(&self) -> bool {
        self.clock.is_over()
    }

    /// Completes when the request's time is over. Only the task that polls the alarm may poll this future,
    /// because the alarm alone wakes it. Cancel-safe.
    pub(super) fn over(&self) -> impl Future<Output = ()> {
        poll_fn(|_| if self.is_over() { Poll::Ready(()) } else { Poll::Pending })
    }

    /// The result of `future`, or [`Over`] if the request's time is over first. As cancel-safe as `future`.
    pub(super) async fn bound<T>(&self, future: impl Future<Output = T>) -> Result<T, Over> {
        tokio::select! {
            biased;
            done = future => Ok(done),
            () = self.over() => Err(Over),
        }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.clock.until.set(None);
        self.clock.is_over.set(false);
    }
}

/// Goes off when the time of a connection's request is over.
pub(super) struct Alarm {
    sleep: Pin<Box<Sleep>>,
    clock: Rc<Clock>,
}

impl Alarm {
    pub(super) fn new(clock: &Rc<Clock>) -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(REST)), clock: Rc::clone(clock) }
    }

    /// Ready when the request's time is over. The request notices this when it is polled next.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(until) = self.clock.until.get()
                && until < self.sleep.deadline()
            {
                self.sleep.as_mut().reset(until);
            }
            ready!(self.sleep.as_mut().poll(context));
            let now = Instant::now();
            let until = self.clock.until.get();
            self.sleep.as_mut().reset(until.filter(|until| *until > now).unwrap_or(now + REST));
            if until.is_some_and(|until| until <= now) {
                self.clock.is_over.set(true);
                return Poll::Ready(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_alarm_rings_only_for_the_late_request() {
        let clock = Rc::new(Clock::default());
        let mut alarm = Alarm::new(&clock);
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let mut gone_off = async |limit: u64| {
            let alarm = poll_fn(|context| alarm.poll(context));
            tokio::time::timeout_at(after(limit), alarm).await.is_ok()
        };
        drop(clock.start(after(10)));
        assert!(!gone_off(20).await, "the first request was answered");
        let timed = clock.start(after(30));
        timed.until(after(50));
        assert!(!gone_off(40).await, "it was given more time");
        assert!(gone_off(60).await && timed.is_over());
        assert_eq!(began.elapsed(), Duration::from_secs(50));
        assert!(timed.bound(std::future::pending::<()>()).await.is_err());
        assert!(timed.bound(async {}).await.is_ok(), "a future that is ready wins");
        drop(timed);
        assert!(!clock.is_over());
        let _next = clock.start(after(8000));
        assert!(gone_off(9000).await, "the alarm goes off once in between");
        assert_eq!(began.elapsed(), Duration::from_secs(8000));
    }
}
