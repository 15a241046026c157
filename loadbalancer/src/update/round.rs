//! One update of some servers: pause, update, reset, label, resume, check.
//!
//! A server that fails in a phase skips the following phases, except for the resume: an engine that was
//! paused is always resumed. If the resume fails, too, the engine stays on the list of engines that have to
//! be resumed, and the server stays out of rotation.
//!
//! A server that failed after its weights were touched may have half of the new weights. Its permits are
//! revoked before its engine runs again, so no caller attributes tokens of mixed weights to a version. A
//! server that failed earlier has its old weights, and its requests continue.
//!
//! A process that was replaced after it had loaded the weights must not get their label: it would look up to date. So the
//! former label is read before the load, and the engine must still have it, and still be paused, when it gets the new one.
//!
//! The check comes last, because a paused engine does not generate. Permits are granted only after the check:
//! an engine that has loaded an incomplete checkpoint answers every other call as if it were healthy.
//!
//! No function in this module is cancel-safe: the updater's task runs a round to its end.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::{self, StreamExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::book::Loaded;
use super::calls::{self, Attempt, Call, Until, attempt};
use super::inner::{CALL_MAX, Inner};
use super::target::Target;
use super::{Announcement, Failure, Phase, ServerUpdate, UpdateMethod, hook};
use crate::control::ControlError;
use crate::server::ServerId;
use crate::snapshot::ServerSnapshot;
use crate::{PauseMode, ServerRef};

/// One server of a round, and its progress.
struct Participant {
    target: Target,
    is_loaded: bool,
    is_reset: bool,
    is_labelled: bool,
    is_named: bool,
    /// Whether the server has generated sound tokens with these weights.
    is_checked: bool,
    /// Whether the server's weights may have changed.
    is_touched: bool,
    /// The name of the weights before this round has replaced them.
    former_label: Option<Arc<str>>,
    failure: Option<Failure>,
}

impl Participant {
    fn note(&mut self, phase: Phase, attempt: Attempt) {
        let is_offered = !matches!(attempt, Attempt::Answered(Err(ControlError::Unsupported { .. })));
        let is_made = is_offered && !matches!(attempt, Attempt::NotMade(_));
        self.is_touched |= is_made && phase == Phase::Update;
        self.is_named |= phase == Phase::Label && matches!(attempt, Attempt::Answered(Ok(())));
        // Weights with which the engine does not generate have to be loaded again. So have the weights of a process that
        // was replaced.
        self.is_loaded &=
            !(phase == Phase::Check && matches!(attempt, Attempt::Answered(Err(_)) if is_offered));
        self.is_loaded &= !is_replaced(&attempt);
        self.is_touched |= is_replaced(&attempt);
        let reason = match attempt {
            Attempt::Answered(Ok(())) => None,
            // An engine that has no names for weights needs no label, and one that reports no
            // log-probabilities cannot be checked.
            Attempt::Answered(Err(ControlError::Unsupported { .. }))
                if matches!(phase, Phase::Label | Phase::Check) =>
            {
                None
            }
            Attempt::Answered(Err(error)) => Some(error.to_string()),
            Attempt::NotMade(reason) | Attempt::Unanswered(reason) => Some(reason),
        };
        let is_done = reason.is_none();
        self.failure = reason.map(|reason| Failure { phase, reason });
        match phase {
            Phase::Update => self.is_loaded = is_done,
            Phase::Reset => self.is_reset = is_done,
            Phase::Label => self.is_labelled = is_done,
            Phase::Check => self.is_checked = is_done,
            Phase::Pause | Phase::Resume => {}
        }
    }
}

/// Whether the call found another process than the one that had loaded the weights.
fn is_replaced(attempt: &Attempt) -> bool {
    matches!(attempt, Attempt::Answered(Err(ControlError::Failed { what, .. })) if *what == calls::SAME_PROCESS)
}

