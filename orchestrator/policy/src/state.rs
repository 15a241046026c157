//! The announced version, and the version that the servers have.
//!
//! # Invariants
//! Both versions only rise, and the servers' version is never above the announced one. Each number has one
//! announcement.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::announcement::check;
use super::{AnnounceError, Announced, Announcement, PolicyMode};

/// Maximum number of versions whose times are kept. Times of older versions are dropped.
const VERSIONS_KEPT: usize = 1024;

/// The settings of a run's recipe for versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyTerms {
    /// When a new version may reach the servers.
    pub mode: PolicyMode,
    /// Maximum number of versions that a group may be behind when it is counted.
    pub max_staleness: u64,
}

/// The versions at one moment.
#[derive(Debug, Clone)]
pub struct Versions {
    /// The newest announced version. For the trainer, staleness is counted from this version.
    pub announced: u64,
    /// The version that the servers have. New tokens are counted as tokens of this version.
    pub served: u64,
    /// The version that servers are being updated to.
    pub updating: Option<u64>,
    /// Why no server has the announced version; set if an update to it has failed.
    pub failure: Option<Arc<str>>,
    latest: Option<Arc<Announcement>>,
    times: VecDeque<Times>,
}

#[derive(Debug, Clone, Copy)]
struct Times {
    version: u64,
    announced_at: Instant,
    served_at: Option<Instant>,
}

/// The age of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionAge {
    /// The number of the version.
    pub version: u64,
    /// The number of versions by which the announced one is newer.
    pub versions_behind: u64,
    /// Time since it was announced.
    pub announced_for: Duration,
    /// Time since the servers got it; `None` if they never had it.
    pub served_for: Option<Duration>,
}

/// The run's policy versions. Clones share them. A read takes only a short lock.
#[derive(Debug, Clone)]
pub struct PolicyState {
    terms: PolicyTerms,
    versions: Arc<watch::Sender<Versions>>,
}

impl PolicyState {
    /// The state of a new run, whose servers have `version`.
    pub fn new(terms: PolicyTerms, version: u64) -> Self {
        let now = Instant::now();
        let times = VecDeque::from([Times { version, announced_at: now, served_at: Some(now) }]);
        let versions = Versions {
            announced: version,
            served: version,
            updating: None,
            failure: None,
            latest: None,
            times,
        };
        Self { terms, versions: Arc::new(watch::Sender::new(versions)) }
    }

    /// The state of a run that continues, whose last announcement was `last`. Announcing it once more changes
    /// nothing.
    pub fn resumed(terms: PolicyTerms, last: Announcement) -> Self {
        let state = Self::new(terms, last.version);
        state.versions.send_modify(|versions| versions.latest = Some(Arc::new(last)));
        state
    }

    /// The recipe's settings.
    pub fn terms(&self) -> PolicyTerms {
        self.terms
    }

    /// The newest announced version.
    pub fn announced(&self) -> u64 {
        self.versions.borrow().announced
    }

    /// The version that the servers have.
    pub fn served(&self) -> u64 {
        self.versions.borrow().served
    }

    /// Both versions, and the progress of the update.
    pub fn versions(&self) -> Versions {
        self.versions.borrow().clone()
    }

    /// The newest announcement in full, for callers that store it; `None` before the first one.
    pub fn latest(&self) -> Option<Arc<Announcement>> {
        self.versions.borrow().latest.clone()
    }

    /// A receiver that is notified when the versions change.
    pub fn subscribe(&self) -> watch::Receiver<Versions> {
        self.versions.subscribe()
    }

    /// Accepts a version that is newer than all earlier versions. The newest announcement may be repeated
    /// without changes.
    pub fn announce(&self, announcement: Announcement) -> Result<Announced, AnnounceError> {
        check(&announcement)?;
        let mut outcome = Ok(Announced::Taken);
        self.versions.send_if_modified(|versions| {
            outcome = versions.take(announcement);
            match outcome {
                // The driver may be waiting after a failure; this change makes it try again.
                Ok(Announced::Again) => versions.failure.take().is_some(),
                Ok(Announced::Taken) => true,
                Err(_) => false,
            }
        });
        outcome
    }

