//! The memory of an updater: the announcements, which server has which weights, which engines have to be
//! resumed, and the jobs that callers have asked for. No function in this module waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Announcement, ServerUpdate, UpdateOutcome, UpdatePhase, UpdateReport};
use crate::ServerRef;
use crate::server::{Epoch, ServerId};
use crate::snapshot::ServerSnapshot;

/// Pause before a server that failed is tried again. It doubles with each failure.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// The longest such pause.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Weights that a life of a server has loaded, and the later phases that it has completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loaded {
    pub(super) epoch: Epoch,
    pub(super) version: u64,
    pub(super) is_reset: bool,
    pub(super) is_labelled: bool,
    /// Whether the server can report the name of its weights. A server without names for weights counts as
    /// labelled, but cannot report a name.
    pub(super) is_named: bool,
    /// Whether the server has generated sound tokens with these weights.
    pub(super) is_checked: bool,
    /// The name of the weights before these were loaded; `None` if it is not known.
    pub(super) former_label: Option<Arc<str>>,
}

/// The updater's knowledge of one server.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub(super) has: Option<Loaded>,
    /// Whether the engine was paused by this updater, and is not known to have been resumed.
    pub(super) is_owed: bool,
    failures: u32,
    not_before: Option<Instant>,
}

impl Known {
    /// The state of `version` on this life of the server; `None` if the life has not loaded the version.
    pub(super) fn has(&self, epoch: Epoch, version: u64) -> Option<&Loaded> {
        self.has.as_ref().filter(|has| has.epoch == epoch && has.version == version)
    }

    fn is_complete(&self, epoch: Epoch, version: u64) -> bool {
        self.has(epoch, version).is_some_and(|has| has.is_reset && has.is_labelled && has.is_checked)
    }

    fn may_try(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|not_before| not_before <= now)
    }

    pub(super) fn note(&mut self, is_success: bool, now: Instant) {
        if is_success {
            (self.failures, self.not_before) = (0, None);
            return;
        }
        let backoff = BACKOFF_MIN * 2_u32.saturating_pow(self.failures.min(16));
        self.not_before = Some(now + backoff.min(BACKOFF_MAX));
        self.failures += 1;
    }
}

/// The known servers, in order of their numbers.
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

    /// Whether the server still lacks some part of `version`.
    pub(super) fn lacks(&self, server: &ServerSnapshot, version: u64) -> bool {
        !self.get(server.id).is_some_and(|known| known.is_complete(server.epoch, version))
    }

    /// Whether enough time has passed since the server's last failure.
    pub(super) fn may_try(&self, id: ServerId, now: Instant) -> bool {
        self.get(id).is_none_or(|known| known.may_try(now))
    }
}

/// One job of the updater's task, with the callers that wait for its result.
pub(super) enum Job {
    /// Give the fleet the announced weights.
    Update(Announcement, Vec<oneshot::Sender<UpdateReport>>),
    /// Resume engines that are left paused. The token is cancelled when an announcement arrives, because an
    /// announcement is more urgent.
    Recover(Vec<oneshot::Sender<Vec<ServerRef>>>, CancellationToken),
    /// Give the current weights to servers that lack them. The token is cancelled when an announcement
    /// arrives.
    CatchUp(Vec<oneshot::Sender<Vec<ServerUpdate>>>, CancellationToken),
}

/// The memory of an updater.
#[derive(Default)]
pub(super) struct Book {
    /// The newest announcement that was begun.
    pub(super) current: Option<Arc<Announcement>>,
    pub(super) servers: Servers,
    pub(super) phase: Option<UpdatePhase>,
    next: Option<(Announcement, Vec<oneshot::Sender<UpdateReport>>)>,
    recoveries: Vec<oneshot::Sender<Vec<ServerRef>>>,
    catch_ups: Vec<oneshot::Sender<Vec<ServerUpdate>>>,
    /// Cancelled when an announcement arrives, so that the running job ends early.
    yields: Option<CancellationToken>,
    /// Whether the task runs.
    pub(super) is_working: bool,
}

impl Book {
    /// Queues an announcement. It replaces an older announcement in the queue.
    pub(super) fn announce(&mut self, announcement: Announcement, reply: oneshot::Sender<UpdateReport>) {
        let version = announcement.version;
        let superseded = |version, by| UpdateReport::without_work(version, UpdateOutcome::Superseded { by });
        let newest = self.newest();
        if newest.is_some_and(|newest| version < newest) {
            // The caller may have stopped waiting.
            let _ = reply.send(superseded(version, newest.unwrap_or(version)));
            return;
        }
        let mut replies = vec![reply];
        match self.next.take() {
            Some((queued, waiting)) if queued.version == version => replies.extend(waiting),
            Some((queued, waiting)) => {
                for reply in waiting {
                    let _ = reply.send(superseded(queued.version, version));
                }
            }
            None => {}
        }
        // Each caller waits for one reply, so the number of callers bounds the list.
        replies.retain(|reply| !reply.is_closed());
        self.next = Some((announcement, replies));
        if let Some(token) = &self.yields {
            token.cancel();
        }
    }

    /// Makes an announcement the current one. If the label is new, every server has to be labelled again.
    pub(super) fn begin(&mut self, announcement: &Arc<Announcement>) {
        let former = self.current.replace(Arc::clone(announcement));
        if former.is_some_and(|former| former.label != announcement.label) {
            self.servers.forget_labels();
        }
    }

    /// Makes an announcement the current one, but queues no job for it. Returns false and does nothing if a
    /// newer announcement is known.
    pub(super) fn adopt(&mut self, announcement: &Arc<Announcement>) -> bool {
        let is_newest = self.newest().is_none_or(|newest| newest <= announcement.version);
        if is_newest {
            self.begin(announcement);
        }
        is_newest
    }

    fn newest(&self) -> Option<u64> {
        let queued = self.next.as_ref().map(|(queued, _)| queued.version);
        queued.max(self.current.as_ref().map(|current| current.version))
    }

    pub(super) fn ask_recovery(&mut self, reply: oneshot::Sender<Vec<ServerRef>>) {
        self.recoveries.retain(|waiting| !waiting.is_closed());
        self.recoveries.push(reply);
    }

    pub(super) fn ask_catch_up(&mut self, reply: oneshot::Sender<Vec<ServerUpdate>>) {
        self.catch_ups.retain(|waiting| !waiting.is_closed());
        self.catch_ups.push(reply);
    }

    /// Takes the most urgent job. If there is no job, the task counts as ended from now on.
    pub(super) fn take(&mut self, end: &CancellationToken) -> Option<Job> {
        self.yields = None;
        if let Some((announcement, replies)) = self.next.take() {
            return Some(Job::Update(announcement, replies));
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

    /// Called when the task has ended in the middle of a job: drops all queued jobs, which ends the waiting
    /// of their callers.
    pub(super) fn abandon(&mut self) {
        self.is_working = false;
        (self.next, self.yields, self.phase) = (None, None, None);
        self.recoveries.clear();
        self.catch_ups.clear();
    }
}
