//! Starts background tasks, and logs panics. Each task has a name, which is logged if the task panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, resume_unwind};

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Starts a task on the runtime of `handle`. The caller may be a thread outside the runtime.
pub(crate) fn spawn_on<F>(handle: &Handle, name: &'static str, task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let task = caught(name, task);
    handle.spawn(async move { task.await.unwrap_or_else(|panic| resume_unwind(panic)) })
}

/// Runs a task to its end. If the task panics, logs its name, and returns the panic as the error.
pub(crate) async fn caught<F: Future>(name: &str, task: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let output = AssertUnwindSafe(task).catch_unwind().await;
    if output.is_err() {
        tracing::error!(task = name, "a task panicked");
    }
    output
}