    /// Announces the next version by its number alone, and returns the number. A trainer in this process that
    /// does not change the servers' weights uses this function.
    pub fn announce_next(&self) -> u64 {
        let mut next = 0;
        self.versions.send_modify(|versions| {
            next = versions.announced.saturating_add(1);
            versions.append(Announcement::new(next));
        });
        next
    }

    /// Waits until the newest announced version is `version` or later. Cancel-safe.
    pub async fn until_announced(&self, version: u64) {
        let mut versions = self.subscribe();
        // The wait fails only without a sender, and `self` holds the sender.
        let _ = versions.wait_for(|versions| versions.announced >= version).await;
    }

    /// Waits until the trainer announces a version above `announced`, or repeats the newest announcement after its
    /// update has failed. Cancel-safe.
    pub async fn until_retry(&self, announced: u64) {
        let mut versions = self.subscribe();
        let is_wanted = |versions: &Versions| versions.announced > announced || versions.failure.is_none();
        let _ = versions.wait_for(is_wanted).await;
    }

    /// Waits until the servers have `version` or a later one. Cancel-safe.
    pub async fn until_served(&self, version: u64) {
        let mut versions = self.subscribe();
        let _ = versions.wait_for(|versions| versions.served >= version).await;
    }

    /// The ages of the last versions, the oldest version first. Only the last 1024 versions are kept.
    pub fn ages(&self) -> Vec<VersionAge> {
        let now = Instant::now();
        let versions = self.versions.borrow();
        let age = |times: &Times| VersionAge {
            version: times.version,
            versions_behind: versions.announced - times.version,
            announced_for: now.duration_since(times.announced_at),
            served_for: times.served_at.map(|at| now.duration_since(at)),
        };
        versions.times.iter().map(age).collect()
    }

    /// The newest announcement, if the servers do not have its version yet.
    pub(super) fn pending(&self) -> Option<Arc<Announcement>> {
        let versions = self.versions.borrow();
        versions.latest.clone().filter(|latest| latest.version > versions.served)
    }

    pub(super) fn begin_update(&self, version: u64) {
        self.versions.send_modify(|versions| {
            versions.updating = Some(version);
            versions.failure = None;
        });
    }

    /// Records that the servers have `version`.
    pub(super) fn end_update(&self, version: u64) {
        let now = Instant::now();
        self.versions.send_modify(|versions| {
            versions.updating = None;
            versions.served = versions.served.max(version);
            if let Some(times) = versions.times.iter_mut().find(|times| times.version == version) {
                times.served_at = Some(now);
            }
        });
    }

    /// Records that no server got `version`. The reason is kept only while `version` is the newest one.
    pub(super) fn fail_update(&self, version: u64, reason: &str) {
        self.versions.send_modify(|versions| {
            versions.updating = None;
            versions.failure = (versions.announced == version).then(|| reason.into());
        });
    }
}

impl Versions {
    fn take(&mut self, announcement: Announcement) -> Result<Announced, AnnounceError> {
        let (version, announced) = (announcement.version, self.announced);
        if version > announced {
            self.append(announcement);
            return Ok(Announced::Taken);
        }
        match &self.latest {
            Some(latest) if **latest == announcement => Ok(Announced::Again),
            Some(latest) if latest.version == version => Err(AnnounceError::Differs { version }),
            _ => Err(AnnounceError::NotNewer { version, announced }),
        }
    }

    fn append(&mut self, announcement: Announcement) {
        self.announced = announcement.version;
        if self.times.len() >= VERSIONS_KEPT {
            self.times.pop_front();
        }
        let announced_at = Instant::now();
        self.times.push_back(Times { version: announcement.version, announced_at, served_at: None });
        // The stored failure belongs to an older version.
        self.failure = None;
        self.latest = Some(Arc::new(announcement));
    }
}

#[cfg(test)]
mod tests;
