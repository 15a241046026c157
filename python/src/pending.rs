//! A call that runs while Python waits for it.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;
use rolldock_queue::QueueError;
use tokio_util::sync::CancellationToken;

use crate::callbacks::Callbacks;
use crate::driver::Driver;
use crate::errors::{self, Failure};
use crate::releases;
use crate::runtime::{self, Own};
use crate::tasks::{caught, spawn_on};

/// The time after which a wait checks for signals, such as Ctrl-C. An outcome ends the wait immediately.
const SIGNALS: Duration = Duration::from_millis(50);

/// Makes the object for Python. It is called with the GIL.
type Made = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Outcome = Result<Made, Failure>;

#[derive(Default)]
struct State {
    is_done: bool,
    outcome: Option<Outcome>,
    callback: Option<(Py<PyAny>, Callbacks)>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    done: Condvar,
}

impl Shared {
    fn finish(&self, outcome: Outcome) {
        let callback = {
            let mut state = self.state.lock();
            if state.is_done {
                return;
            }
            state.is_done = true;
            state.outcome = Some(outcome);
            state.callback.take()
        };
        self.done.notify_all();
        if let Some((callback, callbacks)) = callback {
            callbacks.call(callback);
        }
    }

    /// Waits for the outcome, at most until signals have to be checked.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_done {
            self.done.wait_for(&mut state, SIGNALS);
        }
        state.is_done
    }
}

/// Gives a call an outcome if its task is dropped before it has one.
struct Finish(Arc<Shared>);

impl Drop for Finish {
    fn drop(&mut self) {
        self.0.finish(Err(Failure::Cancelled));
    }
}

/// A call of the queue. It begins when Python waits for it. [`Self::wait`] runs it in the waiting thread, and
/// [`Self::when_done`] in the background.
#[pyclass(frozen, module = "rolldock._rolldock")]
pub(crate) struct Pending {
    call: Own<Running>,
}

struct Running {
    shared: Arc<Shared>,
    driver: Arc<Driver>,
    /// `None` when the call has begun.
    task: Mutex<Option<BoxFuture<'static, ()>>>,
    cancel: CancellationToken,
}

impl Running {
    /// Runs the call in this thread, if it has not begun. Otherwise waits for the thread that runs it.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let Some(mut task) = self.task.lock().take() else {
            while !py.detach(|| self.shared.wait()) {
                py.check_signals().inspect_err(|_| self.cancel.cancel())?;
            }
            return Ok(());
        };
        while py.detach(|| self.driver.wait(SIGNALS, &mut task)).is_none() && !self.driver.is_closed() {
            if let Err(raised) = py.check_signals() {
                // The call is dropped inside the runtime, because it may start a task that gives rows back.
                self.cancel.cancel();
                py.detach(|| self.driver.wait(SIGNALS, task));
                return Err(raised);
            }
        }
        Ok(())
    }

    /// Begins the call in the background, if it has not begun.
    fn begin(&self) {
        if let Some(task) = self.task.lock().take() {
            let in_background = self.driver.in_background();
            let task = task.map(move |()| drop(in_background));
            drop(spawn_on(self.driver.handle(), "python call", task));
        }
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
        let shared = Arc::<Shared>::default();
        let finish = Finish(Arc::clone(&shared));
        let cancel = CancellationToken::new();
        let cancelled = cancel.clone();
        let task = async move {
            let outcome = match caught("python call", cancelled.run_until_cancelled(call)).await {
                Ok(Some(outcome)) => outcome.map_err(Failure::from),
                Ok(None) => Err(Failure::Cancelled),
                Err(_) => Err(Failure::Panicked),
            };
            finish.0.finish(outcome.map(|value| -> Made { Box::new(move |py| convert(py, value)) }));
        };
        let (driver, task) = (runtime::driver()?, Mutex::new(Some(task.boxed())));
        Ok(Self { call: Own::new(Running { shared, driver, task, cancel }) })
    }

    fn running(&self, py: Python<'_>) -> PyResult<&Running> {
        self.call.get().ok_or_else(|| errors::forked(py, "this call"))
    }

    /// Makes a call without a value.
    pub(crate) fn done<F>(call: F) -> PyResult<Self>
    where
        F: Future<Output = Result<(), QueueError>> + Send + 'static,
    {
        Self::new(call, |py, ()| Ok(py.None()))
    }
}

#[pymethods]
impl Pending {
    /// Runs the call without the GIL, and waits for its outcome. A signal handler that raises, such as the
    /// handler of Ctrl-C, ends the wait and cancels the call.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.running(py)?.wait(py)?;
        self.result(py)
    }

    /// Runs the call in the background. Calls `callback()` in a thread for callbacks when there is an outcome,
    /// or immediately if there is one already.
    fn when_done(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        let running = self.running(py)?;
        let callbacks = runtime::callbacks()?;
        {
            let mut state = running.shared.state.lock();
            if !state.is_done {
                state.callback = Some((callback, callbacks));
                drop(state);
                running.begin();
                return Ok(());
            }
        }
        callback.call0(py).map(drop)
    }

    /// Cancels the call. Its effects up to then remain. Rows that it was about to take are given back.
    fn cancel(&self) {
        if let Some(running) = self.call.get() {
            running.cancel.cancel();
        }
    }

    /// Returns the value of a call that has ended, once, or raises its error.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        releases::release(py);
        let outcome = self.running(py)?.shared.state.lock().outcome.take();
        match outcome.unwrap_or(Err(Failure::Cancelled)) {
            Ok(made) => made(py),
            Err(failure) => Err(failure.into_exception(py)),
        }
    }
}
