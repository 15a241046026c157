//! What the rollout core needs to know of a recipe.

use std::sync::Arc;
use std::time::Duration;

use rolldock_reward::{Estimator, Gates, Shaping};

use crate::engine::SamplingParams;
use crate::recipe::{EarlyStop, Launch, OnStop, RequestShape};

/// Deadlines of everything that a step waits for.
#[derive(Debug, Clone)]
pub struct RolloutTimeouts {
    /// A sample with all of its attempts.
    pub sample: Duration,
    /// One wait for a permit.
    pub permit: Duration,
    /// One grading.
    pub reward: Duration,
    /// What is cut off at the end of a step must be gone after this.
    pub drain: Duration,
    /// A warning names what is waited for when no group has ended for so long.
    pub silence: Duration,
}

/// See the recipe's keys of the same names.
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
    pub max_staleness: u64,
    pub timeouts: RolloutTimeouts,
    pub ledger_entries_max: usize,
    /// Whether this is a validation rollout, which gives way to training where both wait for a permit.
    pub validation: bool,
}
