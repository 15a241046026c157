//! The recipe's keys. Each struct is a table of the TOML file; each field's comment is its documentation.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    AdvantageEstimator, Duplicates, Durability, EarlyStop, FilterMetric, Launch, OnFull, OnShort, OnStop,
    OverlongPrompts, PolicyMode, RequestShape, RoutingPolicy, Transport,
};

/// A whole recipe, resolved.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Which model the servers run, and how text becomes tokens.
    pub model: Model,
    /// Prompts and their answers.
    pub data: Data,
    /// Who generates.
    pub fleet: Fleet,
    /// How a step is collected.
    pub rollout: Rollout,
    /// Deadlines, in seconds.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Measures the policy on other prompts every few steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validation>,
    /// What a response is worth.
    #[serde(default)]
    pub reward: Reward,
    /// Which groups teach nothing.
    #[serde(default)]
    pub filter: Filter,
    /// How far generation may run ahead of training.
    #[serde(default)]
    pub policy: Policy,
    /// Where accepted groups go.
    #[serde(default)]
    pub queue: Queue,
    /// Length and seed of the run.
    #[serde(default)]
    pub run: Run,
    /// Named bounds on memory.
    #[serde(default)]
    pub limits: Limits,
    /// Passed through to the trainer untouched.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    pub trainer: toml::Table,
}

/// `[model]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// As the servers call it.
    pub name: String,
    /// A directory, a tokenizer.json, a hub id in the local cache, or "builtin".
    pub tokenizer: String,
    /// "auto", "none", or a file.
    #[serde(default = "auto")]
    pub chat_template: String,
}

/// `[data]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// .parquet or .jsonl, one or a list.
    pub train: Files,
    /// The same, for `[validation]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Files>,
    /// Where a row keeps what; guessed for the DAPO, GSM8K and MATH schemas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Columns>,
    /// Tokens.
    #[serde(default = "default_prompt_length")]
    pub max_prompt_length: usize,
    /// What happens to longer ones.
    #[serde(default)]
    pub overlong_prompts: OverlongPrompts,
    /// What happens to rows with the same prompt and answer.
    #[serde(default)]
    pub duplicates: Duplicates,
    /// A new order every epoch, from `seed`.
    #[serde(default = "yes")]
    pub shuffle: bool,
    /// Of the order.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Passes over the data; unbounded if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u32>,
}

/// One file or several.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(untagged, expecting = "a file name or a list of file names")]
pub enum Files {
    /// One.
    One(PathBuf),
    /// Read one after the other.
    Several(Vec<PathBuf>),
}

impl Files {
    /// All of them, in order.
    pub fn paths(&self) -> &[PathBuf] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Several(paths) => paths,
        }
    }

    pub(super) fn paths_mut(&mut self) -> &mut [PathBuf] {
        match self {
            Self::One(path) => std::slice::from_mut(path),
            Self::Several(paths) => paths,
        }
    }
}

/// `data.columns`: dotted paths into a row.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Columns {
    /// Text, or a list of chat messages.
    pub prompt: String,
    /// The ground truth.
    pub answer: String,
    /// Which scorer a routed reward uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// `[fleet]`: `endpoints` or `simulated`, not both.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// Base URLs of OpenAI-compatible servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// Samples running on one server at a time: its permits.
    #[serde(default)]
    pub max_loads_per_server: MaxLoads,
    /// Which server the next permit is on.
    #[serde(default)]
    pub policy: RoutingPolicy,
    /// Sent as a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<String>,
    /// Seconds between health probes.
    #[serde(default = "default_probe_interval")]
    pub probe_interval: f64,
    /// The embedded fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
}

/// `fleet.max_loads_per_server`: a number, or "auto".
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(untagged, expecting = "a number of samples, or \"auto\"")]
pub enum MaxLoads {
    /// So many.
    Fixed(u32),
    /// "auto".
    Named(String),
}

impl Default for MaxLoads {
    fn default() -> Self {
        Self::Fixed(256)
    }
}

/// `[fleet.simulated]`: servers of our own that pretend, in this process.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Simulated {
    /// How many.
    pub servers: usize,
    /// Of lengths and answers.
    pub seed: u64,
    /// Real seconds that a simulated second takes.
    pub time_scale: f64,
    /// Sequences that a server decodes at once.
    pub max_num_seqs: u32,
    /// Relative speed of each server; missing ones are 1.0.
    pub speeds: Vec<f64>,
    /// Mean response length, tokens.
    pub mean_response_length: f64,
    /// `in_process`, or `http` over loopback sockets.
    pub transport: Transport,
}

