//! The costs of a step, counted as its samples and groups end, for displays and logs.
//!
//! Workers add to it once per sample.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_dispatch::{CarriedSample, FinishReason, Spent};

use crate::rollout::{Group, Sample};

/// The share of the evidence for the decode rate that stays from step to step. It makes an effective window of
/// twenty steps.
const RATE_KEPT: f64 = 0.95;

/// What one server did in a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerLoad {
    /// Samples it finished.
    pub samples: u64,
    /// The response tokens of these samples.
    pub tokens: u64,
    /// Samples cut off on it.
    pub cancelled: u64,
    /// Requests that failed on it.
    pub failures: u64,
}

/// Costs of a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepCosts {
    /// Samples that finished.
    pub samples: u64,
    /// Response tokens of finished samples.
    pub tokens: u64,
    /// Response tokens of accepted groups.
    pub tokens_accepted: u64,
    /// Response tokens of filtered groups.
    pub tokens_filtered: u64,
    /// Samples cut off.
    pub samples_cancelled: u64,
    /// Tokens generated for cut-off samples, estimated from their age and the measured decode rate: an engine
    /// does not say how far a cancelled request came.
    pub tokens_cancelled: u64,
    /// Tokens of groups that were cut off and will go on from these tokens.
    pub tokens_carried: u64,
    /// Tokens of groups that were cut off in an earlier step and have run on to their ends since, for the bias
    /// meter; those before the cut included.
    pub tokens_audit: u64,
    /// Attempts after the first one.
    pub attempts_extra: u64,
    /// Requests sent again because they cannot have been admitted.
    pub replays: u64,
    /// Samples that hit the token limit.
    pub truncated: u64,
    /// The time that finished samples spent in each phase, summed up.
    pub spent: Spent,
    /// The loads of the servers by name.
    pub servers: BTreeMap<Arc<str>, ServerLoad>,
}

impl StepCosts {
    fn add(&mut self, other: &Self) {
        let Self {
            samples,
            tokens,
            tokens_accepted,
            tokens_filtered,
            samples_cancelled,
            tokens_cancelled,
            tokens_carried,
            tokens_audit,
            attempts_extra,
            replays,
            truncated,
            spent,
            servers,
        } = other;
        self.samples += samples;
        self.tokens += tokens;
        self.tokens_accepted += tokens_accepted;
        self.tokens_filtered += tokens_filtered;
        self.samples_cancelled += samples_cancelled;
        self.tokens_cancelled += tokens_cancelled;
        self.tokens_carried += tokens_carried;
        self.tokens_audit += tokens_audit;
        self.attempts_extra += attempts_extra;
        self.replays += replays;
        self.truncated += truncated;
        self.spent.permit += spent.permit;
        self.spent.engine += spent.engine;
        self.spent.reward += spent.reward;
        for (name, load) in servers {
            let ServerLoad { samples, tokens, cancelled, failures } = load;
            let sum = self.servers.entry(Arc::clone(name)).or_default();
            sum.samples += samples;
            sum.tokens += tokens;
            sum.cancelled += cancelled;
            sum.failures += failures;
        }
    }
}

#[derive(Debug)]
struct Inner {
    step: StepCosts,
    engine_seconds: f64,
    engine_tokens: f64,
}

/// Costs of the step.
#[derive(Debug)]
pub(crate) struct Meter {
    max_response_length: u32,
    inner: Mutex<Inner>,
}

impl Meter {
    pub(crate) fn new(max_response_length: u32) -> Self {
        let inner = Inner { step: StepCosts::default(), engine_seconds: 0.0, engine_tokens: 0.0 };
        Self { max_response_length, inner: Mutex::new(inner) }
    }

    pub(crate) fn begin_step(&self) {
        let mut inner = self.inner.lock();
        inner.step = StepCosts::default();
        inner.engine_seconds *= RATE_KEPT;
        inner.engine_tokens *= RATE_KEPT;
    }

    pub(crate) fn sample_finished(&self, sample: &Sample, last_request: Duration) {
        let tokens = sample.response_ids.len() as u64;
        let mut inner = self.inner.lock();
        inner.engine_seconds += last_request.as_secs_f64();
        inner.engine_tokens += tokens as f64;
        let step = &mut inner.step;
        step.samples += 1;
        step.tokens += tokens;
        step.truncated += u64::from(sample.finish_reason == FinishReason::Length);
        step.spent.permit += sample.spent.permit;
        step.spent.engine += sample.spent.engine;
        step.spent.reward += sample.spent.reward;
        let server = step.servers.entry(Arc::clone(&sample.server)).or_default();
        server.samples += 1;
        server.tokens += tokens;
    }

    /// `samples` requests of `age` were cut off on `server`.
    pub(crate) fn cancelled(&self, server: &Arc<str>, samples: u32, age: Duration) {
        let mut inner = self.inner.lock();
        let rate = if inner.engine_seconds > 0.0 { inner.engine_tokens / inner.engine_seconds } else { 0.0 };
        // The age has the time in the engine's own queue in it, so the estimate is bounded.
        let tokens_each = (age.as_secs_f64() * rate).min(f64::from(self.max_response_length));
        let step = &mut inner.step;
        step.samples_cancelled += u64::from(samples);
        step.tokens_cancelled += (tokens_each * f64::from(samples)) as u64;
        step.servers.entry(Arc::clone(server)).or_default().cancelled += u64::from(samples);
    }

    pub(crate) fn request_failed(&self, server: &Arc<str>, new_attempt: bool) {
        let mut inner = self.inner.lock();
        inner.step.servers.entry(Arc::clone(server)).or_default().failures += 1;
        if new_attempt {
            inner.step.attempts_extra += 1;
        } else {
            inner.step.replays += 1;
        }
    }

    /// Counts the tokens of a group that was cut off and will go on from them.
    pub(crate) fn group_carried(&self, graded: &[Sample], others: &[CarriedSample]) {
        let mut inner = self.inner.lock();
        for sample in others {
            inner.step.tokens_carried += u64::from(sample.tokens());
        }
        for sample in graded {
            inner.step.tokens_carried += sample.response_ids.len() as u64;
        }
    }

    pub(crate) fn group_filtered(&self, tokens: u64) {
        self.inner.lock().step.tokens_filtered += tokens;
    }

    /// Notes that a filtered group is accepted after all.
    pub(crate) fn group_kept(&self, group: &Group) {
        let mut inner = self.inner.lock();
        inner.step.tokens_filtered = inner.step.tokens_filtered.saturating_sub(group.tokens());
    }

    pub(crate) fn group_accepted(&self, group: &Group) {
        self.inner.lock().step.tokens_accepted += group.tokens();
    }

    /// Adds what a group has counted on a meter of its own.
    pub(crate) fn join(&self, group: &Self) {
        let (group, mut inner) = (group.inner.lock(), self.inner.lock());
        inner.step.add(&group.step);
        inner.engine_seconds += group.engine_seconds;
        inner.engine_tokens += group.engine_tokens;
    }

    /// Counts the tokens of a group that was cut off and has run on, from that group's own meter. It counts for
    /// nothing else.
    pub(crate) fn audited(&self, group: &Self) {
        let StepCosts { tokens, tokens_cancelled, .. } = group.step_costs();
        self.inner.lock().step.tokens_audit += tokens + tokens_cancelled;
    }

    pub(crate) fn step_costs(&self) -> StepCosts {
        self.inner.lock().step.clone()
    }
}
