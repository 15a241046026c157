//! Which version is announced, and which one the servers have.
//!
//! # Invariants
//! Both only rise, and the servers' one never passes the announced one. There is one announcement for one
//! number.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::announcement::check;
use super::{AnnounceError, Announced, Announcement, PolicyMode};

/// Number of versions whose times are kept; a run is never this many versions behind.
const VERSIONS_KEPT: usize = 1024;

/// What a run's recipe says of versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyTerms {
    /// When a new version may reach the servers.
    pub mode: PolicyMode,
    /// Versions that a group may be behind when it counts.
    pub max_staleness: u64,
}

/// The versions at one moment.
#[derive(Debug, Clone)]
pub struct Versions {
    /// The newest that is known; what staleness is counted from at the trainer's side.
    pub announced: u64,
    /// What the servers have, and new tokens are counted as.
    pub served: u64,
    /// The version that servers are being updated to.
    pub updating: Option<u64>,
    /// Why no server has the announced version, after they have been tried.
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

/// How old a version is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionAge {
    /// Its number.
    pub version: u64,
    /// Versions that have been announced after it.
    pub versions_behind: u64,
    /// Since it was announced.
    pub announced_for: Duration,
    /// Since the servers have it; `None` where they never had.
    pub served_for: Option<Duration>,
}

/// The run's policy versions. Clones are of the same ones; reading takes no more than a short lock.
#[derive(Debug, Clone)]
pub struct PolicyState {
    terms: PolicyTerms,
    versions: Arc<watch::Sender<Versions>>,
}

impl PolicyState {
    /// Servers that have `version` when the run begins.
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

    /// Servers that had the version of `last` when the run was left: saying it once more changes nothing.
    pub fn resumed(terms: PolicyTerms, last: Announcement) -> Self {
        let state = Self::new(terms, last.version);
        state.versions.send_modify(|versions| versions.latest = Some(Arc::new(last)));
        state
    }

    /// What the recipe says.
    pub fn terms(&self) -> PolicyTerms {
        self.terms
    }

    /// The newest version that is known.
    pub fn announced(&self) -> u64 {
        self.versions.borrow().announced
    }

    /// The version that the servers have.
    pub fn served(&self) -> u64 {
        self.versions.borrow().served
    }

    /// Both, and what is being done about them.
    pub fn versions(&self) -> Versions {
        self.versions.borrow().clone()
    }

    /// The newest announcement in full, for callers that store it; `None` before the first one.
    pub fn latest(&self) -> Option<Arc<Announcement>> {
        self.versions.borrow().latest.clone()
    }

    /// Changes of them.
    pub fn subscribe(&self) -> watch::Receiver<Versions> {
        self.versions.subscribe()
    }

    /// Takes a version that is newer than all before; one that is known already, if nothing about it is
    /// different.
    pub fn announce(&self, announcement: Announcement) -> Result<Announced, AnnounceError> {
        check(&announcement)?;
        let mut outcome = Ok(Announced::Taken);
        self.versions.send_if_modified(|versions| {
            outcome = versions.take(announcement);
            match outcome {
                // The driver waits after a failure, and tries again.
                Ok(Announced::Again) => versions.failure.take().is_some(),
                Ok(Announced::Taken) => true,
                Err(_) => false,
            }
        });
        outcome
    }

    /// The version after the newest one, of which nothing else is known: for a trainer in this process that
    /// leaves its servers as they are.
    pub fn announce_next(&self) -> u64 {
        let mut next = 0;
        self.versions.send_modify(|versions| {
            next = versions.announced.saturating_add(1);
            versions.append(Announcement::new(next));
        });
        next
    }

    /// Waits until the newest known version is `version` or later. Cancel-safe.
    pub async fn until_announced(&self, version: u64) {
        let mut versions = self.subscribe();
        // It fails when the sender is gone, which `self` holds.
        let _ = versions.wait_for(|versions| versions.announced >= version).await;
    }

    /// Waits until the servers have `version` or a later one. Cancel-safe.
    pub async fn until_served(&self, version: u64) {
        let mut versions = self.subscribe();
        let _ = versions.wait_for(|versions| versions.served >= version).await;
    }

    /// How old the last versions are, the oldest first; no more than are kept.
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

    /// What the servers have yet to get: the newest announcement only.
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

    /// The servers have it.
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

    /// Notes that no server got the version. The failure of a version that is no longer the newest is not
    /// kept.
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
        // What failed was an older one.
        self.failure = None;
        self.latest = Some(Arc::new(announcement));
    }
}

#[cfg(test)]
mod tests;