/// One update of some servers.
pub(super) struct Round {
    inner: Arc<Inner>,
    announcement: Arc<Announcement>,
    method: UpdateMethod,
    /// Once this token is cancelled, no further call is made, except for those that resume engines.
    token: CancellationToken,
    participants: Vec<Participant>,
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
        let wants_check = inner.config.checks_generation();
        let book = inner.book.lock();
        let participant = |server: &ServerSnapshot| {
            let has = book.servers.get(server.id).and_then(|known| known.has(server.epoch, version));
            Participant {
                target: Target::of(server),
                is_loaded: has.is_some(),
                is_reset: has.map_or(!wants_reset, |has| has.is_reset),
                is_labelled: has.is_some_and(|has| has.is_labelled),
                is_named: has.is_some_and(|has| has.is_named),
                is_checked: has.map_or(!wants_check, |has| has.is_checked),
                is_touched: false,
                former_label: has.and_then(|has| has.former_label.clone()),
                failure: None,
            }
        };
        let participants = servers.iter().map(participant).collect();
        drop(book);
        Self { inner: Arc::clone(inner), announcement: Arc::clone(announcement), method, token, participants }
    }

    /// The version that the servers get.
    pub(super) fn version(&self) -> u64 {
        self.announcement.version
    }

    /// The servers of the round.
    pub(super) fn servers(&self) -> impl Iterator<Item = ServerId> {
        self.participants.iter().map(|participant| participant.target.id)
    }

    pub(super) async fn run(mut self) -> Vec<ServerUpdate> {
        if let Some(mode) = self.inner.config.pause {
            self.pause(mode).await;
        }
        self.read_labels().await;
        self.update().await;
        self.reset().await;
        self.label().await;
        self.distrust(|phase| phase < Phase::Check);
        self.resume().await;
        self.check().await;
        self.inner.forget_phase();
        self.note_successes();
        let outcome = |participant: Participant| ServerUpdate {
            server: participant.target.server.name,
            failure: participant.failure,
        };
        self.participants.into_iter().map(outcome).collect()
    }

    async fn pause(&mut self, mode: PauseMode) {
        // Records before the first call that these engines have to be resumed, because an engine may have
        // paused although its answer was lost.
        self.inner.owe(self.participants.iter().map(|participant| participant.target.id));
        let control = Arc::clone(&self.inner.control);
        self.each(Phase::Pause, |_| true, |target| calls::pause(Arc::clone(&control), target, mode)).await;
    }

    /// Whether only this round changes labels and pauses. A program of the user may do both.
    fn knows_process(&self) -> bool {
        matches!(self.method, UpdateMethod::Reload(_) | UpdateMethod::Transfer)
    }

    /// Reads the names of the weights that are about to be replaced.
    async fn read_labels(&mut self) {
        if !self.knows_process() {
            return;
        }
        let limit = self.inner.config.concurrency.max(1);
        let control = Arc::clone(&self.inner.control);
        let reads: Vec<_> = (0..)
            .zip(&self.participants)
            .filter(|(_, participant)| participant.failure.is_none() && !participant.is_loaded)
            .map(|(index, participant)| {
                let (control, server) = (Arc::clone(&control), participant.target.server.clone());
                async move {
                    let read = tokio::time::timeout(CALL_MAX, control.weight_version(&server)).await;
                    (index, read.ok().and_then(Result::ok))
                }
            })
            .collect();
        let reading = stream::iter(reads).buffer_unordered(limit).collect();
        let labels: Vec<(usize, Option<Arc<str>>)> =
            self.token.run_until_cancelled(reading).await.unwrap_or_default();
        for (index, label) in labels {
            if let Some(participant) = self.participants.get_mut(index) {
                participant.former_label = label;
            }
        }
    }

    async fn update(&mut self) {
        let control = Arc::clone(&self.inner.control);
        let announcement = Arc::clone(&self.announcement);
        let lacks = |participant: &Participant| !participant.is_loaded;
        match self.method.clone() {
            // The trainer has updated all servers, including engines that could not be paused here.
            UpdateMethod::None => {
                self.participants.iter_mut().for_each(|participant| participant.is_loaded = true)
            }
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

    /// Runs the user's hook once for all servers. The outcome of the hook counts for all of these servers.
    async fn update_at_once(&mut self, lacks: impl Fn(&Participant) -> bool) {
        let going = |participant: &&mut Participant| participant.failure.is_none() && lacks(participant);
        let servers: Vec<ServerRef> = self
            .participants
            .iter_mut()
            .filter(&going)
            .map(|participant| participant.target.server.clone())
            .collect();
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
            // The hook is not a server, so its error needs a separate name.
            done.map_err(|reason| ControlError::Failed { server: "hook".into(), what: "update", reason })
        };
        let outcome = attempt(&self.token, until, self.inner.config.deadlines.of(Phase::Update), call).await;
        for participant in self.participants.iter_mut().filter(going) {
            participant.note(Phase::Update, outcome.clone());
        }
        self.inner.metrics.phase(Phase::Update, until.began.elapsed());
    }

    async fn reset(&mut self) {
        if !self.inner.config.reset_prefix_cache {
            return;
        }
        let control = Arc::clone(&self.inner.control);
        // Requests that continue after the update hold cache blocks that the old weights computed.
        let is_running = !matches!(self.inner.config.pause, Some(PauseMode::Abort | PauseMode::Wait));
        let call = |target| calls::reset(Arc::clone(&control), target, is_running);
        self.each(Phase::Reset, |participant| !participant.is_reset, call).await;
    }

    async fn label(&mut self) {
        let control = Arc::clone(&self.inner.control);
        let label = Arc::clone(&self.announcement.label);
        let is_paused = self.knows_process() && self.inner.config.pause.is_some();
        let former = |participant: &Participant| (participant.target.id, participant.former_label.clone());
        let former: BTreeMap<ServerId, Option<Arc<str>>> = self.participants.iter().map(former).collect();
        let call = |target: Target| {
            let former_label = former.get(&target.id).cloned().flatten();
            let process = calls::Process { former_label, is_paused };
            calls::set_label(Arc::clone(&control), target, Arc::clone(&label), process)
        };
        self.each(Phase::Label, |participant| !participant.is_labelled, call).await;
    }

    /// Calls every server that has not failed and that `wants` selects, and waits for all answers.
    async fn each(
        &mut self,
        phase: Phase,
        wants: impl Fn(&Participant) -> bool,
        call: impl Fn(Target) -> Call,
    ) {
        let going = |participant: &Participant| participant.failure.is_none() && wants(participant);
        let chosen: Vec<(usize, Target)> = (0..)
            .zip(&self.participants)
            .filter(|(_, participant)| going(participant))
            .map(|(index, participant)| (index, participant.target.clone()))
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
            if let Some(participant) = self.participants.get_mut(index) {
                participant.note(phase, tried);
            }
        }
        self.inner.metrics.phase(phase, until.began.elapsed());
    }

    /// Begins a new life of every server that failed in one of these phases, if its weights were touched
    /// before.
    fn distrust(&mut self, in_phase: impl Fn(Phase) -> bool) {
        if !self.inner.config.gives_weights() {
            return;
        }
        for participant in &mut self.participants {
            let Some(Failure { phase, reason }) = participant
                .failure
                .as_ref()
                .filter(|failure| participant.is_touched && in_phase(failure.phase))
            else {
                continue;
            };
            let reason = format!("its weights are not known after {}: {reason}", phase.as_str());
            let Target { id, epoch, .. } = participant.target;
            if let Some(epoch) = self.inner.balancer.restart(id, epoch, &reason) {
                participant.target.epoch = epoch;
            }
        }
    }

    async fn resume(&mut self) {
        let servers: Vec<ServerRef> =
            self.participants.iter().map(|participant| participant.target.server.clone()).collect();
        if servers.is_empty() {
            return;
        }
        let until = self.enter(Phase::Resume, &servers);
        let version = self.announcement.version;
        let settled: Vec<_> = self
            .participants
            .iter()
            .map(|participant| (participant.target.clone(), self.settle(participant, version)))
            .collect();
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
            let (Some(participant), Err(reason)) = (self.participants.get_mut(index), resumed) else {
                continue;
            };
            if participant.failure.is_none() {
                let Target { id, epoch, .. } = participant.target;
                self.inner.balancer.set_weights(id, epoch, None, Some(&format!("resume: {reason}")));
                participant.failure = Some(Failure { phase: Phase::Resume, reason });
            }
        }
        self.inner.metrics.phase(Phase::Resume, until.began.elapsed());
    }

    /// Makes the servers generate a few tokens. Permits are granted on the servers whose tokens are sound.
    async fn check(&mut self) {
        let awaits = |participant: &Participant| participant.is_loaded && !participant.is_checked;
        let checked: Vec<bool> = self
            .participants
            .iter()
            .map(|participant| participant.failure.is_none() && awaits(participant))
            .collect();
        let (control, balancer) = (Arc::clone(&self.inner.control), self.inner.balancer.clone());
        let call = |target| calls::check(Arc::clone(&control), balancer.clone(), target);
        self.each(Phase::Check, awaits, call).await;
        self.distrust(|phase| phase == Phase::Check);
        let version = self.announcement.version;
        for (participant, _) in self.participants.iter().zip(checked).filter(|(_, is_checked)| *is_checked) {
            self.settle(participant, version);
        }
    }

    /// Notes which servers may be tried again soon.
    fn note_successes(&self) {
        let now = Instant::now();
        let mut book = self.inner.book.lock();
        for participant in &self.participants {
            book.servers.known(participant.target.id).note(participant.failure.is_none(), now);
        }
    }

    /// Notes which weights a server has. Returns whether its running requests have to be aborted before its
    /// engine is resumed.
    fn settle(&self, participant: &Participant, version: u64) -> bool {
        let Target { id, epoch, .. } = participant.target;
        let Participant { is_reset, is_labelled, is_named, is_checked, .. } = *participant;
        let former_label = participant.former_label.clone();
        let has = Loaded { epoch, version, is_reset, is_labelled, is_named, is_checked, former_label };
        let has = participant.is_loaded.then_some(has);
        self.inner.book.lock().servers.known(id).has = has;
        if !self.inner.config.gives_weights() {
            return false;
        }
        let is_complete = participant.failure.is_none() && participant.is_loaded && is_checked;
        let reason = participant
            .failure
            .as_ref()
            .map(|Failure { phase, reason }| format!("{}: {reason}", phase.as_str()));
        self.inner.balancer.set_weights(id, epoch, is_complete.then_some(version), reason.as_deref());
        participant.is_touched && participant.failure.is_some()
    }

    fn enter(&self, phase: Phase, servers: &[ServerRef]) -> Until {
        let limit = self.inner.config.deadlines.of(phase);
        self.inner.enter_phase(phase, Some(self.announcement.version), servers);
        let began = Instant::now();
        Until { began, ends: began + limit }
    }
}
