//! Starts all tasks and all blocking work of this crate. Each task and each piece of work has a name, which
//! is logged after a panic.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

/// Starts a task from a thread that may have no runtime. The tracker's owner can wait for the task.
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

/// Runs `work` on the blocking pool, for a caller that awaits it. The work cannot be aborted.
#[expect(clippy::disallowed_methods, reason = "this is the place that starts blocking work, under a name")]
pub(crate) fn blocking<F, T>(name: &'static str, work: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    tokio::task::spawn_blocking(move || named_blocking(name, work))
}

/// Runs `work` on a separate thread, within the runtime of the caller. Returns a receiver of the result,
/// which is closed if the work panicked.
///
/// The thread ends with the work, so the allocator keeps no memory for it. A thread of the blocking pool
/// would stay, and the allocator would keep memory of every size that any work on this thread has used.
pub(crate) fn on_own_thread<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<oneshot::Receiver<T>> {
    let (reply, outcome) = oneshot::channel();
    let runtime = Handle::current();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _within = runtime.enter();
        // If the caller was cancelled, nothing receives the result.
        let _ = reply.send(named_blocking(name, work));
    })?;
    Ok(outcome)
}

/// Logs the name of a task that panicked, and passes the panic on to the task's owner.
async fn named<F: Future>(name: &'static str, task: F) -> F::Output {
    match AssertUnwindSafe(task).catch_unwind().await {
        Ok(output) => output,
        Err(panic) => {
            tracing::error!(task = name, "a task panicked");
            resume_unwind(panic)
        }
    }
}

/// Logs the name of the work that panicked, and passes the panic on to the work's owner.
fn named_blocking<T>(name: &'static str, work: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(output) => output,
        Err(panic) => {
            tracing::error!(task = name, "a task panicked");
            resume_unwind(panic)
        }
    }
}
