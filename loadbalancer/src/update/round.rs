//! One update of some servers: pause, update, reset, label, resume.
//!
//! A server that fails at a phase skips those that follow, except for the last: an engine that was paused is resumed,
//! whatever happened. If that fails too it stays on the list of those that are owed it, and out of rotation.
//!
//! A server whose weights were touched and which did not get through cannot be told apart from one that has half of them.
//! Its permits are revoked before its engine runs again, so that nobody takes tokens of such weights for a version's. One
//! that failed before has its old weights: what runs there runs on.
//!
//! Nothing in here is cancel-safe: a round is run to its end by the updater's task.

use std::sync::Arc;

use futures::stream::{self, StreamExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::book::Has;
use super::calls::{self, Attempt, Call, Until, attempt};
use super::worker::Inner;
use super::{Announcement, Failure, Phase, ServerUpdate, UpdateMethod, hook};
use crate::control::ControlError;
use crate::{Epoch, PauseMode, ServerId, ServerRef, ServerSnapshot};

/// A life of a server.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) id: ServerId,
    pub(super) epoch: Epoch,
    pub(super) server: ServerRef,
}

impl Target {
    pub(super) fn of(server: &ServerSnapshot) -> Self {
        let ServerSnapshot { id, epoch, ref name, ref url, .. } = *server;
        Self { id, epoch, server: ServerRef { name: Arc::clone(name), url: url.clone() } }
    }
}

/// A server's way through the phases.
struct Lot {
    target: Target,
    is_loaded: bool,
    is_reset: bool,
    is_labelled: bool,
    is_named: bool,
    /// Its weights may not be what they were.
    is_touched: bool,
    failure: Option<Failure>,
}

impl Lot {
    fn note(&mut self, phase: Phase, attempt: Attempt) {
        let is_offered = !matches!(attempt, Attempt::Answered(Err(ControlError::Unsupported { .. })));
        let is_made = is_offered && !matches!(attempt, Attempt::NotMade(_));
        self.is_touched |= is_made && phase == Phase::Update;
        self.is_named |= phase == Phase::Label && matches!(attempt, Attempt::Answered(Ok(())));
        let reason = match attempt {
            Attempt::Answered(Ok(())) => None,
            // An engine that has no names for weights is not asked for any.
            Attempt::Answered(Err(ControlError::Unsupported { .. })) if phase == Phase::Label => None,
            Attempt::Answered(Err(error)) => Some(error.to_string()),
            Attempt::NotMade(reason) | Attempt::Unanswered(reason) => Some(reason),
        };
        let is_done = reason.is_none();
        self.failure = reason.map(|reason| Failure { phase, reason });
        match phase {
            Phase::Update => self.is_loaded = is_done,
            Phase::Reset => self.is_reset = is_done,
            Phase::Label => self.is_labelled = is_done,
            Phase::Pause | Phase::Resume => {}
        }
    }
}

/// See the module's documentation.
pub(super) struct Round {
    inner: Arc<Inner>,
    announcement: Arc<Announcement>,
    method: UpdateMethod,
    /// Once it is cancelled nothing is begun any more, and everything is resumed.
    token: CancellationToken,
    lots: Vec<Lot>,
}

impl Round {
    pub(super) fn new(
        inner: &Arc<Inner>,
        announcement: &Arc<Announcement>,
        method: UpdateMethod,
        token: CancellationToken,
        servers: &[ServerSnapshot],
    ) -> Self {
        let version = announcement.version;
        let wants_reset = inner.config.reset_prefix_cache;
        let book = inner.book.lock();
        let lot = |server: &ServerSnapshot| {
            let has = book.servers.get(server.id).and_then(|known| known.has(server.epoch, version));
            Lot {
                target: Target::of(server),
                is_loaded: has.is_some(),
                is_reset: has.map_or(!wants_reset, |has| has.is_reset),
                is_labelled: has.is_some_and(|has| has.is_labelled),
                is_named: has.is_some_and(|has| has.is_named),
                is_touched: false,
                failure: None,
            }
        };
        let lots = servers.iter().map(lot).collect();
        drop(book);
        Self { inner: Arc::clone(inner), announcement: Arc::clone(announcement), method, token, lots }
    }

