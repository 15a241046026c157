//! The driver, which brings the newest announced version to the servers when the recipe's mode allows it.
//!
//! One task runs all updates, so a cancelled caller leaves no server half updated. In `fully_async` the
//! task updates the servers as soon as there is a newer version. In the other modes the task updates the
//! servers only when the run reports that it is between two steps. Announcements are also accepted during an
//! update. The newest of them is applied next, and the others are skipped.
//!
//! # Invariants
//! A version is published only if at least one server has it, or if no server is alive. The updater keeps
//! servers that lack the version out of rotation. At most one update runs at a time.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{Announcement, PolicyError, PolicyMode, PolicyState, PolicyTerms};
use rolldock_scope::Scope;

/// The first pause before the retry of an update that reached no server. The pause doubles up to the maximum.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(60);

/// A server that did not get a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missed {
    /// The server's name in the fleet.
    pub server: String,
    /// The call at which the server failed, and the reason.
    pub reason: String,
}

/// The result of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// Servers were asked.
    Asked {
        /// Number of servers that have the version.
        updated: usize,
        /// The servers that do not have the version.
        missed: Vec<Missed>,
    },
    /// The update did not begin: the announcement lacks data that the method needs, or another caller has
    /// announced a newer version to the updater.
    Refused {
        /// The reason.
        reason: String,
    },
    /// The updater has ended.
    Ended,
}

/// The progress of an update.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpdateProgress {
    /// The phase of the running update.
    pub phase: Option<String>,
    /// Servers that do not have the version that they should have.
    pub behind: Vec<String>,
}

/// Brings versions to servers.
pub trait ApplyVersion: Send + Sync + 'static {
    /// Brings every server to a version. The future ends by its own deadlines. Dropping the future may leave
    /// servers paused.
    fn apply<'a>(&'a self, announcement: &'a Announcement) -> BoxFuture<'a, Applied>;

    /// Keeps servers from generating until they have these weights or newer ones. It is called when a run
    /// continues, because the servers' weights are then unknown. It sends no request.
    fn require(&self, announcement: &Announcement) {
        let _ = announcement;
    }

    /// Resumes servers that an earlier process of the run left paused.
    fn recover(&self) -> BoxFuture<'_, ()> {
        future::ready(()).boxed()
    }

    /// After the update, brings servers that lack the version up to date, until `end`.
    fn keep_up(self: Arc<Self>, end: CancellationToken) -> BoxFuture<'static, ()> {
        drop(end);
        future::ready(()).boxed()
    }

    /// The progress of a running update.
    fn progress(&self) -> UpdateProgress {
        UpdateProgress::default()
    }
}

/// The part of a run that reacts to new versions.
pub trait FollowVersion: Send + Sync + 'static {
    /// Called before servers are updated to `version`. Work that would be too old afterwards can be cut off
    /// here.
    fn before_update(&self, version: u64) -> BoxFuture<'_, ()> {
        let _ = version;
        future::ready(()).boxed()
    }

    /// Called when servers have the version. Every later dispatch counts for this version.
    fn publish<'a>(&'a self, announcement: &'a Announcement) -> BoxFuture<'a, ()>;
}

/// The state of the update to the newest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateState {
    /// The servers have the newest version.
    Idle,
    /// The newest version is announced, and its update has not begun. In `sync` and `one_step_off` the update
    /// waits for the end of the step.
    Pending,
    /// The servers are being updated.
    Updating,
    /// No server got the version. The update will be tried again.
    Failed,
}

/// The versions and the state of the update, as shown to clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyStatus {
    /// The version that the servers have.
    pub version: u64,
    /// The newest announced version.
    pub announced: u64,
    /// The state of the update.
    pub state: UpdateState,
    /// The phase of the update, while servers are updated.
    pub phase: Option<String>,
    /// Servers that are kept out until they have the version.
    pub behind: Vec<String>,
    /// Why no server has the announced version.
    pub failure: Option<String>,
    /// The recipe's mode.
    pub mode: PolicyMode,
    /// The recipe's staleness bound, in versions.
    pub max_staleness: u64,
}

/// A handle of the running driver. The driver ends with its scope, or with the last clone of the handle.
#[derive(Clone)]
pub struct Updates {
    driver: Arc<Driver>,
    boundaries: mpsc::Sender<oneshot::Sender<()>>,
    _tasks: Arc<[AbortOnDropHandle<()>; 2]>,
}

struct Driver {
    state: PolicyState,
    updater: Arc<dyn ApplyVersion>,
    run: Arc<dyn FollowVersion>,
}

impl Updates {
    /// Requires the weights of the last announcement, resumes servers that an earlier process left paused,
    /// and starts the driver.
    ///
    /// Cancel-safe: the driver starts only at the end of this call.
    pub async fn start(
        state: PolicyState,
        updater: Arc<dyn ApplyVersion>,
        run: Arc<dyn FollowVersion>,
        scope: &Scope,
    ) -> Self {
        if let Some(last) = state.latest() {
            updater.require(&last);
        }
        updater.recover().await;
        let keeping_up = scope.spawn("weight updater", Arc::clone(&updater).keep_up(scope.token().clone()));
        let driver = Arc::new(Driver { state, updater, run });
        let (boundaries, asked) = mpsc::channel(1);
        let driving = Arc::clone(&driver).drive(asked, scope.token().clone());
        Self { driver, boundaries, _tasks: Arc::new([scope.spawn("policy driver", driving), keeping_up]) }
    }

