//! The driver: brings the newest announced version to the servers, when the recipe's mode allows it.
//!
//! One task owns the updating, so that a caller that goes away leaves no server half updated. In
//! `fully_async` it updates as soon as there is a newer version; in the other modes only when the run says
//! that it stands between two steps. While servers are updated, announcements go on being taken: of several
//! the newest is next, the others are skipped.
//!
//! # Invariants
//! A version is published when some server has it and not before; servers that missed it are out of rotation,
//! which is the updater's affair. At most one update runs at a time.

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

/// After an update that no server has got, it is tried again; the pause doubles up to the longest one.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(60);

/// A server that did not get a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missed {
    /// Its name in the fleet.
    pub server: String,
    /// The call at which the server failed, and the reason.
    pub reason: String,
}

/// How an update went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// Servers were asked.
    Asked {
        /// How many have the version.
        updated: usize,
        /// The servers that do not have the version.
        missed: Vec<Missed>,
    },
    /// No server was asked, because the announcement lacks what the method needs.
    Refused {
        /// What it lacks.
        reason: String,
    },
    /// The updater has ended.
    Ended,
}

/// How far an update is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpdateProgress {
    /// What is being done, while one runs.
    pub phase: Option<String>,
    /// Servers that do not have the version that they should have.
    pub behind: Vec<String>,
}

/// What brings versions to servers.
pub trait ApplyVersion: Send + Sync + 'static {
    /// Brings every server to a version. It ends by its own deadlines; dropping it may leave servers paused.
    fn apply<'a>(&'a self, announcement: &'a Announcement) -> BoxFuture<'a, Applied>;

    /// Servers are to have these weights, or newer ones, before anything is generated: a run goes on, and the
    /// servers' weights are not known. Asks no server.
    fn require(&self, announcement: &Announcement) {
        let _ = announcement;
    }

    /// Finds servers that an earlier life of this process left paused.
    fn recover(&self) -> BoxFuture<'_, ()> {
        future::ready(()).boxed()
    }

    /// Brings servers that missed a version up to it later, until `end`.
    fn keep_up(self: Arc<Self>, end: CancellationToken) -> BoxFuture<'static, ()> {
        drop(end);
        future::ready(()).boxed()
    }

    /// What it is doing.
    fn progress(&self) -> UpdateProgress {
        UpdateProgress::default()
    }
}

/// The run, as far as it has to know of versions.
pub trait FollowVersion: Send + Sync + 'static {
    /// Servers are about to be updated: what would be too old then can be cut off before.
    fn before_update(&self, version: u64) -> BoxFuture<'_, ()> {
        let _ = version;
        future::ready(()).boxed()
    }

    /// Servers have the version: what is dispatched from here on is of it.
    fn publish<'a>(&'a self, announcement: &'a Announcement) -> BoxFuture<'a, ()>;
}

/// What is being done about versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateState {
    /// The servers have the newest version.
    Idle,
    /// They have not, and the step's end is waited for.
    Pending,
    /// They are getting it.
    Updating,
    /// No server has got it; it will be tried again.
    Failed,
}

/// The versions, and what is being done about them, as shown to clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyStatus {
    /// What the servers have.
    pub version: u64,
    /// The newest that is known.
    pub announced: u64,
    /// What is being done.
    pub state: UpdateState,
    /// What exactly, while servers are updated.
    pub phase: Option<String>,
    /// Servers that are kept out until they have the version.
    pub behind: Vec<String>,
    /// Why no server has the announced version.
    pub failure: Option<String>,
    /// The recipe's.
    pub mode: PolicyMode,
    /// The recipe's bound.
    pub max_staleness: u64,
}

/// The running driver. Clones are of the same one; it ends with its scope, or with the last clone.
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
    /// Requires the weights that an earlier life announced last, sets free what it left paused, and begins to
    /// drive.
    ///
    /// Cancel-safe: nothing has begun before that is done.
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

    /// The versions.
    pub fn state(&self) -> &PolicyState {
        &self.driver.state
    }

    /// What is being done about them.
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

    /// The run stands between two steps: a pending version reaches the servers now, in the modes that wait
    /// for this. Says which version they have then; if the update failed, that is still the old one, and the
    /// next boundary tries again.
    ///
    /// Cancel-safe: an update that has begun goes on.
    ///
    /// # Errors
    /// [`PolicyError::Ended`] where the weight updater has stopped.
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
            // The channel lives as long as the driver, so that its end is seen.
            PolicyMode::FullyAsync => self.at_once(&end).await,
            PolicyMode::Sync | PolicyMode::OneStepOff => self.between_steps(&mut asked, &end).await,
        }
    }

    async fn between_steps(&self, asked: &mut mpsc::Receiver<oneshot::Sender<()>>, end: &CancellationToken) {
        while let Some(Some(done)) = end.run_until_cancelled(asked.recv()).await {
            if let Some(pending) = self.state.pending() {
                self.update(&pending).await;
            }
            // The send fails where the caller has gone away.
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
            // A newer version ends the pause, and so does another announcement of this one.
            let news = tokio::time::timeout(pause, versions.wait_for(|versions| versions.failure.is_none()));
            let has_come = matches!(end.run_until_cancelled(news).await, Some(Ok(_)));
            pause = if has_come { RETRY_PAUSE_MIN } else { (pause * 2).min(RETRY_PAUSE_MAX) };
        }
    }

    /// Says whether the version is published. An update that has begun is ended by its own deadlines only:
    /// cutting it off would leave servers paused.
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
                metrics::gauge!("rolldock_policy_version").set(version as f64);
                let seconds = started_at.elapsed().as_secs_f64();
                tracing::info!(version, servers, seconds, "the servers have new weights");
                true
            }
            Err(reason) => {
                tracing::error!(
                    version,
                    reason,
                    "no server has got the new weights; the version does not change"
                );
                self.state.fail_update(version, &reason);
                false
            }
        }
    }
}

/// The number of servers that have the version, or why there is none. A fleet without servers has nothing to
/// get.
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
