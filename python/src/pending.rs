//! A call of the queue. A synchronous call runs on the thread of Python that waits for it, so that it costs no
//! switch to another thread before its request is sent. A call of asyncio runs on the runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rolldock_queue::QueueError;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::errors::{self, Failure};
use crate::runtime::{self, Own, Running};
use crate::tasks::spawn_on;

/// The time after which a wait checks for signals, such as Ctrl-C. An outcome ends the wait immediately.
const SIGNALS: Duration = Duration::from_millis(50);

/// Makes the object for Python. It is called with the GIL.
type Made = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Outcome = Result<Made, Failure>;

enum State {
    /// Nothing was sent yet.
    New(BoxFuture<'static, Outcome>),
    Running,
    Done(Outcome),
    /// The outcome was returned.
    Over,
}

/// A call of the queue. It begins when Python waits for it.
#[pyclass(frozen, module = "rolldock._rolldock")]
pub(crate) struct Pending {
    call: Own<Call>,
}

struct Call {
    state: Arc<Mutex<State>>,
    cancel: CancellationToken,
}

/// Stores the outcome of a call on the runtime, and then tells Python. If the runtime ends first, the call has
/// ended without an outcome.
struct Finish {
    state: Arc<Mutex<State>>,
    callback: Py<PyAny>,
}

impl Drop for Finish {
    fn drop(&mut self) {
        {
            let mut state = self.state.lock();
            if matches!(*state, State::Running) {
                *state = State::Done(Err(Failure::Ended));
            }
        }
        // If the interpreter has ended, no event loop waits.
        let _ = Python::try_attach(|py| {
            if let Err(error) = self.callback.call0(py) {
                error.write_unraisable(py, None);
            }
        });
    }
}

impl Pending {
    /// Makes a call. `convert` makes the object for Python from its value.
    pub(crate) fn new<T, F, C>(call: F, convert: C) -> PyResult<Self>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, QueueError>> + Send + 'static,
        C: FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    {
        let cancel = runtime::current()?.end.child_token();
        let cancelled = cancel.clone();
        let call = async move {
            let outcome = cancelled.run_until_cancelled_owned(call).await.ok_or(Failure::Ended)?;
            let value = outcome.map_err(Failure::from)?;
            Ok(Box::new(move |py: Python<'_>| convert(py, value)) as Made)
        };
        let state = Arc::new(Mutex::new(State::New(call.boxed())));
        Ok(Self { call: Own::new(Call { state, cancel }) })
    }

    /// Makes a call without a value.
    pub(crate) fn done<F>(call: F) -> PyResult<Self>
    where
        F: Future<Output = Result<(), QueueError>> + Send + 'static,
    {
        Self::new(call, |py, ()| Ok(py.None()))
    }

    fn call(&self, py: Python<'_>) -> PyResult<&Call> {
        self.call.get().ok_or_else(|| errors::forked(py, "this call"))
    }
}

impl Call {
    fn begin(&self) -> PyResult<BoxFuture<'static, Outcome>> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Running) {
            State::New(call) => Ok(call),
            other => {
                *state = other;
                Err(PyRuntimeError::new_err("the call has begun before"))
            }
        }
    }
}

#[pymethods]
impl Pending {
    /// Makes the call on this thread, without the GIL, and returns its value or raises its error. A signal
    /// handler that raises, such as that of Ctrl-C, cancels the call.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut driven = Driven::new(self.call(py)?.begin()?)?;
        loop {
            if let Some(outcome) = py.detach(|| driven.run(SIGNALS)) {
                // What is left of the call is dropped here, in the context of the runtime.
                drop(driven);
                return made(py, outcome);
            }
            if let Err(raised) = py.check_signals() {
                py.detach(|| drop(driven));
                return Err(raised);
            }
        }
    }

    /// Begins the call on the runtime, and calls `callback()` on one of its threads when there is an outcome.
    fn when_done(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        let call = self.call(py)?;
        let runtime = runtime::current()?.handle;
        let future = call.begin()?;
        let finish = Finish { state: Arc::clone(&call.state), callback };
        let task = async move {
            let outcome = future.await;
            *finish.state.lock() = State::Done(outcome);
        };
        drop(spawn_on(&runtime, "python call", task));
        Ok(())
    }

    /// Cancels the call. Its effects up to then remain. Rows that it was about to take are given back.
    fn cancel(&self) {
        if let Some(call) = self.call.get() {
            call.cancel.cancel();
        }
    }

    /// Returns the value of a call that `when_done` has reported, once, or raises its error.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut state = self.call(py)?.state.lock();
        match std::mem::replace(&mut *state, State::Over) {
            State::Done(outcome) => {
                drop(state);
                made(py, outcome)
            }
            other => {
                *state = other;
                Err(PyRuntimeError::new_err("the call has no outcome"))
            }
        }
    }
}

fn made(py: Python<'_>, outcome: Outcome) -> PyResult<Py<PyAny>> {
    match outcome {
        Ok(made) => made(py),
        Err(failure) => Err(failure.into_exception(py)),
    }
}

/// A call that the thread of Python runs itself. The runtime serves its sockets and timers.
struct Driven {
    /// `None` after its end.
    call: Option<BoxFuture<'static, Outcome>>,
    wakes: Arc<Wakes>,
    runtime: Handle,
    /// The runtime ends after this call.
    _running: TaskTrackerToken,
}

/// Wakes the thread that runs a call.
struct Wakes {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.thread.unpark();
        }
    }
}

impl Driven {
    fn new(call: BoxFuture<'static, Outcome>) -> PyResult<Self> {
        let Running { handle: runtime, calls, .. } = runtime::current()?;
        let wakes = Arc::new(Wakes { thread: std::thread::current(), is_woken: AtomicBool::new(true) });
        Ok(Self { call: Some(call), wakes, runtime, _running: calls.token() })
    }

    /// Runs the call for so long, and returns its outcome if it has ended.
    fn run(&mut self, time: Duration) -> Option<Outcome> {
        let call = self.call.as_mut()?;
        let _entered = self.runtime.enter();
        let waker = Waker::from(Arc::clone(&self.wakes));
        let mut context = Context::from_waker(&waker);
        let end = Instant::now() + time;
        loop {
            // A wake-up during the poll sets it again.
            if self.wakes.is_woken.swap(false, Ordering::AcqRel)
                && let Poll::Ready(outcome) = call.as_mut().poll(&mut context)
            {
                return Some(outcome);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            if !self.wakes.is_woken.load(Ordering::Acquire) {
                std::thread::park_timeout(left);
            }
        }
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        // Rows that a cancelled take was about to get are given back by tasks.
        let _entered = self.runtime.enter();
        self.call = None;
    }
}