    /// The versions of the run.
    pub fn state(&self) -> &PolicyState {
        &self.driver.state
    }

    /// The versions and the state of the update.
    pub fn status(&self) -> PolicyStatus {
        let versions = self.driver.state.versions();
        let PolicyTerms { mode, max_staleness } = self.driver.state.terms();
        let progress = self.driver.updater.progress();
        let state = match (&versions.updating, &versions.failure) {
            (Some(_), _) => UpdateState::Updating,
            (None, Some(_)) => UpdateState::Failed,
            (None, None) if versions.announced > versions.served => UpdateState::Pending,
            (None, None) => UpdateState::Idle,
        };
        PolicyStatus {
            version: versions.served,
            announced: versions.announced,
            state,
            phase: progress.phase,
            behind: progress.behind,
            failure: versions.failure.map(|reason| reason.to_string()),
            mode,
            max_staleness,
        }
    }

    /// Reports that the run is between two steps. In `sync` and `one_step_off`, a pending version is brought
    /// to the servers now. Returns the version that the servers have afterwards. If the update failed, this
    /// is the old version, and the next boundary tries again.
    ///
    /// Cancel-safe: an update that has begun continues.
    ///
    /// # Errors
    /// [`PolicyError::Ended`] if the driver has stopped.
    pub async fn at_boundary(&self) -> Result<u64, PolicyError> {
        let state = &self.driver.state;
        if self.boundaries.is_closed() {
            return Err(PolicyError::Ended);
        }
        if state.terms().mode != PolicyMode::FullyAsync && state.pending().is_some() {
            let (done, updated) = oneshot::channel();
            self.boundaries.send(done).await.map_err(|_closed| PolicyError::Ended)?;
            updated.await.map_err(|_gone| PolicyError::Ended)?;
        }
        Ok(state.served())
    }
}

impl Driver {
    async fn drive(self: Arc<Self>, mut asked: mpsc::Receiver<oneshot::Sender<()>>, end: CancellationToken) {
        match self.state.terms().mode {
            // `asked` is not used here, but stays open: `at_boundary` reports an error once it is closed.
            PolicyMode::FullyAsync => self.at_once(&end).await,
            PolicyMode::Off | PolicyMode::Sync | PolicyMode::OneStepOff => {
                self.between_steps(&mut asked, &end).await;
            }
        }
    }

    async fn between_steps(&self, asked: &mut mpsc::Receiver<oneshot::Sender<()>>, end: &CancellationToken) {
        while let Some(Some(done)) = end.run_until_cancelled(asked.recv()).await {
            if let Some(pending) = self.state.pending() {
                self.update(&pending).await;
            }
            // The send fails if the caller was cancelled.
            let _ = done.send(());
        }
    }

    async fn at_once(&self, end: &CancellationToken) {
        let mut versions = self.state.subscribe();
        let mut pause = RETRY_PAUSE_MIN;
        while !end.is_cancelled() {
            versions.mark_unchanged();
            let Some(pending) = self.state.pending() else {
                pause = RETRY_PAUSE_MIN;
                let _ = end.run_until_cancelled(versions.changed()).await;
                continue;
            };
            if self.update(&pending).await {
                continue;
            }
            // A newer version, or a repeated announcement of this version, ends the pause.
            let news = tokio::time::timeout(pause, versions.wait_for(|versions| versions.failure.is_none()));
            let has_come = matches!(end.run_until_cancelled(news).await, Some(Ok(_)));
            pause = if has_come { RETRY_PAUSE_MIN } else { (pause * 2).min(RETRY_PAUSE_MAX) };
        }
    }

    /// Returns whether the version was published. An update that has begun ends only by its own deadlines,
    /// because cutting it off would leave servers paused.
    async fn update(&self, announcement: &Announcement) -> bool {
        let version = announcement.version;
        let started_at = Instant::now();
        self.state.begin_update(version);
        self.run.before_update(version).await;
        let updated = match self.updater.apply(announcement).await {
            Applied::Asked { updated, missed } => has_any_server(version, updated, &missed),
            Applied::Refused { reason } => Err(reason),
            Applied::Ended => Err("the updater has ended".to_owned()),
        };
        match updated {
            Ok(servers) => {
                self.run.publish(announcement).await;
                self.state.end_update(version);
                let seconds = started_at.elapsed().as_secs_f64();
                tracing::info!(version, servers, seconds, "the servers have new weights");
                true
            }
            Err(reason) => {
                tracing::error!(
                    version,
                    reason,
                    "no server has the new weights; the version does not change"
                );
                self.state.fail_update(version, &reason);
                false
            }
        }
    }
}

/// The number of servers that have the version, or the reason why no server has it. If no server was asked,
/// because none is alive, the number is 0.
fn has_any_server(version: u64, updated: usize, missed: &[Missed]) -> Result<usize, String> {
    for Missed { server, reason } in missed {
        tracing::warn!(version, server, reason, "a server has missed the new weights and is kept out");
    }
    match missed.first() {
        Some(Missed { server, reason }) if updated == 0 => Err(format!("server={server}: {reason}")),
        _ => Ok(updated),
    }
}

#[cfg(test)]
mod tests;
