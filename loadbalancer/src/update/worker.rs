//! The one task that does what an updater is asked, one thing at a time; it is there only while there is something to do.
//!
//! It belongs to nobody who waits for it: a caller that goes away takes nothing with it, so that an engine that was paused
//! is resumed. When the scope ends, what has not begun is not begun, and everything is resumed. Nothing in here is
//! cancel-safe, because nothing in here is cancelled: jobs are told by a token to be quick.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::book::{Book, Job};
use super::metered::UpdateMetrics;
use super::round::{Round, Target};
use super::{
    Announcement, Phase, ServerUpdate, UpdateConfig, UpdateMethod, UpdateOutcome, UpdatePhase, UpdateReport,
};
use crate::control::{ControlError, EngineControl};
use crate::{LoadBalancer, PauseMode, ServerId, ServerRef, ServerSnapshot, ServerState, invariants};

/// One call of a phase that may ask again; an engine that is well answers in milliseconds.
const CALL_MAX: Duration = Duration::from_secs(5);
/// Before a server is asked again to resume; doubled each time.
const RESUME_PAUSE_MIN: Duration = Duration::from_millis(100);
const RESUME_PAUSE_MAX: Duration = Duration::from_secs(5);

/// What an updater's clones and its task share.
pub(super) struct Inner {
    pub(super) balancer: LoadBalancer,
    pub(super) control: Arc<dyn EngineControl>,
    pub(super) config: UpdateConfig,
    /// For the user's URL.
    pub(super) hook: Option<reqwest::Client>,
    pub(super) tracker: TaskTracker,
    pub(super) end: CancellationToken,
    pub(super) book: Mutex<Book>,
    pub(super) metrics: UpdateMetrics,
}

/// Nobody is left waiting for a task that panicked.
struct Working<'a> {
    inner: &'a Inner,
    is_over: bool,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.inner.book.lock().abandon();
        }
    }
}

impl Inner {
    /// Puts something into the book and has it done.
    pub(super) fn submit(self: &Arc<Self>, ask: impl FnOnce(&mut Book)) {
        let is_working = {
            let mut book = self.book.lock();
            ask(&mut book);
            std::mem::replace(&mut book.is_working, true)
        };
        if !is_working {
            self.tracker.spawn(Arc::clone(self).work());
        }
    }

    async fn work(self: Arc<Self>) {
        let mut working = Working { inner: &self, is_over: false };
        loop {
            let job = self.book.lock().take(&self.end);
            // Whoever asked may have gone.
            match job {
                None => break,
                Some(Job::Update(announcement, tells)) => {
                    let report = self.update(announcement).await;
                    tells.into_iter().for_each(|tell| drop(tell.send(report.clone())));
                }
                Some(Job::Recover(tells, token)) => {
                    let resumed = self.recover(&token).await;
                    tells.into_iter().for_each(|tell| drop(tell.send(resumed.clone())));
                }
                Some(Job::CatchUp(tells, token)) => {
                    let updated = self.catch_up(&token).await;
                    tells.into_iter().for_each(|tell| drop(tell.send(updated.clone())));
                }
            }
            self.check();
        }
        working.is_over = true;
    }

    fn check(&self) {
        if cfg!(debug_assertions) {
            let owed = self.book.lock().servers.owed();
            let fleet = self.balancer.snapshot();
            debug_assert_eq!(invariants::weights_current(&fleet), Ok(()));
            debug_assert_eq!(invariants::owed_are_held(&fleet, &owed), Ok(()));
        }
    }

    async fn update(self: &Arc<Self>, announcement: Announcement) -> UpdateReport {
        let version = announcement.version;
        let refusal = if self.end.is_cancelled() {
            Some(UpdateOutcome::Ended)
        } else if self.config.method == UpdateMethod::Transfer && announcement.payload.is_none() {
            let reason = "a transfer needs a payload, the body of /update_weights".to_owned();
            Some(UpdateOutcome::Refused { reason })
        } else {
            None
        };
        if let Some(outcome) = refusal {
            return self.reported(UpdateReport::without_work(version, outcome));
        }
        let began = Instant::now();
        let announcement = Arc::new(announcement);
        self.book.lock().begin(&announcement);
        let method = self.config.method.clone();
        let servers = self.round(&announcement, method, self.end.clone(), |_| true).await;
        let outcome = match servers.iter().all(|server| server.failure.is_none()) {
            true => UpdateOutcome::Complete,
            false if self.end.is_cancelled() => UpdateOutcome::Ended,
            false => UpdateOutcome::Partial,
        };
        self.reported(UpdateReport { version, outcome, servers, took: began.elapsed() })
    }

