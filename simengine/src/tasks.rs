//! The one place of this crate that starts tasks. Each has a name, which the log says when the task panics.
//!
//! Tasks are spawned on the tracker that the crate was handed, so that its owner can wait for them.

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures::FutureExt;
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

/// Says which task panicked, and lets the panic go on to the task's owner.
async fn named<F: Future>(name: &'static str, task: F) -> F::Output {
    match AssertUnwindSafe(task).catch_unwind().await {
        Ok(output) => output,
        Err(panic) => {
            tracing::error!(task = name, "a task panicked");
            resume_unwind(panic)
        }
    }
}
