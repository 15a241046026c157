//! Weight updates of a fleet that goes on working.
//!
//! The trainer announces a version. The servers are paused, get the weights, empty their prefix caches, are
//! told the weights' name, and are resumed. Each phase has a deadline over all servers, which are called at
//! the same time; the failure of one server does not affect the others.
//!
//! # Invariants
//! - **An engine that was paused here is resumed**: after a failure of any phase, when the caller has gone,
//!   when the scope ends. An engine that does not answer takes no permits and is asked again at every look.
//!   After a crash of this process it is unknown which engines were paused, so that
//!   [`WeightUpdater::recover`] asks them.
//! - **No server takes a permit with older weights than were announced last.** The balancer itself refuses
//!   the permit from the moment in which a server comes back or joins, so that the updater need not be quick.
//!   With [`UpdateMethod::None`] only the trainer knows which server has which weights, and nothing is
//!   required.
//! - **Every token belongs to a version.** A server that failed before its weights were touched finishes its
//!   requests with the old ones. A server that failed later has weights of no version: its permits are
//!   revoked before it is resumed.
//! - **One job at a time.** Of the announcements that come during an update only the newest is carried out,
//!   after it. Catching up gives way to an announcement.
//!
//! # Deliberately absent
//! Moving weights (the trainer, the engine or the user's hook does), undoing an update (a failed one is
//! repeated or followed by the next), and the fate of samples that are too old (the rollout decides).

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

mod book;
mod calls;
mod config;
mod hook;
mod inner;
mod metered;
mod report;
mod round;
mod target;
mod worker;

pub use config::{Deadlines, Reload, UpdateConfig, UpdateError, UpdateMethod};
pub use report::{Announcement, Failure, Phase, ServerUpdate, UpdateOutcome, UpdatePhase, UpdateReport};

use crate::control::EngineControl;
use crate::{LoadBalancer, ServerRef};
use book::Book;
use inner::Inner;
use metered::UpdateMetrics;

/// Gives the servers of a fleet their weights. Clones share one updater.
#[derive(Clone)]
pub struct WeightUpdater {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for WeightUpdater {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("WeightUpdater").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

impl WeightUpdater {
    /// An updater of `balancer`'s fleet. It works in tasks of `tracker`. Once `end` is cancelled, no job is
    /// begun, a running one is cut short, and paused engines are resumed; the owner of the tracker should
    /// wait for that.
    pub fn new(
        balancer: LoadBalancer,
        control: Arc<dyn EngineControl>,
        config: UpdateConfig,
        tracker: TaskTracker,
        end: CancellationToken,
    ) -> Result<Self, UpdateError> {
        config.check()?;
        let hook = match config.method {
            UpdateMethod::Http(_) => Some(hook::client()?),
            _ => None,
        };
        let inner = Inner {
            balancer,
            control,
            config,
            hook,
            tracker,
            end,
            book: Book::default().into(),
            metrics: UpdateMetrics::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Gives the announced weights to every server that is not dead. A server that misses them takes no
    /// permits until it has them. The last announced version may be announced again, for the servers that
    /// lack it.
    ///
    /// Cancel-safe: from the first poll on, the update continues without its caller.
    pub async fn update(&self, announcement: Announcement) -> UpdateReport {
        let ended = UpdateReport::without_work(announcement.version, UpdateOutcome::Ended);
        if self.inner.end.is_cancelled() {
            return ended;
        }
        let (reply, replied) = oneshot::channel();
        self.inner.submit(|book| book.announce(announcement, reply));
        let report = replied.await.unwrap_or(ended);
        if matches!(report.outcome, UpdateOutcome::Superseded { .. }) {
            self.inner.metrics.ended(&report);
        }
        report
    }

    /// Lets servers take permits only with these weights or newer ones from now on. A server that lacks them
    /// gets them when it [catches up](Self::catch_up). Meant for a run that goes on after a crash, when it is
    /// unknown how far its servers had come.
    ///
    /// Returns whether the updater can give the weights again. Where only the trainer could, nothing is
    /// required, since the servers would wait for ever.
    pub fn require(&self, announcement: Announcement) -> bool {
        if self.inner.config.method_of_one(&announcement).is_none() {
            return false;
        }
        let announcement = Arc::new(announcement);
        let version = announcement.version;
        if self.inner.book.lock().adopt(&announcement) {
            self.inner.balancer.begin_update(Some(version), false, |_| false);
        }
        true
    }

    /// Gives the current weights to servers that lack them: they missed the update, came back after their
    /// death, or joined. A server that failed lately is skipped for a while, at most a minute. A transfer
    /// cannot be repeated for one server: the server loads the announced path if there is one, and else waits
    /// for the next announcement.
    ///
    /// Cancel-safe: a job that has begun goes on.
    pub async fn catch_up(&self) -> Vec<ServerUpdate> {
        let (reply, replied) = oneshot::channel();
        if self.inner.end.is_cancelled() {
            return Vec::new();
        }
        self.inner.submit(|book| book.ask_catch_up(reply));
        replied.await.unwrap_or_default()
    }

    /// Resumes engines that report a pause which neither this process nor an operator has asked for: a crash
    /// of this process leaves such engines behind. Resumes also the engines for which an earlier attempt
    /// failed. Returns the resumed ones.
    ///
    /// Where another program pauses engines (a trainer that does the whole update itself, say), this call
    /// would undo its pause.
    ///
    /// Cancel-safe: a job that has begun goes on.
    pub async fn recover(&self) -> Vec<ServerRef> {
        let (reply, replied) = oneshot::channel();
        if self.inner.end.is_cancelled() {
            return Vec::new();
        }
        self.inner.submit(|book| book.ask_recovery(reply));
        replied.await.unwrap_or_default()
    }

    /// Recovers at once and then, until `end`, looks repeatedly for engines that are left paused and servers
    /// that lack their weights. Unless it is configured to pause engines, it resumes only those that it has
    /// paused.
    ///
    /// Cancel-safe.
    pub async fn run(self, end: CancellationToken) {
        loop {
            let look = async {
                if self.inner.config.pause.is_some() {
                    self.recover().await;
                }
                self.catch_up().await;
                tokio::time::sleep(self.inner.config.interval()).await;
            };
            tokio::select! {
                biased;
                () = end.cancelled() => return,
                () = self.inner.end.cancelled() => return,
                () = look => {}
            }
        }
    }

    /// The phase that the updater is in; `None` while it has no job.
    pub fn phase(&self) -> Option<UpdatePhase> {
        self.inner.book.lock().phase.clone()
    }

    /// The newest announcement that was begun.
    pub fn current(&self) -> Option<Arc<Announcement>> {
        self.inner.book.lock().current.clone()
    }
}

#[cfg(test)]
mod tests;