    fn reported(&self, report: UpdateReport) -> UpdateReport {
        self.metrics.ended(&report);
        let UpdateReport { version, outcome, servers, took } = &report;
        let (outcome, seconds) = (outcome.as_str(), took.as_secs_f64());
        let failed = servers.iter().filter(|server| server.failure.is_some()).count();
        tracing::info!(version, outcome, servers = servers.len(), failed, seconds, "weight update");
        report
    }

    /// An update of those servers that lack something of it and that `may` be asked now.
    async fn round(
        self: &Arc<Self>,
        announcement: &Arc<Announcement>,
        method: UpdateMethod,
        token: CancellationToken,
        may: impl Fn(&ServerSnapshot) -> bool,
    ) -> Vec<ServerUpdate> {
        let version = announcement.version;
        let fleet = self.balancer.snapshot();
        let known = {
            let mut book = self.book.lock();
            book.servers.retain(&fleet.servers);
            book.servers.clone()
        };
        let gives_weights = self.config.gives_weights();
        let holds = gives_weights || self.config.pause.is_some();
        let wants = |server: &ServerSnapshot| known.lacks(server, version) && may(server);
        let servers = self.balancer.begin_update(gives_weights.then_some(version), holds, wants);
        if servers.is_empty() {
            return Vec::new();
        }
        let updated = Round::new(self, announcement, method, token, &servers).run().await;
        for ServerUpdate { server, failure } in &updated {
            if let Some(failure) = failure {
                let (phase, reason) = (failure.phase.as_str(), &failure.reason);
                tracing::warn!(%server, version, phase, reason, "a server has missed a weight update");
                self.metrics.failed(failure.phase);
            }
        }
        updated
    }

    async fn catch_up(self: &Arc<Self>, token: &CancellationToken) -> Vec<ServerUpdate> {
        let Some(announcement) = self.book.lock().current.clone() else { return Vec::new() };
        let version = announcement.version;
        self.notice_lost_weights(&announcement, token).await;
        let known = self.book.lock().servers.clone();
        let for_one = self.config.method_of_one(&announcement);
        let may_load = for_one.is_some();
        let method = for_one.unwrap_or_else(|| self.config.method.clone());
        let now = Instant::now();
        let may = |server: &ServerSnapshot| {
            let is_loaded = known.get(server.id).and_then(|known| known.has(server.epoch, version)).is_some();
            known.may_try(server.id, now) && (may_load || is_loaded)
        };
        self.round(&announcement, method, token.clone(), may).await
    }

    /// A process that was started anew, so fast that nobody saw it gone, says that its weights are called otherwise.
    async fn notice_lost_weights(&self, announcement: &Arc<Announcement>, token: &CancellationToken) {
        if !self.config.gives_weights() {
            return;
        }
        let fleet = self.balancer.snapshot().servers;
        let known = self.book.lock().servers.clone();
        let version = announcement.version;
        let is_named = |server: &ServerSnapshot| {
            known
                .get(server.id)
                .and_then(|known| known.has(server.epoch, version))
                .is_some_and(|has| has.is_named)
        };
        let is_up_to_date = |server: &ServerSnapshot| {
            server.state != ServerState::Dead && is_named(server) && !known.lacks(server, version)
        };
        let looks: Vec<_> = fleet
            .iter()
            .filter(|server| is_up_to_date(server))
            .map(Target::of)
            .map(|target| {
                let control = Arc::clone(&self.control);
                async move {
                    let asked = tokio::time::timeout(CALL_MAX, control.weight_version(&target.server));
                    asked.await.ok().and_then(Result::ok).map(|found| (target, found))
                }
            })
            .collect();
        let looking = stream::iter(looks).buffered(self.config.concurrency.max(1)).collect();
        let seen: Vec<Option<(Target, Arc<str>)>> =
            token.run_until_cancelled(looking).await.unwrap_or_default();
        for (target, found) in seen.into_iter().flatten() {
            if found != announcement.label {
                let reason = format!("expected weights={}, found={found}", announcement.label);
                self.balancer.restart(target.id, target.epoch, &reason);
            }
        }
    }

