//! The one task that does the jobs of an updater, one at a time. It runs only while there is a job.
//!
//! The task does not belong to a caller. A caller that stops waiting does not end a job, so every engine that
//! was paused is resumed. When the updater's scope ends, no further job is begun, and all paused engines are
//! resumed. No function in this module is cancel-safe, because none is ever cancelled. A token tells a job to
//! end early.

use std::sync::Arc;

use futures::stream::{self, StreamExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::book::{Book, Job};
use super::inner::{CALL_MAX, Inner};
use super::round::Round;
use super::target::Target;
use super::{Announcement, Phase, ServerUpdate, UpdateMethod, UpdateOutcome, UpdateReport};
use crate::server::{ServerId, ServerState};
use crate::snapshot::ServerSnapshot;
use crate::tasks;
use crate::{ServerRef, invariants};

/// Ends the waiting of all callers if the task panics.
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
    /// Stores a job in the book, and starts the task unless it runs already.
    pub(super) fn submit(self: &Arc<Self>, ask: impl FnOnce(&mut Book)) {
        let is_working = {
            let mut book = self.book.lock();
            ask(&mut book);
            std::mem::replace(&mut book.is_working, true)
        };
        if !is_working {
            tasks::spawn(&self.tracker, "weight update", Arc::clone(self).work());
        }
    }

    async fn work(self: Arc<Self>) {
        let mut working = Working { inner: &self, is_over: false };
        loop {
            let job = self.book.lock().take(&self.end);
            // The callers may have stopped waiting, so sending a reply may fail.
            match job {
                None => break,
                Some(Job::Update(announcement, replies)) => {
                    let report = self.update(announcement).await;
                    replies.into_iter().for_each(|reply| drop(reply.send(report.clone())));
                }
                Some(Job::Recover(replies, token)) => {
                    let resumed = self.recover(&token).await;
                    replies.into_iter().for_each(|reply| drop(reply.send(resumed.clone())));
                }
                Some(Job::CatchUp(replies, token)) => {
                    let updated = self.catch_up(&token).await;
                    replies.into_iter().for_each(|reply| drop(reply.send(updated.clone())));
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
            let reason = "expected a payload, the body of /update_weights: a transfer needs one".to_owned();
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
        let servers = match self.round(&announcement, method, self.end.clone(), |_| true) {
            Some(round) => self.run(round).await,
            None => Vec::new(),
        };
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

    /// A round of the servers that lack some part of the announcement and for which `may` returns true; `None` if there are
    /// no such servers.
    pub(super) fn round(
        self: &Arc<Self>,
        announcement: &Arc<Announcement>,
        method: UpdateMethod,
        token: CancellationToken,
        may: impl Fn(&ServerSnapshot) -> bool,
    ) -> Option<Round> {
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
        (!servers.is_empty()).then(|| Round::new(self, announcement, method, token, &servers))
    }

    /// Runs a round to its end, and reports the servers that have failed.
    pub(super) async fn run(&self, round: Round) -> Vec<ServerUpdate> {
        let version = round.version();
        let updated = round.run().await;
        for ServerUpdate { server, failure } in &updated {
            if let Some(failure) = failure {
                let (phase, reason) = (failure.phase.as_str(), &failure.reason);
                tracing::warn!(%server, version, phase, reason, "a server has missed a weight update");
                self.metrics.failed(failure.phase);
            }
        }
        updated
    }

    /// Resumes the engines that have to be resumed, and engines that report a pause although neither this
    /// process nor an operator has paused them.
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
                    let is_left_paused = is_owed || {
                        let asked = tokio::time::timeout(CALL_MAX, control.is_paused(&target.server));
                        matches!(asked.await, Ok(Ok(true)))
                    };
                    is_left_paused.then_some(target)
                }
            })
            .collect();
        let limit = self.config.concurrency.max(1);
        let looking = stream::iter(looks).buffered(limit).collect();
        let seen: Vec<Option<Target>> = token.run_until_cancelled(looking).await.unwrap_or_default();
        let left_paused: Vec<Target> = seen.into_iter().flatten().collect();
        if left_paused.is_empty() {
            return Vec::new();
        }
        let servers: Vec<ServerRef> = left_paused.iter().map(|target| target.server.clone()).collect();
        self.enter_phase(Phase::Resume, None, &servers);
        let until = Instant::now() + self.config.deadlines.of(Phase::Resume);
        let calls: Vec<_> = left_paused
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
}