    pub(super) async fn run(mut self) -> Vec<ServerUpdate> {
        if let Some(mode) = self.inner.config.pause {
            self.pause(mode).await;
        }
        self.update().await;
        self.reset().await;
        self.label().await;
        self.distrust();
        self.resume().await;
        self.inner.forget_phase();
        let outcome = |lot: Lot| ServerUpdate { server: lot.target.server.name, failure: lot.failure };
        self.lots.into_iter().map(outcome).collect()
    }

    async fn pause(&mut self, mode: PauseMode) {
        // Before the first call: one that is not answered may have been heard.
        self.inner.owe(self.lots.iter().map(|lot| lot.target.id));
        let control = Arc::clone(&self.inner.control);
        self.each(Phase::Pause, |_| true, |target| calls::pause(Arc::clone(&control), target, mode)).await;
    }

    async fn update(&mut self) {
        let control = Arc::clone(&self.inner.control);
        let announcement = Arc::clone(&self.announcement);
        let lacks = |lot: &Lot| !lot.is_loaded;
        match self.method.clone() {
            // The trainer has done it, also where we could not pause.
            UpdateMethod::None => self.lots.iter_mut().for_each(|lot| lot.is_loaded = true),
            UpdateMethod::Reload(reload) => {
                let call = |target| {
                    calls::load(Arc::clone(&control), target, reload.clone(), Arc::clone(&announcement))
                };
                self.each(Phase::Update, lacks, call).await;
            }
            UpdateMethod::Transfer => {
                let call = |target| calls::transfer(Arc::clone(&control), target, Arc::clone(&announcement));
                self.each(Phase::Update, lacks, call).await;
            }
            UpdateMethod::Command(_) | UpdateMethod::Http(_) => self.update_at_once(lacks).await,
        }
    }

    /// One call for all of them, with one outcome.
    async fn update_at_once(&mut self, lacks: impl Fn(&Lot) -> bool) {
        let going = |lot: &&mut Lot| lot.failure.is_none() && lacks(lot);
        let servers: Vec<ServerRef> =
            self.lots.iter_mut().filter(&going).map(|lot| lot.target.server.clone()).collect();
        if servers.is_empty() {
            return;
        }
        let until = self.enter(Phase::Update, &servers);
        let announcement = Arc::clone(&self.announcement);
        let (method, client) = (self.method.clone(), self.inner.hook.clone());
        let call = async move {
            let done = match (method, client) {
                (UpdateMethod::Command(argv), _) => hook::run(&argv, &announcement, &servers).await,
                (UpdateMethod::Http(url), Some(client)) => {
                    hook::post(client, url, &announcement, &servers).await
                }
                _ => Err("there is no hook".to_owned()),
            };
            // The user's hook is nobody's server.
            done.map_err(|reason| ControlError::Failed { server: "hook".into(), what: "update", reason })
        };
        let outcome = attempt(&self.token, until, self.inner.config.deadlines.of(Phase::Update), call).await;
        for lot in self.lots.iter_mut().filter(going) {
            lot.note(Phase::Update, outcome.clone());
        }
        self.inner.metrics.phase(Phase::Update, until.began.elapsed());
    }

    async fn reset(&mut self) {
        if !self.inner.config.reset_prefix_cache {
            return;
        }
        let control = Arc::clone(&self.inner.control);
        // Requests that go on after the update have cached what the old weights made of their tokens.
        let is_running = !matches!(self.inner.config.pause, Some(PauseMode::Abort | PauseMode::Wait));
        let call = |target| calls::reset(Arc::clone(&control), target, is_running);
        self.each(Phase::Reset, |lot| !lot.is_reset, call).await;
    }

    async fn label(&mut self) {
        let control = Arc::clone(&self.inner.control);
        let label = Arc::clone(&self.announcement.label);
        let call = |target| calls::set_label(Arc::clone(&control), target, Arc::clone(&label));
        self.each(Phase::Label, |lot| !lot.is_labelled, call).await;
    }

