//! Starts all tasks of this crate. Each task has a name, which is logged if the task panics.

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Starts a task from a thread of Python.
pub(crate) fn spawn_on<F>(handle: &Handle, name: &'static str, task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    handle.spawn(async move {
        match AssertUnwindSafe(task).catch_unwind().await {
            Ok(output) => output,
            Err(panic) => {
                tracing::error!(task = name, "a task panicked");
                resume_unwind(panic)
            }
        }
    })
}
