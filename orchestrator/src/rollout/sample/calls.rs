//! The calls of the model for one trajectory, and the counts of their tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rolldock_dispatch::{CarriedSample, DispatchId, Spent, Stamp, VersionSpan, Waste};
use rolldock_loadbalancer::Priority;

use super::{SampleRequest, StepContext, Unfinished};
use crate::rollout::board::Dispatch;
use crate::rollout::tokens::Counted;
use crate::rollout::waits::{InWait, Phase, Subject};

/// Why a trajectory has no result. Its sample fails for this reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct TrajectoryFailure {
    /// What happened.
    pub reason: String,
}

impl TrajectoryFailure {
    /// A failure for this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// The prompt of one turn.
#[derive(Debug, Clone)]
pub struct TurnPrompt {
    /// The number of the turn in its trajectory, from 0. The seed of the turn follows from it.
    pub number: u32,
    /// The ids that the model continues.
    pub ids: Arc<[u32]>,
    /// Maximum number of tokens to sample.
    pub tokens_max: u32,
}

/// The answer of one turn.
#[derive(Debug, Clone)]
pub struct TurnAnswer {
    /// The sampled tokens, from one request or several. The sample is finished.
    pub sampled: CarriedSample,
    /// The server of the last request.
    pub server: Arc<str>,
    /// The time that the turn spent waiting for permits and on engines.
    pub spent: Spent,
}

/// Calls of the model for one trajectory. Clones count for the same trajectory.
#[derive(Clone)]
pub struct ModelCalls {
    context: Arc<StepContext>,
    dispatch: Arc<Dispatch>,
    group_started: Arc<AtomicBool>,
    index: u32,
}

impl ModelCalls {
    /// Samples one turn: waits for a permit, asks an engine, and repeats a failed try as often as the recipe
    /// allows. The permit has been returned when the call returns. All tokens are counted.
    ///
    /// Cancel-safe: dropping the future aborts the request and returns the permit.
    ///
    /// # Errors
    /// There was no permit, the request was refused, or all attempts failed.
    pub async fn turn(&self, turn: &TurnPrompt) -> Result<TurnAnswer, TrajectoryFailure> {
        let request = SampleRequest {
            context: &self.context,
            dispatch: &self.dispatch,
            group_started: &self.group_started,
            first: self.index,
            count: 1,
            carried: None,
            turn: Some(turn),
        };
        match Box::pin(request.answer()).await {
            Ok(answer) => Ok(answer),
            Err(Unfinished::Failed(reason)) => Err(TrajectoryFailure::new(reason)),
            Err(Unfinished::Cut(_)) => Err(TrajectoryFailure::new("cut off")),
        }
    }

    /// Counts tokens that a server sampled and that are part of the trajectory.
    pub fn sampled(&self, tokens: u64) {
        self.context.tokens.generated(self.dispatch.id, Counted::known(tokens));
    }

    /// Counts tokens that a server sampled in vain. `estimated` is the part of `tokens` that is an estimate.
    pub fn wasted(&self, tokens: u64, estimated: u64, waste: Waste) {
        self.context.tokens.generated_in_vain(Counted { tokens, estimated }, waste);
    }

    /// Counts a request that ended without an answer. The engine may have generated its tokens for the time
    /// `generating`. Their number is an estimate.
    pub fn gave_up(&self, generating: Duration) {
        let tokens = self.context.meter.tokens_by(generating, 1);
        self.context.tokens.generated(self.dispatch.id, Counted { tokens, estimated: tokens });
    }

    /// The priority of the next request for a permit.
    pub fn priority(&self) -> Priority {
        let is_started = self.group_started.load(Ordering::Relaxed);
        if is_started { Priority::Started } else { self.context.priority_new }
    }

    /// Notes that a call has a permit, so that the group has priority over new groups.
    pub fn started(&self) {
        self.group_started.store(true, Ordering::Relaxed);
    }

    /// The version that the servers have now, as the client sees it.
    pub fn policy_version(&self) -> u64 {
        self.context.versions.served()
    }

    /// The versions of an answer of `server` that arrives now with these reported `spans`. Its request was sent at version
    /// `sent`.
    pub fn stamp(&self, sent: u64, server: &str, spans: &[VersionSpan]) -> Stamp {
        self.context.versions.check(server, spans);
        self.context.versions.stamp(sent)
    }

    /// The dispatch of the group.
    pub fn dispatch(&self) -> DispatchId {
        self.dispatch.id
    }

    /// Enters a wait of the trajectory, which lasts until the returned value is dropped.
    pub fn enter(&self, phase: Phase, server: Option<Arc<str>>, detail: impl Into<Arc<str>>) -> InWait {
        let subject = Subject {
            dispatch: Some(self.dispatch.id),
            prompt_uid: Some(self.dispatch.prompt.uid),
            sample: Some(self.index),
            server,
            detail: Some(detail.into()),
            ..Subject::default()
        };
        self.context.waits.enter(phase, subject)
    }

    pub(crate) fn new(request: &SampleRequest<'_>) -> Self {
        Self {
            context: Arc::new(request.context.clone()),
            dispatch: Arc::new(request.dispatch.clone()),
            group_started: Arc::clone(request.group_started),
            index: request.first,
        }
    }
}