    /// Asks all that are still on their way and want it, and waits for all.
    async fn each(&mut self, phase: Phase, wants: impl Fn(&Lot) -> bool, call: impl Fn(Target) -> Call) {
        let going = |lot: &Lot| lot.failure.is_none() && wants(lot);
        let chosen: Vec<(usize, Target)> = (0..)
            .zip(&self.lots)
            .filter(|(_, lot)| going(lot))
            .map(|(index, lot)| (index, lot.target.clone()))
            .collect();
        if chosen.is_empty() {
            return;
        }
        let servers: Vec<ServerRef> = chosen.iter().map(|(_, target)| target.server.clone()).collect();
        let until = self.enter(phase, &servers);
        let calls: Vec<_> = chosen
            .into_iter()
            .map(|(index, target)| {
                let (inner, token) = (Arc::clone(&self.inner), self.token.clone());
                let called = call(target.clone());
                async move {
                    let tried = attempt(&token, until, inner.config.deadlines.of(phase), called).await;
                    inner.leave_phase(&target.server.name);
                    (index, tried)
                }
            })
            .collect();
        let limit = self.inner.config.concurrency_in(phase);
        let all_tried: Vec<(usize, Attempt)> = stream::iter(calls).buffer_unordered(limit).collect().await;
        for (index, tried) in all_tried {
            if let Some(lot) = self.lots.get_mut(index) {
                lot.note(phase, tried);
            }
        }
        self.inner.metrics.phase(phase, until.began.elapsed());
    }

    /// Whose weights are touched and who did not get through begins a new life.
    fn distrust(&mut self) {
        if !self.inner.config.gives_weights() {
            return;
        }
        for lot in &mut self.lots {
            let Some(Failure { phase, reason }) = lot.failure.as_ref().filter(|_| lot.is_touched) else {
                continue;
            };
            let words = format!("its weights are not known after {}: {reason}", phase.as_str());
            let Target { id, epoch, .. } = lot.target;
            if let Some(epoch) = self.inner.balancer.restart(id, epoch, &words) {
                lot.target.epoch = epoch;
            }
        }
    }

    async fn resume(&mut self) {
        let servers: Vec<ServerRef> = self.lots.iter().map(|lot| lot.target.server.clone()).collect();
        if servers.is_empty() {
            return;
        }
        let until = self.enter(Phase::Resume, &servers);
        let version = self.announcement.version;
        let settled: Vec<_> =
            self.lots.iter().map(|lot| (lot.target.clone(), self.settle(lot, version))).collect();
        let calls: Vec<_> = settled
            .into_iter()
            .zip(0..)
            .map(|((target, needs_abort), index)| {
                let inner = Arc::clone(&self.inner);
                async move {
                    let resumed = inner.resume(&target, needs_abort, until.ends, None).await;
                    inner.leave_phase(&target.server.name);
                    (index, resumed)
                }
            })
            .collect();
        let limit = self.inner.config.concurrency_in(Phase::Resume);
        let all_asked: Vec<(usize, Result<(), String>)> =
            stream::iter(calls).buffer_unordered(limit).collect().await;
        for (index, resumed) in all_asked {
            let (Some(lot), Err(reason)) = (self.lots.get_mut(index), resumed) else { continue };
            if lot.failure.is_none() {
                let Target { id, epoch, .. } = lot.target;
                self.inner.balancer.set_weights(id, epoch, None, Some(&format!("resume: {reason}")));
                lot.failure = Some(Failure { phase: Phase::Resume, reason });
            }
        }
        self.inner.metrics.phase(Phase::Resume, until.began.elapsed());
        let now = Instant::now();
        let mut book = self.inner.book.lock();
        for lot in &self.lots {
            book.servers.known(lot.target.id).note(lot.failure.is_none(), now);
        }
    }

    /// Writes down what a server has; says whether its running requests have to end before it runs again.
    fn settle(&self, lot: &Lot, version: u64) -> bool {
        let Target { id, epoch, .. } = lot.target;
        let Lot { is_reset, is_labelled, is_named, .. } = *lot;
        let has = lot.is_loaded.then_some(Has { epoch, version, is_reset, is_labelled, is_named });
        self.inner.book.lock().servers.known(id).has = has;
        if !self.inner.config.gives_weights() {
            return false;
        }
        let is_complete = lot.failure.is_none() && lot.is_loaded;
        let reason =
            lot.failure.as_ref().map(|Failure { phase, reason }| format!("{}: {reason}", phase.as_str()));
        self.inner.balancer.set_weights(id, epoch, is_complete.then_some(version), reason.as_deref());
        lot.is_touched && lot.failure.is_some()
    }

    fn enter(&self, phase: Phase, servers: &[ServerRef]) -> Until {
        let limit = self.inner.config.deadlines.of(phase);
        self.inner.enter_phase(phase, Some(self.announcement.version), servers);
        let began = Instant::now();
        Until { began, ends: began + limit }
    }
}
