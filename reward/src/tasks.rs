//! All tasks of this crate are started here. Each task has a name, which is logged when the task panics.
//!
//! The user of the crate passes in a tracker. Tasks are spawned on this tracker, so the user can wait for the
//! tasks.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

/// Starts a task.
pub(crate) fn spawn<F>(tracker: &TaskTracker, name: &'static str, task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tracker.spawn(named(name, task))
}

/// Starts a task from a thread that may have no runtime.
pub(crate) fn spawn_on<F>(
    tracker: &TaskTracker,
    name: &'static str,
    task: F,
    runtime: &Handle,
) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tracker.spawn_on(named(name, task), runtime)
}

/// Runs `work` on the blocking pool. `work` cannot be aborted, so `work` has to be short.
pub(crate) fn spawn_blocking<F, T>(tracker: &TaskTracker, name: &'static str, work: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    tracker.spawn_blocking(move || named_blocking(name, work))
}

/// Logs the name of a task that panics, and then resumes the panic.
async fn named<F: Future>(name: &'static str, task: F) -> F::Output {
    match AssertUnwindSafe(task).catch_unwind().await {
        Ok(output) => output,
        Err(panic) => {
            tracing::error!(task = name, "a task panicked");
            resume_unwind(panic)
        }
    }
}

/// Logs the name of blocking work that panics, and then resumes the panic.
fn named_blocking<T>(name: &'static str, work: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(output) => output,
        Err(panic) => {
            tracing::error!(task = name, "a task panicked");
            resume_unwind(panic)
        }
    }
}
