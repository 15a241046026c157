//! The costs of a step, for displays and logs. They are counted as samples and groups end.
//!
//! Workers update the meter once per sample.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_dispatch::{FinishReason, Spent};

use crate::rollout::Sample;

/// The share of the evidence for the decode rate that is kept from step to step. It corresponds to an
/// effective window of twenty steps.
const RATE_KEPT: f64 = 0.95;

/// The work of one server in a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerLoad {
    /// Samples that the server finished.
    pub samples: u64,
    /// The response tokens of these samples.
    pub tokens: u64,
    /// Samples that were cut off on the server.
    pub cancelled: u64,
    /// Requests that failed on the server.
    pub failures: u64,
}

/// Costs of a step, besides its tokens by bucket.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepCosts {
    /// Samples that finished.
    pub samples: u64,
    /// Response tokens of finished samples.
    pub tokens: u64,
    /// Samples that were cut off.
    pub samples_cancelled: u64,
    /// Attempts after the first one.
    pub attempts_extra: u64,
    /// Requests that were sent again because the engine cannot have admitted them.
    pub replays: u64,
    /// Samples that hit the token limit.
    pub truncated: u64,
    /// Moves of samples that left a slow or full server.
    pub moves: u64,
    /// Tokens of prompts and responses whose prefill these moves repeat.
    pub moved_tokens: u64,
    /// Samples that a second server was asked for, because the first one was slow.
    pub hedges: u64,
    /// The total time that finished samples spent in each phase.
    pub spent: Spent,
    /// The loads of the servers by name.
    pub servers: BTreeMap<Arc<str>, ServerLoad>,
}

impl StepCosts {
    fn add(&mut self, other: &Self) {
        let Self { samples, tokens, samples_cancelled, attempts_extra, replays, truncated, .. } = other;
        let Self { moves, moved_tokens, hedges, spent, servers, .. } = other;
        self.hedges += hedges;
        self.moves += moves;
        self.moved_tokens += moved_tokens;
        self.samples += samples;
        self.tokens += tokens;
        self.samples_cancelled += samples_cancelled;
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

/// The samples that left slow servers, and the tokens whose prefill these moves repeat.
const MOVES: &str = "rolldock_moves_total";
const MOVED_TOKENS: &str = "rolldock_moved_tokens_total";
const HEDGES: &str = "rolldock_hedges_total";

/// The evidence for the decode rate of a request.
#[derive(Debug, Default)]
struct Rate {
    seconds: f64,
    tokens: f64,
}

/// Costs of the step.
#[derive(Debug)]
pub(crate) struct Meter {
    max_response_length: u32,
    /// The decode rate, which meters made by [`Self::apart`] share.
    rate: Arc<Mutex<Rate>>,
    step: Mutex<StepCosts>,
}

impl Meter {
    pub(crate) fn new(max_response_length: u32) -> Self {
        // A run without a move has these counters too.
        metrics::counter!(MOVES).increment(0);
        metrics::counter!(MOVED_TOKENS).increment(0);
        metrics::counter!(HEDGES).increment(0);
        Self { max_response_length, rate: Arc::default(), step: Mutex::default() }
    }

    /// A meter for one group, whose costs may [join](Self::join) those of the step later.
    pub(crate) fn apart(&self) -> Self {
        Self { rate: Arc::clone(&self.rate), ..Self::new(self.max_response_length) }
    }

    pub(crate) fn begin_step(&self) {
        *self.step.lock() = StepCosts::default();
        let mut rate = self.rate.lock();
        rate.seconds *= RATE_KEPT;
        rate.tokens *= RATE_KEPT;
    }

    pub(crate) fn sample_finished(&self, sample: &Sample, last_request: Duration) {
        let tokens = sample.response_ids.len() as u64;
        {
            let mut rate = self.rate.lock();
            rate.seconds += last_request.as_secs_f64();
            rate.tokens += tokens as f64;
        }
        let mut step = self.step.lock();
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

    /// An estimate of the tokens that an engine generates for `samples` samples in the time `age`, at the
    /// measured decode rate.
    pub(crate) fn tokens_by(&self, age: Duration, samples: u32) -> u64 {
        let Rate { seconds, tokens } = *self.rate.lock();
        let rate = if seconds > 0.0 { tokens / seconds } else { 0.0 };
        // The age includes the time in the engine's own queue, so the estimate needs a bound.
        let tokens_each = (age.as_secs_f64() * rate).min(f64::from(self.max_response_length));
        (tokens_each * f64::from(samples)) as u64
    }

    /// Counts `samples` samples that were cut off on `server`.
    pub(crate) fn cancelled(&self, server: &Arc<str>, samples: u32) {
        let mut step = self.step.lock();
        step.samples_cancelled += u64::from(samples);
        step.servers.entry(Arc::clone(server)).or_default().cancelled += u64::from(samples);
    }

    /// Counts a sample that leaves a slow or full server. `prefill` is the number of tokens that are computed again
    /// because of the move.
    pub(crate) fn moved(&self, prefill: u64) {
        metrics::counter!(MOVES).increment(1);
        metrics::counter!(MOVED_TOKENS).increment(prefill);
        let mut step = self.step.lock();
        step.moves += 1;
        step.moved_tokens += prefill;
    }

    /// Counts a sample that a second server is asked for.
    pub(crate) fn hedged(&self) {
        metrics::counter!(HEDGES).increment(1);
        self.step.lock().hedges += 1;
    }

    pub(crate) fn request_failed(&self, server: &Arc<str>, new_attempt: bool) {
        let mut step = self.step.lock();
        step.servers.entry(Arc::clone(server)).or_default().failures += 1;
        if new_attempt {
            step.attempts_extra += 1;
        } else {
            step.replays += 1;
        }
    }

    /// Adds the costs that a group has counted on its own meter.
    pub(crate) fn join(&self, group: &Self) {
        let costs = group.step_costs();
        self.step.lock().add(&costs);
    }

    pub(crate) fn step_costs(&self) -> StepCosts {
        self.step.lock().clone()
    }
}
