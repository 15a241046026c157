//! Weight updates of a fleet that continues to serve requests.
//!
//! The trainer announces a version. The servers are paused, get the weights, empty their prefix caches, are
//! told the name of the weights, and are resumed. Each phase calls the servers concurrently and has one
//! deadline for all of them. The failure of one server does not affect the others.
//!
//! # Invariants
//! - **An engine that was paused here is resumed**: after a failure of any phase, after the caller has
//!   stopped waiting, and when the updater ends. No permits are granted on the server of an engine that does
//!   not answer, and the engine is asked again at a configured interval. After a crash of this process it is
//!   unknown which engines were paused, so [`WeightUpdater::recover`] asks them.
//! - **No permit is granted on a server with older weights than were announced last.** The balancer itself
//!   refuses permits as soon as a server returns or joins, so the updater need not be quick. With
//!   [`UpdateMethod::None`] only the trainer knows which server has which weights, so no version is required.
//! - **Every token belongs to a version.** A server that failed before its weights were touched finishes its
//!   requests with the old weights. A server that failed later may have mixed weights, so its permits are
//!   revoked before it is resumed.
//! - **One job at a time.** If announcements arrive during an update, only the newest of them is carried out,
//!   after the update. A job that catches up ends early when an announcement arrives.
//!
//! # Deliberately absent
//! The updater does not move weights: the trainer, the engine or the user's hook does. It does not undo an
//! update: a failed update is repeated, or followed by the next one. It does not decide about samples that
//! are too old: the rollout does.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

mod book;
mod calls;
mod catch_up;
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
    /// An updater of `balancer`'s fleet. It works in tasks of `tracker`. Once `end` is cancelled, no further
    /// job begins, a running job is cut short, and paused engines are resumed. The owner of the tracker
    /// should wait for this.
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

    /// Gives the announced weights to every server that is not dead. A server that misses the weights takes
    /// no permits until it has them. The last version may be announced again, for the servers that lack it.
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

    /// From now on, permits are granted only on servers with these weights or newer ones. A server that lacks
    /// these weights gets them when it [catches up](Self::catch_up). A run that resumes after a crash calls
    /// this function, because it does not know which weights its servers have.
    ///
    /// Returns whether the updater can pass the weights again. If only the trainer can pass the weights, no
    /// version is required, since the servers would wait forever.
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

    /// Gives the current weights to servers that lack them: servers that missed the update, returned after
    /// their death, or joined. A server that failed recently is skipped for at most a minute. A transfer
    /// cannot be repeated for one server. Such a server loads the announced path if there is one, and
    /// otherwise waits for the next announcement.
    ///
    /// Cancel-safe: a job that has begun continues.
    pub async fn catch_up(&self) -> Vec<ServerUpdate> {
        let (reply, replied) = oneshot::channel();
        if self.inner.end.is_cancelled() {
            return Vec::new();
        }
        self.inner.submit(|book| book.ask_catch_up(reply));
        replied.await.unwrap_or_default()
    }

    /// Resumes engines that report a pause which neither this process nor an operator has asked for. A crash
    /// of this process leaves such engines behind. Also resumes the engines for which an earlier attempt
    /// failed. Returns the resumed engines.
    ///
    /// If another program pauses engines, such as a trainer that does the whole update itself, this call
    /// would undo the pause of that program.
    ///
    /// Cancel-safe: a job that has begun continues.
    pub async fn recover(&self) -> Vec<ServerRef> {
        let (reply, replied) = oneshot::channel();
        if self.inner.end.is_cancelled() {
            return Vec::new();
        }
        self.inner.submit(|book| book.ask_recovery(reply));
        replied.await.unwrap_or_default()
    }

    /// Looks immediately, and then repeatedly until `end`, for engines that are left paused and for servers
    /// that lack their weights. If the configuration does not pause engines, only looks for servers that lack
    /// their weights.
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
