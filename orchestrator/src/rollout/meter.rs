//! The costs of a step, counted as its samples and groups end, for displays and logs.
//!
//! Workers add to it once per sample.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_dispatch::{FinishReason, Spent};

use crate::rollout::survival::Survival;
use crate::rollout::{Group, Sample};

/// The share of the bias window that stays from step to step. It makes an effective window of twenty steps.
const WINDOW_KEPT: f64 = 0.95;

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

/// Costs of a step, besides its tokens by bucket.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepCosts {
    /// Samples that finished.
    pub samples: u64,
    /// Response tokens of finished samples.
    pub tokens: u64,
    /// Samples cut off.
    pub samples_cancelled: u64,
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

/// The two mean lengths whose quotient is the bias.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LengthBias {
    /// Mean response length of accepted groups over the window, tokens.
    pub accepted: f64,
    /// Estimated mean over all groups that were sent out and not filtered, cut-off ones included.
    pub dispatched: f64,
}

impl LengthBias {
    /// The bias: 1 is unbiased; below 1, short answers were preferred.
    pub fn ratio(&self) -> f64 {
        self.accepted / self.dispatched
    }
}

#[derive(Debug)]
struct Window {
    lengths: Survival,
    accepted_tokens: f64,
    accepted_samples: f64,
}

#[derive(Debug)]
struct Inner {
    step: StepCosts,
    window: Window,
    engine_seconds: f64,
    engine_tokens: f64,
}

/// Costs of the step, and lengths over the bias window.
#[derive(Debug)]
pub(crate) struct Meter {
    max_response_length: u32,
    inner: Mutex<Inner>,
}

impl Meter {
    pub(crate) fn new(max_response_length: u32) -> Self {
        let window = Window {
            lengths: Survival::new(max_response_length),
            accepted_tokens: 0.0,
            accepted_samples: 0.0,
        };
        let inner = Inner { step: StepCosts::default(), window, engine_seconds: 0.0, engine_tokens: 0.0 };
        Self { max_response_length, inner: Mutex::new(inner) }
    }

    pub(crate) fn begin_step(&self) {
        let mut inner = self.inner.lock();
        inner.step = StepCosts::default();
        inner.window.lengths.age(WINDOW_KEPT);
        inner.window.accepted_tokens *= WINDOW_KEPT;
        inner.window.accepted_samples *= WINDOW_KEPT;
        inner.engine_seconds *= WINDOW_KEPT;
        inner.engine_tokens *= WINDOW_KEPT;
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

    /// An estimate of the tokens that an engine generates for each sample in `age`, at the measured rate.
    fn tokens_each(&self, age: Duration) -> f64 {
        let inner = self.inner.lock();
        let rate = if inner.engine_seconds > 0.0 { inner.engine_tokens / inner.engine_seconds } else { 0.0 };
        // The age has the time in the engine's own queue in it, so the estimate is bounded.
        (age.as_secs_f64() * rate).min(f64::from(self.max_response_length))
    }

    /// An estimate of the tokens that an engine generates for `samples` samples in `age`.
    pub(crate) fn tokens_by(&self, age: Duration, samples: u32) -> u64 {
        (self.tokens_each(age) * f64::from(samples)) as u64
    }

    /// `samples` requests of `age` were cut off on `server`.
    pub(crate) fn cancelled(&self, server: &Arc<str>, samples: u32, age: Duration) {
        let tokens_each = self.tokens_each(age);
        let mut inner = self.inner.lock();
        for _ in 0..samples {
            inner.window.lengths.censored(tokens_each);
        }
        let step = &mut inner.step;
        step.samples_cancelled += u64::from(samples);
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

    pub(crate) fn group_valid(&self, group: &Group) {
        let mut inner = self.inner.lock();
        for sample in &group.samples {
            inner.window.lengths.finished(sample.response_ids.len() as f64);
        }
    }

    /// Counts the finished samples of a group that was cut off. Without them the estimate would count only
    /// its long samples.
    pub(crate) fn group_cut(&self, samples: &[Sample]) {
        let mut inner = self.inner.lock();
        for sample in samples {
            inner.window.lengths.finished(sample.response_ids.len() as f64);
        }
    }

    /// Notes that a filtered group is accepted after all.
    pub(crate) fn group_kept(&self, group: &Group) {
        self.group_valid(group);
    }

    pub(crate) fn group_accepted(&self, group: &Group) {
        let tokens = group.tokens();
        let mut inner = self.inner.lock();
        inner.window.accepted_tokens += tokens as f64;
        inner.window.accepted_samples += group.samples.len() as f64;
    }

    pub(crate) fn step_costs(&self) -> StepCosts {
        self.inner.lock().step.clone()
    }

    pub(crate) fn length_bias(&self) -> Option<LengthBias> {
        let inner = self.inner.lock();
        let dispatched = inner.window.lengths.mean()?;
        if inner.window.accepted_samples <= 0.0 {
            return None;
        }
        let accepted = inner.window.accepted_tokens / inner.window.accepted_samples;
        Some(LengthBias { accepted, dispatched })
    }
}
