//! Runs callbacks of Python in a thread of their own.
//!
//! A callback runs code of Python, and so may the garbage collector in the same thread: the finalizer of an object may
//! call a queue. Furthermore, another thread may hold the GIL for seconds. The thread that drives the runtime must not
//! run callbacks: a call cannot wait for the runtime inside the runtime, and no lease is renewed while that thread
//! waits for the GIL.

use std::convert::Infallible;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use pyo3::prelude::*;

/// Hands callbacks to the thread.
#[derive(Clone)]
pub(crate) struct Callbacks(Sender<Option<Py<PyAny>>>);

impl Callbacks {
    /// Has the thread call `callback()`. An error of the callback is reported as Python reports errors of finalizers.
    pub(crate) fn call(&self, callback: Py<PyAny>) {
        if let Err(unsent) = self.0.send(Some(callback)) {
            // The thread has ended before the interpreter, so no event loop waits. This thread has no GIL.
            std::mem::forget(unsent);
        }
    }
}

/// The thread. One is enough for a process, because callbacks share the GIL.
pub(crate) struct CallbackThread {
    callbacks: Callbacks,
    /// Disconnected when the thread has ended.
    ended: Receiver<Infallible>,
}

impl CallbackThread {
    /// # Errors
    /// The system's error if the thread cannot be started.
    pub(crate) fn start() -> io::Result<Self> {
        let (callbacks, waiting) = channel();
        let (ends, ended) = channel();
        std::thread::Builder::new().name("rolldock callbacks".into()).spawn(move || {
            run(&waiting);
            drop(ends);
        })?;
        Ok(Self { callbacks: Callbacks(callbacks), ended })
    }

    pub(crate) fn callbacks(&self) -> Callbacks {
        self.callbacks.clone()
    }

    /// Runs the callbacks that were handed over before, and ends the thread. Waits for its end, at most for `limit`.
    pub(crate) fn end(&self, limit: Duration) {
        if self.callbacks.0.send(None).is_ok() {
            let _ = self.ended.recv_timeout(limit);
        }
    }
}

fn run(waiting: &Receiver<Option<Py<PyAny>>>) {
    while let Ok(Some(first)) = waiting.recv() {
        // Callbacks that have come in the meantime need no further wait for the GIL.
        let does_continue = Python::try_attach(|py| {
            call(py, &first);
            drop(first);
            while let Ok(next) = waiting.try_recv() {
                let Some(callback) = next else { return false };
                call(py, &callback);
            }
            true
        });
        // If the interpreter has ended, no event loop waits.
        if does_continue != Some(true) {
            return;
        }
    }
}

fn call(py: Python<'_>, callback: &Py<PyAny>) {
    if let Err(error) = callback.call0(py) {
        error.write_unraisable(py, None);
    }
}
