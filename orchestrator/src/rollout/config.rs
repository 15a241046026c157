//! What the rollout core needs to know of a recipe.

use std::sync::Arc;
use std::time::Duration;

use rolldock_loadbalancer::Priority;
use rolldock_reward::{Estimator, Gates, Shaping};

use crate::engine::SamplingParams;
use crate::rollout::board::BoardConfig;
use crate::rollout::{BiasGuard, EarlyStop, Launch, OnStop, RequestShape, Staleness};

/// Deadlines of everything that a step waits for.
#[derive(Debug, Clone)]
pub struct RolloutTimeouts {
    /// A sample with all of its attempts.
    pub sample: Duration,
    /// One wait for a permit.
    pub permit: Duration,
    /// One grading.
    pub reward: Duration,
    /// Time in which the work that is cut off at the end of a step must end.
    pub drain: Duration,
}

/// How a sample that was cut off continues from its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CarryLimits {
    /// Maximum number of requests for one response; a response that was cut off more often starts again.
    pub segments_max: u32,
    /// Whether tokens are reported as they come, so that even a dead server costs only those since the last
    /// chunk.
    pub stream: bool,
    /// Time in which an engine must hand over the tokens that it has.
    pub grace: Duration,
}

impl Default for CarryLimits {
    fn default() -> Self {
        Self { segments_max: 16, stream: false, grace: Duration::from_secs(5) }
    }
}

/// The part of the recipe that the rollout core needs.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "documented where users write them: in `recipe::Rollout`")]
pub struct RolloutConfig {
    pub run_id: Arc<str>,
    pub seed: u64,
    pub workers: usize,
    pub max_concurrent_prompts: usize,
    pub samples_per_prompt: u32,
    pub gen_batch_size: usize,
    pub max_gen_batches: usize,
    pub max_response_length: u32,
    pub launch: Launch,
    pub early_stop: EarlyStop,
    pub on_stop: OnStop,
    pub request: RequestShape,
    pub sample_attempts_max: u32,
    pub sampling: SamplingParams,
    pub gates: Arc<Gates>,
    pub advantage: Estimator,
    pub shaping: Shaping,
    pub mask_truncated: bool,
    pub staleness: Staleness,
    pub carry: CarryLimits,
    pub bias_guard: Option<BiasGuard>,
    /// See `recipe::Rollout`: the share, from 0 to 1.
    pub bias_audit: f64,
    /// Whether prefix caches are kept apart by version.
    pub cache_salt: bool,
    pub timeouts: RolloutTimeouts,
    pub ledger_entries_max: usize,
    /// The priority of requests of a group that has not begun.
    pub priority_new: Priority,
}

impl RolloutConfig {
    /// The part that the board needs.
    pub(crate) fn board(&self) -> BoardConfig {
        BoardConfig {
            early_stop: self.early_stop,
            on_stop: self.on_stop,
            launch: self.launch,
            gen_batch_size: self.gen_batch_size,
            max_gen_batches: self.max_gen_batches,
            staleness: self.staleness,
            ledger_entries_max: self.ledger_entries_max,
            gates: Arc::clone(&self.gates),
            audits: self.audit_share() > 0.0,
        }
    }

    /// The share of cut-off groups that run on. Only groups that `first` discards are never decided, so no
    /// others do.
    pub(crate) fn audit_share(&self) -> f64 {
        let leaves_undecided = !self.early_stop.keeps_dispatch_order() && self.on_stop == OnStop::Discard;
        if leaves_undecided { self.bias_audit } else { 0.0 }
    }
}
