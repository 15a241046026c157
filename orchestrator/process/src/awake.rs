//! Threads that stay awake between events that follow each other closely.
//!
//! Waking a sleeping thread takes up to 100 us on a virtual machine, which is more than most requests take.
//! An event is *close* if the thread slept for less than [`WINDOW`] before it. After a close event the thread
//! stays awake for one [`WINDOW`], because the next event is probably close too. A thread whose events are
//! further apart sleeps between them. So an idle thread costs nothing, and a wrong guess costs at most one
//! [`WINDOW`].
//!
//! A thread stays awake only while the cores are not busy ([`Cores`]). On busy cores, it would take its core
//! from the clients whose requests it waits for, and it would answer each request separately, with a switch
//! to the client after each. A thread that sleeps on busy cores finds several requests when it wakes up. With
//! 16 Python clients on two cores, sleeping gave 1.1 to 1.7 times the rate. With one client on two cores,
//! sleeping doubled the time of a small call. In a container, the threads of other containers count too, so a
//! thread sleeps more often than it has to.

use std::fs::File;
use std::os::unix::fs::FileExt;
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

/// The limit for the time of a yield. A longer yield has given the core to another thread.
const TURN: Duration = Duration::from_micros(20);

/// The number of running threads per core above which the cores are busy. It is above 1, because threads that
/// run for a moment count too, for example when an answer wakes two threads of a client.
const THREADS_PER_CORE: usize = 2;

/// The cores of the machine, and the file in which Linux reports how many threads use them.
#[derive(Debug)]
struct Cores {
    count: usize,
    /// `None` on systems without the file. Threads then sleep between events.
    load: Option<File>,
}

impl Cores {
    fn new() -> Self {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        Self { count, load: File::open("/proc/loadavg").ok() }
    }

    /// Whether more threads run at this moment than [`THREADS_PER_CORE`] allows. The answer takes 2 us.
    fn are_busy(&self) -> bool {
        let mut text = [0; 128];
        let length = self.load.as_ref().and_then(|load| load.read_at(&mut text, 0).ok());
        let running = length.and_then(|length| running(&text[..length]));
        running.is_none_or(|running| running > self.count.saturating_mul(THREADS_PER_CORE))
    }
}

/// The number of threads that run or could run, this one included, by the text of `/proc/loadavg`.
fn running(text: &[u8]) -> Option<usize> {
    let threads = std::str::from_utf8(text).ok()?.split(' ').nth(3)?;
    threads.split_once('/')?.0.parse().ok()
}

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

/// A runtime for one thread, which stays awake for [`WINDOW`] after each close event unless the cores are busy.
pub(crate) fn runtime() -> std::io::Result<Runtime> {
    let (awake, cores) = (Arc::new(Awake::default()), Arc::new(Cores::new()));
    let (before, after, cores_after) = (Arc::clone(&awake), Arc::clone(&awake), Arc::clone(&cores));
    let runtime = Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || before.before_sleep())
        .on_thread_unpark(move || after.after_sleep(|| cores_after.are_busy()))
        .build()?;
    TaskTracker::new().spawn_on(async move { awake.keep(|| cores.are_busy()).await }, runtime.handle());
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

    fn after_sleep(&self, are_cores_busy: impl FnOnce() -> bool) {
        let now = Instant::now();
        let mut times = self.times.lock();
        let Some(since) = times.asleep_since.take() else { return };
        let stays_awake = now.duration_since(since) < WINDOW && !are_cores_busy();
        times.awake_until = stays_awake.then(|| now + WINDOW);
    }

    fn is_over(&self) -> bool {
        self.times.lock().awake_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Lets the thread sleep if its yield, which took `yielded`, gave the core to another thread because the cores
    /// are busy. If they are not busy, the thread stays awake, and the scheduler moves one of the two threads.
    fn after_yield(&self, yielded: Duration, are_cores_busy: impl FnOnce() -> bool) {
        if yielded >= TURN && are_cores_busy() {
            self.times.lock().awake_until = None;
        }
    }

    /// Whenever `wanted` is notified, keeps the thread polling for events without sleeping. The task ends
    /// with its runtime.
    async fn keep(&self, are_cores_busy: impl Fn() -> bool) {
        loop {
            self.wanted.notified().await;
            while !self.is_over() {
                let yielded = Instant::now();
                std::thread::yield_now();
                self.after_yield(yielded.elapsed(), &are_cores_busy);
                tokio::task::yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