impl Default for Simulated {
    fn default() -> Self {
        Self {
            servers: 4,
            seed: 1,
            time_scale: 1.0,
            max_num_seqs: 256,
            speeds: Vec::new(),
            mean_response_length: 400.0,
            transport: Transport::InProcess,
        }
    }
}

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
    /// Tokens.
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
    /// How tokens are drawn.
    #[serde(default)]
    pub sampling: Sampling,
}

/// `[rollout.sampling]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// In (0, 1].
    pub top_p: f32,
    /// -1 keeps all.
    pub top_k: i32,
    /// Besides the model's own.
    pub stop_token_ids: Vec<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: -1, stop_token_ids: Vec::new() }
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
    /// After every so many steps.
    pub every_steps: u64,
    /// Samples of a validation prompt.
    pub samples_per_prompt: u32,
    /// How tokens are drawn.
    #[serde(default)]
    pub sampling: Sampling,
}

/// `[reward]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reward {
    /// "math_dapo", "gsm8k", "math", or "routed" by `data_source`.
    pub scorer: String,
    /// Of `math_dapo`: "2025", or "2026" with the boxed fallback.
    pub variant: String,
    /// Of `math_dapo`: only the last `\boxed{}` counts.
    pub strict_box: bool,
    /// Of `gsm8k`: "strict" or "flexible".
    pub method: String,
    /// Soft punishment of long answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong: Option<OverlongShaping>,
    /// Gradings at a time.
    pub places: usize,
    /// From rewards to advantages.
    pub advantage: AdvantageEstimator,
}

impl Default for Reward {
    fn default() -> Self {
        Self {
            scorer: "math_dapo".to_owned(),
            variant: "2025".to_owned(),
            strict_box: false,
            method: "strict".to_owned(),
            overlong: None,
            places: 4,
            advantage: AdvantageEstimator::Grpo,
        }
    }
}

/// `reward.overlong`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OverlongShaping {
    /// Tokens before the limit in which the penalty grows.
    pub buffer_length: u32,
    /// The penalty at the limit.
    pub penalty_factor: f64,
}

/// `[filter]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// Drop groups without variance.
    pub enable: bool,
    /// Of what.
    pub metric: FilterMetric,
}

impl Default for Filter {
    fn default() -> Self {
        Self { enable: true, metric: FilterMetric::Acc }
    }
}

/// `[policy]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// `sync`, `one_step_off` or `fully_async`.
    pub mode: PolicyMode,
    /// Versions that a group may be behind when it counts.
    pub max_staleness: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { mode: PolicyMode::Sync, max_staleness: 1 }
    }
}

/// `[queue]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// The table of training rows.
    pub partition: String,
    /// Who must ack a row before it is freed.
    pub tasks: Vec<String>,
    /// What an acknowledged put survives.
    pub durability: Durability,
    /// Samples.
    pub capacity_rows: usize,
    /// What a put does when there is no room.
    pub on_full: OnFull,
    /// Serves other processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Takes and acks in this process, in a trainer's place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<Consumer>,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            partition: "train".to_owned(),
            tasks: vec!["train".to_owned()],
            durability: Durability::Fsync,
            capacity_rows: 65_536,
            on_full: OnFull::Block,
            listen: None,
            consumer: None,
        }
    }
}

/// `[queue.consumer]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Consumer {
    /// As whom it takes.
    pub task: String,
    /// Groups in a batch.
    pub take_groups: usize,
    /// The last so many steps are left in the queue.
    #[serde(default)]
    pub keep_last_steps: u64,
}

/// `[run]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Steps; until the data or the user ends it if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Of samples and of every tie.
    pub seed: u64,
    /// What a step short of its target does to the run.
    pub on_short: OnShort,
    /// Where the run keeps its queue and report; `runs/<recipe>` beside the current directory if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out: Option<PathBuf>,
}

impl Default for Run {
    fn default() -> Self {
        Self { steps: None, seed: 42, on_short: OnShort::Short, out: None }
    }
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Bytes of one response body.
    pub body_bytes_max: u64,
    /// Ended dispatches that the ledger keeps in memory.
    pub ledger_entries_max: usize,
    /// Requests that wait for a permit.
    pub waiting_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body_bytes_max: 256 << 20, ledger_entries_max: 65_536, waiting_max: 1 << 20 }
    }
}

fn auto() -> String {
    "auto".to_owned()
}
fn yes() -> bool {
    true
}
fn one() -> usize {
    1
}
fn default_prompt_length() -> usize {
    1024
}
fn default_seed() -> u64 {
    42
}
fn default_probe_interval() -> f64 {
    1.0
}
fn default_workers() -> usize {
    8
}
fn default_concurrent_prompts() -> usize {
    16
}
fn default_attempts() -> u32 {
    3
}
