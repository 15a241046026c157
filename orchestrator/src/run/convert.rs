//! Converts the recipe's settings to the configurations of a run's components.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rolldock_listener::Connections;
use rolldock_loadbalancer::{BalancerConfig, MonitorConfig, Priority};
use rolldock_queue::{ServiceConfig, Stale};
use rolldock_reward::{Gates, Shaping};

use super::await_servers::Terms;
use crate::data::{CodecConfig, DatasetConfig, TemplateChoice, TextCodec};
use crate::engine::http::HttpConfig;
use crate::policy::{PolicyTerms, SourcesConfig};
use crate::recipe::{self, MaxLoads, Recipe, ValidationPriority};
use crate::rollout::{
    CarryLimits, EarlyStop, Launch, OnStale, OnStop, RolloutConfig, RolloutTimeouts, Staleness,
};

/// The configuration of the tokenizer and the chat template. A template may write the date of `unix_seconds`
/// into its prompts, as the servers' templates write the date.
pub(crate) fn codec_config(model: &recipe::Model, unix_seconds: u64) -> CodecConfig {
    CodecConfig {
        tokenizer: model.tokenizer.clone(),
        chat_template: TemplateChoice::from(model.chat_template.as_str()),
        unix_seconds: i64::try_from(unix_seconds).ok(),
    }
}

/// The configuration of the training data.
pub(crate) fn train_data(data: &recipe::Data) -> DatasetConfig {
    DatasetConfig { shuffle: data.shuffle, epochs: data.epochs, ..in_file_order(data, data.train.paths()) }
}

/// The configuration of the validation data. The data is read once, in the files' order, so that the figures
/// of two runs can be compared.
pub(super) fn validation_data(data: &recipe::Data) -> Option<DatasetConfig> {
    let files = data.validation.as_ref()?;
    Some(DatasetConfig { epochs: Some(1), ..in_file_order(data, files.paths()) })
}

fn in_file_order(data: &recipe::Data, files: &[PathBuf]) -> DatasetConfig {
    DatasetConfig {
        files: files.to_vec(),
        columns: data.columns.clone(),
        max_prompt_length: data.max_prompt_length,
        overlong_prompts: data.overlong_prompts,
        duplicates: data.duplicates,
        shuffle: false,
        seed: data.seed,
        epochs: None,
    }
}

pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

pub(crate) fn rollout_config(recipe: &Recipe, run_id: &str, gates: Arc<Gates>) -> RolloutConfig {
    let rollout = &recipe.rollout;
    let timeouts = &recipe.timeouts;
    RolloutConfig {
        run_id: run_id.into(),
        seed: recipe.run.seed,
        workers: rollout.workers,
        max_concurrent_prompts: rollout.max_concurrent_prompts,
        fill: rollout.fill,
        samples_per_prompt: rollout.samples_per_prompt,
        gen_batch_size: rollout.gen_batch_size,
        max_gen_batches: rollout.max_gen_batches,
        max_response_length: rollout.max_response_length,
        launch: recipe.launch(),
        launch_confidence: rollout.launch_confidence,
        stragglers: rollout.stragglers,
        early_stop: rollout.early_stop,
        on_stop: rollout.on_stop,
        request: rollout.request,
        sample_attempts_max: rollout.sample_attempts_max,
        sampling: rollout.sampling.clone(),
        gates,
        advantage: recipe.reward.advantage.estimator(),
        shaping: recipe.reward.shaping,
        mask_truncated: recipe.reward.mask_truncated,
        staleness: staleness(recipe),
        carry: CarryLimits {
            segments_max: rollout.carry.segments_max,
            stream: rollout.carry.stream,
            grace: seconds(rollout.carry.grace),
        },
        bias_guard: rollout.bias_guard,
        bias_audit: rollout.bias_audit,
        history: recipe.data.history,
        stop_unlikely: rollout.stop_unlikely,
        cache_salt: recipe.policy.update.cache_salt,
        timeouts: RolloutTimeouts {
            sample: seconds(timeouts.sample),
            permit: seconds(timeouts.permit),
            reward: seconds(timeouts.reward),
            drain: seconds(timeouts.drain),
        },
        ledger_entries_max: recipe.limits.ledger_entries_max,
        priority_new: Priority::New,
    }
}

/// The maximum staleness of a delivered group, and what happens to older groups.
pub(super) fn staleness(recipe: &Recipe) -> Staleness {
    let policy = &recipe.policy;
    Staleness {
        max: policy.staleness_max(),
        on_stale: policy.on_stale,
        pacing: policy.pacing,
        is_announced: recipe.is_announced_to(),
        first_version: policy.first_version,
        steps_per_version: policy.steps_per_version,
    }
}

/// The recipe's policy mode and its bound on staleness.
pub(super) fn policy_terms(policy: &recipe::Policy) -> PolicyTerms {
    PolicyTerms { mode: policy.mode, max_staleness: policy.staleness_max() }
}

