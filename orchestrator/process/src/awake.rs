//! Threads that stay awake between events that follow each other closely.
//!
//! Waking a sleeping thread takes up to 100 us on a virtual machine, which is more than most requests take.
//! An event is *close* if the thread slept for less than [`WINDOW`] before it. After a close event the thread
//! stays awake for one [`WINDOW`], because the next event is probably close too. A thread whose events are
//! further apart sleeps between them. So an idle thread costs nothing, and a wrong guess costs at most one
//! [`WINDOW`]. A thread that is awake yields the core in every turn of its loop. If another thread takes the
//! core during the yield, the cores are busy. The thread then goes to sleep, because only the wake-up of
//! an idle core takes long.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// The time for which a thread stays awake after a close event. It is several times as long as a wake-up, but
/// too short to be a waste of the core.
const WINDOW: Duration = Duration::from_micros(500);

/// The limit for the time of a yield. A longer yield has given the core to another thread, which had work to
/// do. In that case the core is awake anyway, and polling for events would only take it from other threads.
const TURN: Duration = Duration::from_micros(20);

#[derive(Debug, Default)]
struct Awake {
    times: Mutex<Times>,
    /// Notified when the thread is about to sleep and has to stay awake.
    wanted: Notify,
}

#[derive(Debug, Default)]
struct Times {
    asleep_since: Option<Instant>,
    awake_until: Option<Instant>,
}

/// A runtime for one thread, which stays awake for [`WINDOW`] after each close event.
pub(crate) fn runtime() -> std::io::Result<Runtime> {
    let awake = Arc::new(Awake::default());
    let (before, after) = (Arc::clone(&awake), Arc::clone(&awake));
    let runtime = Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || before.before_sleep())
        .on_thread_unpark(move || after.after_sleep())
        .build()?;
    TaskTracker::new().spawn_on(async move { awake.keep().await }, runtime.handle());
    Ok(runtime)
}

impl Awake {
    fn before_sleep(&self) {
        let now = Instant::now();
        let mut times = self.times.lock();
        let stays_awake = times.awake_until.is_some_and(|until| now < until);
        times.asleep_since = (!stays_awake).then_some(now);
        drop(times);
        if stays_awake {
            // A task that is ready keeps the runtime from sleeping.
            self.wanted.notify_one();
        }
    }

    fn after_sleep(&self) {
        let now = Instant::now();
        let mut times = self.times.lock();
        let Some(since) = times.asleep_since.take() else { return };
        times.awake_until = (now.duration_since(since) < WINDOW).then(|| now + WINDOW);
    }

    fn is_over(&self) -> bool {
        self.times.lock().awake_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Lets the thread sleep if its yield, which took `yielded`, gave the core to another thread.
    fn after_yield(&self, yielded: Duration) {
        if yielded >= TURN {
            self.times.lock().awake_until = None;
        }
    }

    /// Whenever `wanted` is notified, keeps the thread polling for events without sleeping. The task ends
    /// with its runtime.
    async fn keep(&self) {
        loop {
            self.wanted.notified().await;
            while !self.is_over() {
                let yielded = Instant::now();
                std::thread::yield_now();
                self.after_yield(yielded.elapsed());
                tokio::task::yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
