//! How a step is collected, how long anything may take, and how the policy is measured on the way.

use serde::{Deserialize, Serialize};

use crate::engine::SamplingParams;
use crate::rollout::{BiasGuard, EarlyStop, Launch, OnStop, RequestShape};

/// `[rollout]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rollout {
    /// Agent-loop workers.
    #[serde(default = "default_workers")]
    pub workers: usize,
    /// Groups that a worker keeps running.
    #[serde(default = "default_concurrent_prompts")]
    pub max_concurrent_prompts: usize,
    /// Samples of a group.
    pub samples_per_prompt: u32,
    /// Groups a step must collect (`expected_prompt_num`).
    pub train_batch_size: usize,
    /// Prompts drawn at a time.
    pub gen_batch_size: usize,
    /// Generation batches that a step may use.
    #[serde(default = "one")]
    pub max_gen_batches: usize,
    /// Tokens of a response; also what `reward.overlong` counts back from.
    pub max_response_length: u32,
    /// `batch`, or `on_demand`: as many as the measured accept rate asks for.
    #[serde(default)]
    pub launch: Launch,
    /// One request per sample, or one per group.
    #[serde(default)]
    pub request: RequestShape,
    /// Tries at a sample that was lost, the first included.
    #[serde(default = "default_attempts")]
    pub sample_attempts_max: u32,
    /// When a step ends.
    #[serde(default)]
    pub early_stop: EarlyStop,
    /// What happens to what is still running then.
    #[serde(default)]
    pub on_stop: OnStop,
    /// How far what is cut off goes on from its tokens.
    #[serde(default)]
    pub carry: Carry,
    /// Watches that early stopping does not prefer short answers; off if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias_guard: Option<BiasGuard>,
    /// How tokens are drawn.
    #[serde(default)]
    pub sampling: SamplingParams,
}

/// `[rollout.carry]`
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Carry {
    /// Maximum number of requests for one response; a response that was cut off more often starts again.
    pub segments_max: u32,
    /// Has engines report tokens as they come, so that even a dead server costs only those since the last
    /// chunk.
    pub stream: bool,
    /// Seconds in which an engine has to hand over what it has.
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
    /// Opening a connection.
    pub connect: f64,
    /// A server that owes answers and generates nothing for so long is dead.
    pub stall: f64,
    /// A sample with all of its attempts.
    pub sample: f64,
    /// One wait for a permit.
    pub permit: f64,
    /// One grading.
    pub reward: f64,
    /// One group's wait for room in the queue.
    pub queue_put: f64,
    /// Cut-off work at the end of a step must be gone after this.
    pub drain: f64,
    /// A warning names what is waited for when no group has ended for so long.
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
    /// Number of steps from one validation to the next.
    pub every_steps: u64,
    /// Samples of a validation prompt.
    pub samples_per_prompt: u32,
    /// How tokens are drawn.
    #[serde(default)]
    pub sampling: SamplingParams,
    /// When its groups get permits that training waits for too.
    #[serde(default)]
    pub priority: ValidationPriority,
}

/// `validation.priority`: where validation stands among the requests that wait for a permit. A group that has
/// begun goes before all that have not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationPriority {
    /// Behind all training.
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

fn default_attempts() -> u32 {
    3
}
