//! New weights for a fleet that goes on working.
//!
//! The trainer announces a version; the servers are paused, get it, forget what they have cached, are told what it is
//! called, and go on. A phase has a deadline over all servers, which are asked at the same time; what happens to one says
//! nothing about the others.
//!
//! # Invariants
//! - **An engine that was paused here is resumed**: after a failure of any phase, when the caller has gone, when the scope
//!   ends. One that does not answer is owed it, takes no permits, and is asked again at every look. After a crash of our
//!   own nobody knows what was paused, so [`WeightUpdater::recover`] asks the engines.
//! - **No server takes a permit with older weights than were announced last.** The balancer keeps this by itself, in the
//!   moment in which a server comes back or joins; there is nothing that would have to be quick. With
//!   [`UpdateMethod::None`] only the trainer knows who has what, so nothing is required.
//! - **Tokens are some version's.** A server that failed before its weights were touched goes on with the old ones for
//!   what it has. One that failed later has weights that are no version's: its permits are revoked before it is resumed.
//! - **One thing at a time.** Of announcements that come during an update only the newest is done, after it. Catching up
//!   gives way to an announcement.
//!
//! # Deliberately absent
//! Moving weights (the trainer, the engine or the user's hook does), undoing an update (a failed one is repeated or
//! followed by the next), and what becomes of samples that are too old (the rollout decides).

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

mod book;
mod calls;
mod config;
mod hook;
mod metered;
mod report;
mod round;
mod worker;

pub use config::{Deadlines, Reload, UpdateConfig, UpdateError, UpdateMethod};
pub use report::{Announcement, Failure, Phase, ServerUpdate, UpdateOutcome, UpdatePhase, UpdateReport};

use crate::control::EngineControl;
use crate::{LoadBalancer, ServerRef};
use book::Book;
use metered::UpdateMetrics;
use worker::Inner;

/// See the module's documentation. Clones are one updater.
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
    /// An updater of `balancer`'s fleet. It works in tasks of `tracker`; once `end` is cancelled nothing is begun, what runs
    /// is cut short, and engines that are paused are resumed, for which whoever owns the tracker should wait.
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
            metrics: UpdateMetrics,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Gives every server that is not dead the announced weights. One that misses them is kept out until it has them. The
    /// version that was announced last may be announced again, for those that lack it.
    ///
    /// Cancel-safe: from the first poll on, the update goes on without its caller.
    pub async fn update(&self, announcement: Announcement) -> UpdateReport {
        let ended = UpdateReport::without_work(announcement.version, UpdateOutcome::Ended);
        if self.inner.end.is_cancelled() {
            return ended;
        }
        let (tell, told) = oneshot::channel();
        self.inner.submit(|book| book.announce(announcement, tell));
        let report = told.await.unwrap_or(ended);
        if matches!(report.outcome, UpdateOutcome::Superseded { .. }) {
            self.inner.metrics.ended(&report);
        }
        report
    }

    /// From now on servers take permits only with these weights, or newer ones; who lacks them gets them when it
    /// [catches up](Self::catch_up). For a run that goes on after a crash: nobody knows how far its servers had come.
    ///
    /// Says whether they can be given again. Where only the trainer could, nothing is required: servers would wait for
    /// what nobody brings.
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

    /// Gives those the weights that lack them: they missed the update, came back from the dead, or joined. Who failed lately
    /// is left alone for a while, at most a minute. A transfer cannot be repeated for one server: it loads the announced
    /// path if there is one, and else waits for the next announcement.
    ///
    /// Cancel-safe: what has begun goes on.
    pub async fn catch_up(&self) -> Vec<ServerUpdate> {
        let (tell, told) = oneshot::channel();
        if self.inner.end.is_cancelled() {
            return Vec::new();
        }
        self.inner.submit(|book| book.ask_catch_up(tell));
        told.await.unwrap_or_default()
    }

    /// Resumes engines that say that they are paused, though nobody here has paused them or their server: what a crash of
    /// our own leaves behind. And those that could not be resumed before. Says which were resumed.
    ///
    /// Where somebody else pauses engines, a trainer that does the whole update by itself, say, this would undo it.
    ///
    /// Cancel-safe: what has begun goes on.
    pub async fn recover(&self) -> Vec<ServerRef> {
        let (tell, told) = oneshot::channel();
        if self.inner.end.is_cancelled() {
            return Vec::new();
        }
        self.inner.submit(|book| book.ask_recovery(tell));
        told.await.unwrap_or_default()
    }

    /// Recovers at once and then, until `end`, looks again and again for engines that are left paused and servers that lack
    /// their weights. Unless it is configured to pause engines, it resumes none that it has not paused.
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

    /// What it is doing now; `None` if nothing.
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