    /// Resumes those that are owed it, and those that are paused without anybody here having done it.
    async fn recover(self: &Arc<Self>, token: &CancellationToken) -> Vec<ServerRef> {
        let fleet = self.balancer.snapshot().servers;
        let known = {
            let mut book = self.book.lock();
            book.servers.retain(&fleet);
            book.servers.clone()
        };
        let is_owed = |id: ServerId| known.get(id).is_some_and(|known| known.is_owed);
        let looks: Vec<_> = fleet
            .iter()
            .filter(|server| {
                is_owed(server.id) || server.state != ServerState::Paused || server.hold.is_some()
            })
            .map(|server| (Target::of(server), is_owed(server.id)))
            .map(|(target, is_owed)| {
                let control = Arc::clone(&self.control);
                async move {
                    let is_left = is_owed || {
                        let asked = tokio::time::timeout(CALL_MAX, control.is_paused(&target.server));
                        matches!(asked.await, Ok(Ok(true)))
                    };
                    is_left.then_some(target)
                }
            })
            .collect();
        let limit = self.config.concurrency.max(1);
        let looking = stream::iter(looks).buffered(limit).collect();
        let seen: Vec<Option<Target>> = token.run_until_cancelled(looking).await.unwrap_or_default();
        let left: Vec<Target> = seen.into_iter().flatten().collect();
        if left.is_empty() {
            return Vec::new();
        }
        let servers: Vec<ServerRef> = left.iter().map(|target| target.server.clone()).collect();
        self.enter_phase(Phase::Resume, None, &servers);
        let until = Instant::now() + self.config.deadlines.of(Phase::Resume);
        let calls: Vec<_> = left
            .into_iter()
            .map(|target| {
                let (inner, token) = (Arc::clone(self), token.clone());
                async move {
                    let resumed = inner.resume(&target, false, until, Some(&token)).await;
                    inner.leave_phase(&target.server.name);
                    resumed.is_ok().then_some(target.server)
                }
            })
            .collect();
        let asked: Vec<Option<ServerRef>> = stream::iter(calls).buffered(limit).collect().await;
        self.forget_phase();
        let resumed: Vec<ServerRef> = asked.into_iter().flatten().collect();
        for server in &resumed {
            tracing::warn!(server = %server.name, "an engine that was left paused is resumed");
        }
        self.metrics.recovered(resumed.len());
        resumed
    }

    /// Asks until it is done, the server is lost, or `until`; lets the server take permits again if nothing else is in the
    /// way. With a token only until that is cancelled.
    pub(super) async fn resume(
        &self,
        target: &Target,
        needs_abort: bool,
        until: Instant,
        token: Option<&CancellationToken>,
    ) -> Result<(), String> {
        let Target { id, ref server, .. } = *target;
        let is_owed = self.book.lock().servers.get(id).is_some_and(|known| known.is_owed);
        // Without a token it is a round's; with one it is known to be paused.
        if !is_owed && token.is_none() {
            self.balancer.release(id);
            return Ok(());
        }
        let call_until = || until.min(Instant::now() + CALL_MAX);
        if needs_abort {
            // Nobody waits for its answers any more; where this fails they go to nobody.
            let _ = tokio::time::timeout_at(call_until(), self.control.pause(server, PauseMode::Abort)).await;
        }
        let mut pause = RESUME_PAUSE_MIN;
        loop {
            let asked = tokio::time::timeout_at(call_until(), self.control.resume(server)).await;
            let reason = match asked {
                // What cannot be resumed has not been paused.
                Ok(Ok(()) | Err(ControlError::Unsupported { .. })) => {
                    self.book.lock().servers.known(id).is_owed = false;
                    self.balancer.release(id);
                    return Ok(());
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            let is_hopeless = !self.is_there(id) || Instant::now() + pause >= until;
            if is_hopeless || token.is_some_and(CancellationToken::is_cancelled) {
                return Err(reason);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RESUME_PAUSE_MAX);
        }
    }

    fn is_there(&self, id: ServerId) -> bool {
        let fleet = self.balancer.snapshot().servers;
        fleet.iter().any(|server| server.id == id && server.state != ServerState::Dead)
    }

    /// Their engines are about to be paused.
    pub(super) fn owe(&self, servers: impl Iterator<Item = ServerId>) {
        let mut book = self.book.lock();
        servers.for_each(|id| book.servers.known(id).is_owed = true);
    }

    pub(super) fn enter_phase(&self, phase: Phase, version: Option<u64>, servers: &[ServerRef]) {
        let awaited = servers.iter().map(|server| Arc::clone(&server.name)).collect();
        let deadline = self.config.deadlines.of(phase);
        self.book.lock().phase =
            Some(UpdatePhase { phase, version, since: Instant::now(), deadline, awaited });
    }

    /// It is not waited for any more.
    pub(super) fn leave_phase(&self, server: &str) {
        if let Some(phase) = &mut self.book.lock().phase {
            phase.awaited.retain(|awaited| **awaited != *server);
        }
    }

    pub(super) fn forget_phase(&self) {
        self.book.lock().phase = None;
    }
}