/// The settings for serving the queue to other processes.
pub(super) fn queue_service(recipe: &Recipe) -> ServiceConfig {
    let connections = Connections::new("queue", &recipe.limits.connections);
    ServiceConfig { token: recipe.queue.token.clone(), connections, ..ServiceConfig::default() }
}

/// The sources of version announcements.
pub(super) fn policy_sources(recipe: &Recipe) -> SourcesConfig {
    let policy = &recipe.policy;
    SourcesConfig {
        listen: policy.address(),
        token: policy.token.clone(),
        connections: recipe.limits.connections.clone(),
        watch: policy.watch.clone(),
    }
}

/// The maximum staleness of a group that the embedded consumer takes, and what happens to older groups.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claims {
    pub(super) max_staleness: Option<u64>,
    pub(super) stale: Stale,
}

/// The recipe's limits for the groups that the embedded consumer takes.
pub(super) fn claims(recipe: &Recipe) -> Claims {
    let policy = &recipe.policy;
    Claims {
        max_staleness: recipe.is_announced_to().then(|| policy.staleness_max()),
        stale: match policy.on_stale {
            OnStale::Drop | OnStale::Requeue => Stale::Drop,
            OnStale::MaskTokens | OnStale::DeliverFlagged => Stale::Deliver,
        },
    }
}

/// The rollout configuration of a validation on servers that have the version `served`. A validation waits
/// for all of its groups and filters none.
pub(super) fn validation_rollout_config(
    recipe: &Recipe,
    validation: &recipe::Validation,
    run_id: &str,
    prompts: usize,
    served: u64,
) -> RolloutConfig {
    let config = rollout_config(recipe, run_id, Arc::default());
    RolloutConfig {
        samples_per_prompt: validation.samples_per_prompt,
        sampling: validation.sampling.clone(),
        gen_batch_size: prompts,
        max_gen_batches: 1,
        launch: Launch::Batch,
        early_stop: EarlyStop::Off,
        on_stop: OnStop::Discard,
        // A validation measures the version that the servers have.
        staleness: Staleness { is_announced: false, first_version: served, ..config.staleness },
        bias_guard: None,
        bias_audit: 0.0,
        history: None,
        // The means of a validation are taken over the scorer's own values.
        shaping: Shaping::default(),
        priority_new: match validation.priority {
            ValidationPriority::Last => Priority::Validation,
            ValidationPriority::Equal => Priority::New,
            ValidationPriority::First => Priority::Started,
        },
        ..config
    }
}

pub(crate) fn balancer_config(recipe: &Recipe) -> BalancerConfig {
    BalancerConfig {
        policy: recipe.fleet.policy,
        seed: recipe.run.seed,
        capacity_total: recipe.fleet.max_loads_total,
        waiting_max: recipe.limits.waiting_max,
        ..BalancerConfig::default()
    }
}

/// The number of permits of a server. If the number is adapted during the run, this is its first value.
pub(crate) fn permits_per_server(recipe: &Recipe) -> u32 {
    match recipe.fleet.max_loads_per_server {
        MaxLoads::Fixed(loads) => loads,
        MaxLoads::Named(_) => recipe.measured_permits().unwrap_or_default().start,
    }
}

/// The permits of a server, for people.
pub(super) fn described_permits(recipe: &Recipe) -> String {
    let at_first = if recipe.measured_permits().is_some() { " at first" } else { "" };
    format!("{} permits each{at_first}", permits_per_server(recipe))
}

pub(crate) fn monitor_config(recipe: &Recipe) -> MonitorConfig {
    MonitorConfig {
        probe_interval: seconds(recipe.fleet.probe_interval),
        stall: seconds(recipe.timeouts.stall),
        probe: recipe.fleet.probe,
        adaptive: recipe.measured_permits(),
    }
}

pub(super) fn http_config(recipe: &Recipe, codec: &TextCodec) -> HttpConfig {
    HttpConfig {
        model: recipe.model.name.clone(),
        api_key: recipe.fleet.api_key.clone(),
        connect_max: seconds(recipe.timeouts.connect),
        probe_max: seconds(recipe.timeouts.stall),
        vocab_size: Some(codec.vocab_size_max()),
        body_bytes_max: usize::try_from(recipe.limits.body_bytes_max).unwrap_or(usize::MAX),
    }
}

/// The number of servers that a run needs to start, and for how long they are asked: for `wait` if it is
/// given, and otherwise for the recipe's time-outs.
pub(super) fn server_terms(recipe: &Recipe, wait: Option<Duration>) -> Terms {
    let grace = seconds(recipe.timeouts.connect);
    Terms {
        enough: recipe.fleet.servers_min,
        grace,
        unreachable_max: wait.unwrap_or(grace),
        asked_max: wait.unwrap_or(seconds(recipe.timeouts.stall)),
    }
}

/// The default directory of a run. For `recipes/dapo_qwen3_8b.toml` it is `runs/dapo_qwen3_8b`.
pub fn default_out(recipe: &Path) -> PathBuf {
    Path::new("runs").join(recipe.file_stem().unwrap_or("run".as_ref()))
}
