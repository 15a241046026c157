//! How a step is collected, the deadlines, and the validation of the policy.

use rolldock_dispatch::modes::{
    BiasGuard, EarlyStop, Fill, Launch, OnStop, RequestShape, StopUnlikely, Stragglers,
};
use rolldock_engine::SamplingParams;
use serde::{Deserialize, Serialize};

/// `[rollout]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rollout {
    /// Number of agent-loop workers.
    #[serde(default = "default_workers")]
    pub workers: usize,
    /// Number of groups that a worker keeps running. With `fill = "samples"` it is the number of groups whose samples a
    /// worker keeps in flight.
    #[serde(default = "default_concurrent_prompts")]
    pub max_concurrent_prompts: usize,
    /// Whether a worker counts `samples` in flight or running `groups` when it starts another group.
    #[serde(default)]
    pub fill: Fill,
    /// Number of samples of a group.
    pub samples_per_prompt: u32,
    /// Number of groups that a step must collect (`expected_prompt_num`).
    pub train_batch_size: usize,
    /// Number of prompts in a generation batch.
    pub gen_batch_size: usize,
    /// Maximum number of generation batches of a step.
    #[serde(default = "one")]
    pub max_gen_batches: usize,
    /// Maximum number of tokens of a response. The buffer of `reward.overlong` ends at this length.
    pub max_response_length: u32,
    /// When prompts are sent out: `batch`, or `on_demand` for as many as the measured accept rate requires.
    /// The default is `on_demand` in `policy.mode = "sync"` and `"one_step_off"`, and `batch` in the other
    /// modes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<Launch>,
    /// The required probability that the groups launched by `on_demand` reach the target: at least 0.5 and
    /// below 1.
    #[serde(default = "default_launch_confidence")]
    pub launch_confidence: f64,
    /// What happens to the last samples of a step on slow servers: `move` to faster servers, or `stay`.
    #[serde(default)]
    pub stragglers: Stragglers,
    /// Whether a request generates one sample or a whole group.
    #[serde(default)]
    pub request: RequestShape,
    /// Maximum number of attempts at a sample, including the first.
    #[serde(default = "default_attempts")]
    pub sample_attempts_max: u32,
    /// When a step ends.
    #[serde(default)]
    pub early_stop: EarlyStop,
    /// What happens to groups that are still running when the step ends.
    #[serde(default)]
    pub on_stop: OnStop,
    /// How samples that are cut off continue from their tokens.
    #[serde(default)]
    pub carry: Carry,
    /// A guard that acts if early stopping prefers short answers; off if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias_guard: Option<BiasGuard>,
    /// When a group is stopped because it is unlikely to become valid; no group is if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_unlikely: Option<StopUnlikely>,
    /// The share, from 0 to 1, of the groups cut off by `first` with `discard` that continue to run, so that
    /// the bias can be measured. These groups are never accepted, and no step waits for them.
    #[serde(default)]
    pub bias_audit: f64,
    /// How tokens are drawn.
    #[serde(default)]
    pub sampling: SamplingParams,
}

/// `[rollout.carry]`
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Carry {
    /// Maximum number of requests for one response. A response that is cut off more often starts again.
    pub segments_max: u32,
    /// Whether engines stream tokens. If a server dies, only the tokens after the last chunk are lost.
    pub stream: bool,
    /// Maximum seconds in which an engine must return the tokens of a sample that is cut off.
    pub grace: f64,
}

impl Default for Carry {
    fn default() -> Self {
        Self { segments_max: 16, stream: false, grace: 5.0 }
    }
}

/// `[timeouts]`, all in seconds.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// Maximum time to open a connection.
    pub connect: f64,
    /// A server that has requests and generates no token for this time counts as dead.
    pub stall: f64,
    /// Maximum time of a sample with all of its attempts.
    pub sample: f64,
    /// Maximum wait for a permit.
    pub permit: f64,
    /// Maximum time of one grading.
    pub reward: f64,
    /// Maximum wait of a group for room in the queue, and of the ledger for room on its disk.
    pub queue_put: f64,
    /// Maximum time until work that is cut off at the end of a step has ended.
    pub drain: f64,
    /// After this time without progress, a report names what the run waits for, and `run.on_silence` is
    /// applied.
    pub silence: f64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: 5.0,
            stall: 60.0,
            sample: 3600.0,
            permit: 3600.0,
            reward: 60.0,
            queue_put: 3600.0,
            drain: 10.0,
            silence: 60.0,
        }
    }
}

/// `[validation]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// Whether there is a validation before the first step.
    #[serde(default)]
    pub before_training: bool,
    /// Number of steps from one validation to the next.
    pub every_steps: u64,
    /// Number of samples of a validation prompt.
    pub samples_per_prompt: u32,
    /// How tokens are drawn.
    #[serde(default)]
    pub sampling: SamplingParams,
    /// The priority of its groups when training also waits for permits.
    #[serde(default)]
    pub priority: ValidationPriority,
}

/// `validation.priority`: the priority of validation among the requests that wait for a permit. A group that
/// has begun has precedence over all groups that have not begun.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationPriority {
    /// After all training.
    #[default]
    Last,
    /// The priority of a new training group.
    Equal,
    /// Before every new group of training.
    First,
}

fn default_workers() -> usize {
    8
}

fn default_concurrent_prompts() -> usize {
    16
}

fn one() -> usize {
    1
}

fn default_launch_confidence() -> f64 {
    0.9
}

fn default_attempts() -> u32 {
    3
}
