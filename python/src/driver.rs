//! Runs calls in the threads that make them.
//!
//! A call that waits for a socket in its own thread needs one wake-up for each answer. If the runtime had
//! threads of its own, each call would be handed to such a thread and back. These switches cost more than a
//! small call itself, above all where many processes share a few cores.
//!
//! The runtime has no threads of its own: a thread that waits for a call drives the runtime, including all
//! tasks in the background. If several threads wait, one of them drives, and wakes the others when their
//! calls have ended. If no thread waits, a dedicated thread, the **steward**, drives the tasks. It begins
//! when no call has ended for [`GRACE`], so that calls in a row do not wake it, or at once if a call runs in
//! the background ([`Driver::in_background`]). It ends as soon as a thread waits for a call again. Calls in a row may
//! all have their outcomes at once, so that none of them drives anything. One of them therefore drives the tasks
//! when they have had no turn for [`TURN_EVERY`].
//!
//! The turns have a mutex and a condition variable of the standard library. Those of parking_lot keep the threads
//! that wait in a table of the whole process, whose locks may be held when another thread forks.

use std::io;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The time after a call before the steward drives the runtime. What waits for the steward can wait: leases
/// are renewed and given back within seconds. Where many processes share a core, two calls of a process may
/// be far apart.
const GRACE: Duration = Duration::from_millis(50);
/// The time after which a call gives the tasks in the background a turn, although it has its outcome.
const TURN_EVERY: Duration = Duration::from_millis(10);

#[derive(Default)]
struct Turns {
    /// Threads that wait for calls.
    callers: usize,
    /// Waits that have ended.
    ended: u64,
    /// Calls that run in the background. They need the steward before [`GRACE`] has passed.
    background: usize,
    steward: Steward,
    /// When a call last gave the tasks a turn.
    turn_at: Option<Instant>,
    is_closed: bool,
}

/// What the steward does.
#[derive(Default, PartialEq)]
enum Steward {
    /// It waits for a time of [`GRACE`] in which no wait ends.
    #[default]
    Watches,
    /// It waits until no thread waits for a call.
    Rests,
    /// It drives the runtime.
    Drives,
}

/// A runtime without threads of its own.
pub(crate) struct Driver {
    /// Each thread that waits has locked it for reading. `None` after [`Driver::close`].
    runtime: RwLock<Option<Runtime>>,
    handle: Handle,
    #[expect(clippy::disallowed_types, reason = "the module's documentation says why")]
    turns: std::sync::Mutex<Turns>,
    changed: Condvar,
    /// Ends the steward's turn.
    turn_ends: Notify,
    /// Ends all waits.
    closed: CancellationToken,
}

/// A thread's wait for a call, until this value is dropped.
struct Turn<'a>(&'a Driver);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.0.turns();
        turns.callers -= 1;
        turns.ended += 1;
        if turns.callers == 0 && turns.steward == Steward::Rests {
            self.0.changed.notify_all();
        }
    }
}

/// A call that runs in the background, until this value is dropped.
pub(crate) struct Background(Arc<Driver>);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.turns().background -= 1;
    }
}

impl Driver {
    /// Starts a driver and its steward.
    ///
    /// # Errors
    /// The system's error if the runtime or the thread cannot be started.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let runtime = Builder::new_current_thread().enable_all().thread_name("rolldock").build()?;
        let driver = Arc::new(Self {
            handle: runtime.handle().clone(),
            runtime: RwLock::new(Some(runtime)),
            turns: Default::default(),
            changed: Condvar::new(),
            turn_ends: Notify::new(),
            closed: CancellationToken::new(),
        });
        let steward = Arc::clone(&driver);
        std::thread::Builder::new().name("rolldock steward".into()).spawn(move || steward.keep())?;
        Ok(driver)
    }

    /// A poisoned lock is used: nothing that changes the turns can panic, so they are never half changed.
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits in this thread, at most for `limit`. Returns `None` if the limit has passed or the driver is
    /// closed.
    pub(crate) fn wait<F: Future>(&self, limit: Duration, call: F) -> Option<F::Output> {
        let runtime = self.runtime.read();
        let runtime = runtime.as_ref()?;
        let _turn = self.begin();
        runtime.block_on(async {
            let limited = tokio::time::timeout(limit, call);
            let outcome = self.closed.run_until_cancelled(limited).await?.ok();
            if self.is_turn_due() {
                // The first turn wakes the tasks whose time has come, and the second one runs them.
                yield_now().await;
                yield_now().await;
            }
            outcome
        })
    }

    fn is_turn_due(&self) -> bool {
        let now = Instant::now();
        let last = &mut self.turns().turn_at;
        let is_due = last.is_none_or(|last| now.duration_since(last) >= TURN_EVERY);
        if is_due {
            *last = Some(now);
        }
        is_due
    }

    fn begin(&self) -> Turn<'_> {
        let mut turns = self.turns();
        turns.callers += 1;
        if turns.steward == Steward::Drives {
            self.turn_ends.notify_one();
        }
        Turn(self)
    }

    /// Counts a call in the background until the returned value is dropped. The steward drives such a call as
    /// soon as no thread waits.
    pub(crate) fn in_background(self: &Arc<Self>) -> Background {
        let mut turns = self.turns();
        turns.background += 1;
        if turns.callers == 0 && turns.steward == Steward::Watches {
            self.changed.notify_all();
        }
        Background(Arc::clone(self))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// The steward: drives the runtime whenever no other thread does, until the driver is closed.
    fn keep(&self) {
        let mut turns = self.turns();
        while !turns.is_closed {
            let ended = turns.ended;
            if turns.background == 0 {
                let waited = self.changed.wait_timeout(turns, GRACE);
                turns = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            let is_due = turns.background > 0 || turns.ended == ended;
            if turns.is_closed || !is_due {
                continue;
            }
            if turns.callers > 0 {
                turns.steward = Steward::Rests;
                turns = self.changed.wait(turns).unwrap_or_else(PoisonError::into_inner);
            } else {
                turns.steward = Steward::Drives;
                drop(turns);
                if let Some(runtime) = self.runtime.read().as_ref() {
                    runtime.block_on(self.turn_ends.notified());
                }
                turns = self.turns();
            }
            turns.steward = Steward::Watches;
        }
    }

    /// Finishes `last`, waits for the threads that wait for calls, and ends all tasks. Each of the three
    /// takes at most `limit`.
    pub(crate) fn close(&self, limit: Duration, last: impl Future<Output = ()>) {
        self.wait(limit, last);
        self.closed.cancel();
        {
            let mut turns = self.turns();
            turns.is_closed = true;
            self.turn_ends.notify_one();
            self.changed.notify_all();
        }
        // If a task does not let its thread go in time, the runtime stays, and nothing drives it.
        let runtime = self.runtime.try_write_for(limit).and_then(|mut runtime| runtime.take());
        if let Some(runtime) = runtime {
            runtime.shutdown_timeout(limit);
        }
    }
}
