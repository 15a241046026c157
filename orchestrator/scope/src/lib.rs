//! The one place that spawns tasks.
//!
//! A [`Scope`] owns the tasks started in it and the token that ends them, so that nothing runs on unseen
//! after its owner has gone and shutting down can wait for everything. Leaf crates that need a task of their
//! own are handed the scope's tracker and token; `clippy.toml` closes `tokio::spawn` everywhere else.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// A set of tasks with one end.
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

    /// A scope that ends with this one, or earlier; its tasks are waited for on their own.
    pub fn child(&self) -> Self {
        Self { tracker: TaskTracker::new(), token: self.token.child_token() }
    }

    /// Starts a task; dropping the handle aborts it.
    pub fn spawn<F>(&self, task: F) -> AbortOnDropHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        AbortOnDropHandle::new(self.tracker.spawn(task))
    }

    /// Runs `work` on the blocking pool. It cannot be aborted, so it has to be short.
    pub fn spawn_blocking<F, T>(&self, work: F) -> tokio::task::JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.tracker.spawn_blocking(work)
    }

    /// Ended when the scope is.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// For leaf crates that spawn.
    pub fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Asks every task to end and waits for them; `false` when some were still there after `limit`.
    ///
    /// Cancel-safe.
    pub async fn close(&self, limit: Duration) -> bool {
        self.token.cancel();
        self.tracker.close();
        tokio::time::timeout(limit, self.tracker.wait()).await.is_ok()
    }
}
