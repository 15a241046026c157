//! The runtime of this process.
//!
//! All clients of a process share one runtime. A forked child has none of its parent's threads, so it gets a
//! new runtime. The child does not touch the values of its parent's runtime.
//!
//! The runtime ends before the interpreter does, because the end of the interpreter stops each thread at its
//! next wait for the GIL, and the Rust frames of such a thread would abort the process. Before it ends, the
//! runtime finishes the background calls that give rows back. Otherwise these rows would stay leased until
//! their leases expire.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The threads of the runtime that wait for sockets and timers. A thread of Python makes its calls itself, and large
/// rows are copied on the blocking pool. So a second thread would seldom have work, but each event would wake it:
/// a thread that finds a task ready lets another one wait for the next event.
const THREADS: usize = 1;
/// The longest time for which the end of the interpreter waits for calls that give rows back, and then again
/// for threads that copy or write rows.
const END_MAX: Duration = Duration::from_secs(5);

/// The runtime of this process, as calls use it.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) handle: Handle,
    /// The tasks that give rows back to servers.
    pub(crate) give_backs: TaskTracker,
    /// The calls that threads of Python make. They use the runtime, so it ends after them.
    pub(crate) calls: TaskTracker,
    /// Cancelled when the runtime is about to end.
    pub(crate) end: CancellationToken,
}

struct Current {
    process: u32,
    /// `None` after [`end`].
    runtime: Option<(Runtime, Running)>,
}

/// A thread locks it only while it holds the GIL, and a fork holds the GIL. So a child finds it unlocked.
static CURRENT: Mutex<Option<Current>> = Mutex::new(None);

/// Returns the runtime of this process.
///
/// # Errors
/// The system's error if no thread can be started, and an error of its own after [`end`].
pub(crate) fn current() -> io::Result<Running> {
    let process = std::process::id();
    let mut current = CURRENT.lock();
    if let Some(known) = current.as_ref().filter(|known| known.process == process) {
        let running = known.runtime.as_ref().map(|(_, running)| running.clone());
        return running.ok_or_else(|| io::Error::other("the interpreter is ending, so no call can begin"));
    }
    let runtime =
        Builder::new_multi_thread().worker_threads(THREADS).thread_name("rolldock").enable_all().build()?;
    let running = Running {
        handle: runtime.handle().clone(),
        give_backs: TaskTracker::new(),
        calls: TaskTracker::new(),
        end: CancellationToken::new(),
    };
    let started = Current { process, runtime: Some((runtime, running.clone())) };
    // The runtime of the parent is not dropped: that would wait for threads that this process does not have.
    std::mem::forget(current.replace(started));
    Ok(running)
}

/// Ends the runtime of this process: calls that are under way end without an outcome. Afterwards no thread of
/// the runtime is in Python. Python calls this when the interpreter begins to end.
#[pyfunction]
pub(crate) fn end(py: Python<'_>) {
    let process = std::process::id();
    let known = CURRENT.lock().replace(Current { process, runtime: None });
    match known {
        Some(Current { process: own, runtime: Some((runtime, running)) }) if own == process => {
            py.detach(|| {
                running.end.cancel();
                running.calls.close();
                running.give_backs.close();
                let ended = async { tokio::join!(running.calls.wait(), running.give_backs.wait()) };
                // The rows of calls that need longer are given back when their leases expire.
                let _ = runtime.block_on(async { timeout(END_MAX, ended).await });
                runtime.shutdown_timeout(END_MAX);
            });
        }
        of_parent => std::mem::forget(of_parent),
    }
}

/// A value that belongs to the process that made it. In a forked child it is neither used nor dropped,
/// because its sockets are shared with the parent and its locks may be held by threads that the child does
/// not have.
pub(crate) struct Own<T> {
    process: u32,
    value: ManuallyDrop<T>,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: std::process::id(), value: ManuallyDrop::new(value) }
    }

    /// Returns the value, or `None` in a forked child.
    pub(crate) fn get(&self) -> Option<&T> {
        (self.process == std::process::id()).then(|| self.value.deref())
    }
}

impl<T> Drop for Own<T> {
    #[expect(unsafe_code, reason = "the value is dropped in one process only")]
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: the value is dropped once, here, and is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
