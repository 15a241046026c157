//! What an updater remembers: what was announced, who has it, whose engine it has to resume, and what it is asked to do.
//! Nothing in here waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Announcement, ServerUpdate, UpdateOutcome, UpdatePhase, UpdateReport};
use crate::{Epoch, ServerId, ServerRef, ServerSnapshot};

/// A server that failed is tried again after so long, and after twice as long each further time.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// It is tried at least so often.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// How far a life of a server has come with some weights that it has loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Has {
    pub(super) epoch: Epoch,
    pub(super) version: u64,
    pub(super) is_reset: bool,
    pub(super) is_labelled: bool,
    /// Whether it can say what they are called: one that has no names for weights is labelled without.
    pub(super) is_named: bool,
}

/// What is known of a server.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub(super) has: Option<Has>,
    /// Its engine was paused here, and is not known to have been resumed.
    pub(super) is_owed: bool,
    failures: u32,
    not_before: Option<Instant>,
}

impl Known {
    /// What this life of the server has of a version.
    pub(super) fn has(&self, epoch: Epoch, version: u64) -> Option<Has> {
        self.has.filter(|has| has.epoch == epoch && has.version == version)
    }

    fn is_complete(&self, epoch: Epoch, version: u64) -> bool {
        self.has(epoch, version).is_some_and(|has| has.is_reset && has.is_labelled)
    }

    fn may_try(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|not_before| not_before <= now)
    }

    pub(super) fn note(&mut self, is_well: bool, now: Instant) {
        if is_well {
            (self.failures, self.not_before) = (0, None);
            return;
        }
        let backoff = BACKOFF_MIN * 2_u32.saturating_pow(self.failures.min(16));
        self.not_before = Some(now + backoff.min(BACKOFF_MAX));
        self.failures += 1;
    }
}

/// Who is known, in order of their numbers.
#[derive(Debug, Clone, Default)]
pub(super) struct Servers(BTreeMap<ServerId, Known>);

impl Servers {
    pub(super) fn known(&mut self, id: ServerId) -> &mut Known {
        self.0.entry(id).or_default()
    }

    pub(super) fn get(&self, id: ServerId) -> Option<&Known> {
        self.0.get(&id)
    }

    pub(super) fn owed(&self) -> Vec<ServerId> {
        self.0.iter().filter(|(_, known)| known.is_owed).map(|(id, _)| *id).collect()
    }

    pub(super) fn retain(&mut self, fleet: &[ServerSnapshot]) {
        self.0.retain(|id, _| fleet.iter().any(|server| server.id == *id));
    }

    fn forget_labels(&mut self) {
        for has in self.0.values_mut().filter_map(|known| known.has.as_mut()) {
            has.is_labelled = false;
        }
    }

    /// Whether it has not got all of `version` yet.
    pub(super) fn lacks(&self, server: &ServerSnapshot, version: u64) -> bool {
        !self.get(server.id).is_some_and(|known| known.is_complete(server.epoch, version))
    }

    /// Whether enough time has passed since it failed.
    pub(super) fn may_try(&self, id: ServerId, now: Instant) -> bool {
        self.get(id).is_none_or(|known| known.may_try(now))
    }
}

/// One thing to do.
pub(super) enum Job {
    Update(Announcement, Vec<oneshot::Sender<UpdateReport>>),
    /// The token is cancelled when an announcement comes, which is more urgent.
    Recover(Vec<oneshot::Sender<Vec<ServerRef>>>, CancellationToken),
    /// The same.
    CatchUp(Vec<oneshot::Sender<Vec<ServerUpdate>>>, CancellationToken),
}

#[derive(Default)]
pub(super) struct Book {
    /// The newest announcement that was begun.
    pub(super) current: Option<Arc<Announcement>>,
    pub(super) servers: Servers,
    pub(super) phase: Option<UpdatePhase>,
    next: Option<(Announcement, Vec<oneshot::Sender<UpdateReport>>)>,
    recoveries: Vec<oneshot::Sender<Vec<ServerRef>>>,
    catch_ups: Vec<oneshot::Sender<Vec<ServerUpdate>>>,
    /// Of the job that gives way to an announcement.
    yields: Option<CancellationToken>,
    pub(super) is_working: bool,
}

impl Book {
    /// Of several announcements that wait, only the newest is left.
    pub(super) fn announce(&mut self, announcement: Announcement, tell: oneshot::Sender<UpdateReport>) {
        let version = announcement.version;
        let superseded = |version, by| UpdateReport::without_work(version, UpdateOutcome::Superseded { by });
        let newest = self.newest();
        if newest.is_some_and(|newest| version < newest) {
            // Nobody is told when the caller has gone.
            let _ = tell.send(superseded(version, newest.unwrap_or(version)));
            return;
        }
        let mut tells = vec![tell];
        match self.next.take() {
            Some((queued, waiting)) if queued.version == version => tells.extend(waiting),
            Some((queued, waiting)) => {
                for tell in waiting {
                    let _ = tell.send(superseded(queued.version, version));
                }
            }
            None => {}
        }
        // Every caller has one, so callers bound them.
        tells.retain(|tell| !tell.is_closed());
        self.next = Some((announcement, tells));
        if let Some(token) = &self.yields {
            token.cancel();
        }
    }

    /// The same version under another name is told to everybody again.
    pub(super) fn begin(&mut self, announcement: &Arc<Announcement>) {
        let former = self.current.replace(Arc::clone(announcement));
        if former.is_some_and(|former| former.label != announcement.label) {
            self.servers.forget_labels();
        }
    }

    /// The same without anything to do, unless it is older than what is known; says whether it is not.
    pub(super) fn adopt(&mut self, announcement: &Arc<Announcement>) -> bool {
        let is_news = self.newest().is_none_or(|newest| newest <= announcement.version);
        if is_news {
            self.begin(announcement);
        }
        is_news
    }

    fn newest(&self) -> Option<u64> {
        let queued = self.next.as_ref().map(|(queued, _)| queued.version);
        queued.max(self.current.as_ref().map(|current| current.version))
    }

    pub(super) fn ask_recovery(&mut self, tell: oneshot::Sender<Vec<ServerRef>>) {
        self.recoveries.retain(|waiting| !waiting.is_closed());
        self.recoveries.push(tell);
    }

    pub(super) fn ask_catch_up(&mut self, tell: oneshot::Sender<Vec<ServerUpdate>>) {
        self.catch_ups.retain(|waiting| !waiting.is_closed());
        self.catch_ups.push(tell);
    }

    /// What to do now, the most urgent first. With nothing to do, work is over from this moment on.
    pub(super) fn take(&mut self, end: &CancellationToken) -> Option<Job> {
        self.yields = None;
        if let Some((announcement, tells)) = self.next.take() {
            return Some(Job::Update(announcement, tells));
        }
        let token = end.child_token();
        let job = if !self.recoveries.is_empty() {
            Job::Recover(std::mem::take(&mut self.recoveries), token.clone())
        } else if !self.catch_ups.is_empty() {
            Job::CatchUp(std::mem::take(&mut self.catch_ups), token.clone())
        } else {
            self.is_working = false;
            return None;
        };
        self.yields = Some(token);
        Some(job)
    }

    /// Whoever did the work is gone in the middle of it: nobody is left waiting.
    pub(super) fn abandon(&mut self) {
        self.is_working = false;
        (self.next, self.yields, self.phase) = (None, None, None);
        self.recoveries.clear();
        self.catch_ups.clear();
    }
}
