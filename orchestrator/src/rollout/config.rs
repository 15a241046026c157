//! The settings of a recipe that the rollout core needs.

use std::sync::Arc;
use std::time::Duration;

use rolldock_dispatch::history::HistoryConfig;
use rolldock_loadbalancer::Priority;
use rolldock_reward::{Estimator, Gates, Shaping};

use crate::engine::SamplingParams;
use crate::rollout::board::BoardConfig;
use crate::rollout::{
    BiasGuard, EarlyStop, Fill, Launch, OnStop, RequestShape, Staleness, StopUnlikely, Stragglers,
};

/// The time limits of a step's waits.
#[derive(Debug, Clone)]
pub struct RolloutTimeouts {
    /// The limit for a sample with all of its attempts.
    pub sample: Duration,
    /// The limit for one wait for a permit.
    pub permit: Duration,
    /// The limit for one grading.
    pub reward: Duration,
    /// The time in which workers must end after their groups are cut off at the end of a step.
    pub drain: Duration,
}

/// How a sample that was cut off continues from its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CarryLimits {
    /// Maximum number of requests for one response; a response that was cut off more often starts again.
    pub segments_max: u32,
    /// Whether engines stream tokens. If they do, a dead server costs only the tokens since the last chunk.
    pub stream: bool,
    /// The time in which an engine must return the tokens of a request that is cut off.
    pub grace: Duration,
}

impl Default for CarryLimits {
    fn default() -> Self {
        Self { segments_max: 16, stream: false, grace: Duration::from_secs(5) }
    }
}

/// The settings of the recipe that the rollout core needs.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "documented where users write them: in `recipe::Rollout`")]
pub struct RolloutConfig {
    pub run_id: Arc<str>,
    pub seed: u64,
    pub workers: usize,
    pub max_concurrent_prompts: usize,
    pub fill: Fill,
    pub samples_per_prompt: u32,
    pub gen_batch_size: usize,
    pub max_gen_batches: usize,
    pub max_response_length: u32,
    pub launch: Launch,
    pub launch_confidence: f64,
    pub stragglers: Stragglers,
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
    /// The share of cut-off groups that run on, from 0 to 1 (see `recipe::Rollout`).
    pub bias_audit: f64,
    /// What the run keeps of its prompts; `None` if it keeps nothing.
    pub history: Option<HistoryConfig>,
    /// When a group is stopped because it is unlikely to become valid; `None` if no group is.
    pub stop_unlikely: Option<StopUnlikely>,
    /// Whether each policy version has its own prefix cache on the engines.
    pub cache_salt: bool,
    pub timeouts: RolloutTimeouts,
    pub ledger_entries_max: usize,
    /// The priority of a permit request while no sample of its group has had a permit.
    pub priority_new: Priority,
}

impl RolloutConfig {
    /// The settings that the board needs.
    pub(crate) fn board(&self) -> BoardConfig {
        BoardConfig {
            early_stop: self.early_stop,
            on_stop: self.on_stop,
            launch: self.launch,
            launch_confidence: self.launch_confidence,
            samples_per_prompt: self.samples_per_prompt,
            gen_batch_size: self.gen_batch_size,
            max_gen_batches: self.max_gen_batches,
            staleness: self.staleness,
            ledger_entries_max: self.ledger_entries_max,
            gates: Arc::clone(&self.gates),
            audits: self.audit_share() > 0.0,
            seed: self.seed,
            history: self.history,
            stop_unlikely: self.stop_unlikely,
        }
    }

    /// Whether groups are left out by chance, so that all rows have an importance weight.
    pub(crate) fn weights_groups(&self) -> bool {
        self.stop_unlikely.is_some() || self.history.is_some_and(|history| history.chooses())
    }

    /// The share of cut-off groups that run on. It is 0 unless the step discards groups because they take long,
    /// as under `first` with `discard`. In all other cases the bias is known without an audit.
    pub(crate) fn audit_share(&self) -> f64 {
        if self.early_stop.discards_long_groups(self.on_stop) { self.bias_audit } else { 0.0 }
    }
}
