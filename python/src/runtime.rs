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
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use tokio_util::task::TaskTracker;

use crate::callbacks::{CallbackThread, Callbacks};
use crate::driver::Driver;

/// The longest time for which the end of the interpreter waits for calls that give rows back, and then again
/// for threads that copy or write rows, and for callbacks.
const END_MAX: Duration = Duration::from_secs(5);

struct Current {
    process: u32,
    /// `None` after [`end`].
    driver: Option<Arc<Driver>>,
    /// The tasks that give rows back to servers.
    give_backs: TaskTracker,
    /// `None` until the first call that runs in the background.
    callbacks: Option<CallbackThread>,
}

/// A thread locks this mutex only while it holds the GIL. A fork holds the GIL, so a child finds it unlocked.
static CURRENT: Mutex<Option<Current>> = Mutex::new(None);

/// Returns the runtime of this process.
///
/// # Errors
/// The system's error if no thread can be started, and an error of its own after [`end`].
pub(crate) fn driver() -> io::Result<Arc<Driver>> {
    with_give_backs().map(|(driver, _)| driver)
}

/// Returns the runtime of this process, and the tracker of the tasks that give rows back to servers.
///
/// # Errors
/// Returns the errors of [`driver`].
pub(crate) fn with_give_backs() -> io::Result<(Arc<Driver>, TaskTracker)> {
    let process = std::process::id();
    let mut current = CURRENT.lock();
    if let Some(known) = current.as_ref().filter(|known| known.process == process) {
        let running = known.driver.as_ref().map(|driver| (Arc::clone(driver), known.give_backs.clone()));
        return running.ok_or_else(ending);
    }
    let driver = Driver::start()?;
    let give_backs = TaskTracker::new();
    let started = Current {
        process,
        driver: Some(Arc::clone(&driver)),
        give_backs: give_backs.clone(),
        callbacks: None,
    };
    // The runtime of the parent is not dropped: that would wait for threads that this process does not have.
    std::mem::forget(current.replace(started));
    Ok((driver, give_backs))
}

/// Returns the thread of this process that runs callbacks, which the first call of this function starts.
///
/// # Errors
/// Returns the errors of [`driver`].
pub(crate) fn callbacks() -> io::Result<Callbacks> {
    driver()?;
    let mut current = CURRENT.lock();
    let current = current.as_mut().filter(|current| current.driver.is_some());
    let Some(current) = current else { return Err(ending()) };
    let thread = match current.callbacks.take() {
        Some(thread) => thread,
        None => CallbackThread::start()?,
    };
    Ok(current.callbacks.insert(thread).callbacks())
}

fn ending() -> io::Error {
    io::Error::other("the interpreter is ending, so no call can begin")
}

/// Ends the runtime of this process: calls that are under way end without an outcome. Afterwards no thread of
/// the runtime is in Python. Python calls this when the interpreter begins to end.
#[pyfunction]
pub(crate) fn end(py: Python<'_>) {
    let process = std::process::id();
    let ended = Current { process, driver: None, give_backs: TaskTracker::new(), callbacks: None };
    let known = CURRENT.lock().replace(ended);
    match known {
        Some(Current { process: own, driver: Some(driver), give_backs, callbacks }) if own == process => {
            give_backs.close();
            py.detach(move || {
                // The rows of calls that need longer are given back when their leases expire.
                driver.close(END_MAX, async { give_backs.wait().await });
                if let Some(callbacks) = callbacks {
                    callbacks.end(END_MAX);
                }
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
