//! Starts the tasks of the orchestrator. Each task has a name, which is logged if the task panics.
//!
//! A [`Scope`] has a tracker of its tasks, and the token that ends them. Closing a scope cancels the token
//! and waits for the tasks, up to a limit. Leaf crates start their tasks in their `tasks` modules, with the
//! scope's tracker and token. `clippy.toml` forbids `tokio::spawn` and `spawn_blocking` elsewhere, and a test
//! finds tasks that are started without a name.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use futures::FutureExt;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// A set of tasks that are ended together.
///
/// ```
/// use std::time::Duration;
///
/// use rolldock_scope::Scope;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
/// # runtime.block_on(async {
/// let scope = Scope::new();
/// let token = scope.token().clone();
/// scope.spawn_detached("a server", async move { token.cancelled().await });
/// let answer = scope.spawn("an answer", async { 6 * 7 });
/// assert_eq!(answer.await.unwrap(), 42);
///
/// // Both tasks have ended when the scope is closed.
/// assert!(scope.close(Duration::from_secs(1)).await);
/// # });
/// ```
#[derive(Debug, Clone, Default)]
pub struct Scope {
    tracker: TaskTracker,
    token: CancellationToken,
}

impl Scope {
    /// An empty scope.
    pub fn new() -> Self {
        Self::default()
    }

    /// A scope that ends when this scope ends, or earlier. Closing this scope does not wait for the child's
    /// tasks. Closing the child waits for them.
    pub fn child(&self) -> Self {
        Self { tracker: TaskTracker::new(), token: self.token.child_token() }
    }

    /// Starts a task; dropping the handle aborts it.
    pub fn spawn<F>(&self, name: &'static str, task: F) -> AbortOnDropHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        AbortOnDropHandle::new(self.tracker.spawn(named(name, task)))
    }

    /// Starts a task that ends by itself, when it has done its work or the scope's token is cancelled.
    pub fn spawn_detached<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tracker.spawn(named(name, task));
    }

    /// Runs `work` on the blocking pool. `work` cannot be aborted, so it has to be short.
    pub fn spawn_blocking<F, T>(&self, name: &'static str, work: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.tracker.spawn_blocking(move || named_blocking(name, work))
    }

    /// The token that is cancelled when the scope ends.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// The tracker of the scope's tasks, for leaf crates that start tasks of their own.
    pub fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Asks every task to end and waits for them. Returns `false` if some still run after `limit`.
    ///
    /// Cancel-safe.
    pub async fn close(&self, limit: Duration) -> bool {
        self.token.cancel();
        self.tracker.close();
        tokio::time::timeout(limit, self.tracker.wait()).await.is_ok()
    }
}

/// Runs `work` on the blocking pool, for a caller that awaits it and has no scope. `work` cannot be aborted
/// and has to end by itself.
#[expect(clippy::disallowed_methods, reason = "this is the place that starts blocking work, under a name")]
pub fn blocking<F, T>(name: &'static str, work: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    tokio::task::spawn_blocking(move || named_blocking(name, work))
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
