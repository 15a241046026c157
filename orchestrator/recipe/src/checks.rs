//! Checks of single values and of combinations of values.
//!
//! All mistakes are reported together, so an author can correct all of them before the next try. A value that
//! parses but is not implemented yet is refused by name instead of ignored.
//!
//! # Invariants
//! A recipe that passes these checks cannot block itself: no request needs more permits than a server has, no step
//! needs more groups than it may draw, every put that waits for space has a consumer that frees rows, and a consumer
//! that announces takes the groups of every version that the run waits for. Numbers that determine an amount of memory
//! or become a `Duration` are bounded.

mod agent;
mod consumer;
mod environment;
mod fleet;
mod history;
mod policy;
mod queue;
mod report;
mod reward;
mod rollout;

use rolldock_dispatch::modes::{Launch, RequestShape};
use rolldock_engine::SamplingParams;
use rolldock_listener::ConnectionLimits;
use rolldock_loadbalancer::control::is_sendable;

use super::layers::Layers;
use super::{Complaint, Files, Origin, Recipe};

// Larger numbers are typing mistakes. For some of them, memory would be allocated immediately.
const WORKERS_MAX: usize = 4096;
const PROMPTS_PER_WORKER_MAX: usize = 1 << 16;
const SAMPLES_PER_PROMPT_MAX: usize = 1 << 12;
const BATCH_GROUPS_MAX: usize = 1 << 20;
const GEN_BATCHES_MAX: usize = 1 << 16;
const TOKENS_MAX: usize = 1 << 24;
const ATTEMPTS_MAX: usize = 100;
/// About four months, which fits into a `Duration`.
const SECONDS_MAX: f64 = 1e7;

struct Checks<'a> {
    layers: &'a Layers,
    origin: Origin,
    complaints: Vec<Complaint>,
}

impl Checks<'_> {
    fn require(&mut self, holds: bool, key: &str, message: impl FnOnce() -> String) {
        if !holds {
            let key: Vec<String> = key.split('.').map(str::to_owned).collect();
            self.complaints.push(self.layers.complain(&key, message()));
        }
    }
}

/// Runs all checks and returns all complaints.
pub(super) fn check(recipe: &Recipe, origin: Origin, layers: &Layers) -> Vec<Complaint> {
    let mut checks = Checks { layers, origin, complaints: Vec::new() };
    fleet::check(recipe, &mut checks);
    check_rollout(recipe, &mut checks);
    check_sampling(&recipe.rollout.sampling, "rollout.sampling", &mut checks);
    check_greedy(recipe, &mut checks);
    check_validation(recipe, &mut checks);
    check_inputs(recipe, &mut checks);
    check_secrets(recipe, &mut checks);
    history::check(recipe, &mut checks);
    check_timeouts(recipe, &mut checks);
    environment::check(recipe, &mut checks);
    reward::check(recipe, &mut checks);
    agent::check(recipe, &mut checks);
    check_limits(recipe, &mut checks);
    policy::check(recipe, &mut checks);
    if origin != Origin::Simulated {
        queue::check(recipe, &mut checks);
    }
    report::check(recipe, &mut checks);
    checks.complaints
}

fn counted(value: usize, max: usize, key: &str, checks: &mut Checks<'_>) {
    checks.require((1..=max).contains(&value), key, || format!("expected 1 to {max}, found {value}"));
}

fn within(value: f64, min: f64, max: f64, key: &str, checks: &mut Checks<'_>) {
    checks.require((min..=max).contains(&value), key, || format!("expected {min} to {max}, found {value}"));
}

fn at_least_one() -> String {
    "expected at least 1".to_owned()
}

fn check_rollout(recipe: &Recipe, checks: &mut Checks<'_>) {
    let rollout = &recipe.rollout;
    for (value, max, key) in [
        (rollout.workers, WORKERS_MAX, "workers"),
        (rollout.max_concurrent_prompts, PROMPTS_PER_WORKER_MAX, "max_concurrent_prompts"),
        (rollout.samples_per_prompt as usize, SAMPLES_PER_PROMPT_MAX, "samples_per_prompt"),
        (rollout.train_batch_size, BATCH_GROUPS_MAX, "train_batch_size"),
        (rollout.gen_batch_size, BATCH_GROUPS_MAX, "gen_batch_size"),
        (rollout.max_gen_batches, GEN_BATCHES_MAX, "max_gen_batches"),
        (rollout.max_response_length as usize, TOKENS_MAX, "max_response_length"),
        (rollout.sample_attempts_max as usize, ATTEMPTS_MAX, "sample_attempts_max"),
    ] {
        counted(value, max, &format!("rollout.{key}"), checks);
    }
    let drawn_most = rollout.gen_batch_size.saturating_mul(rollout.max_gen_batches);
    checks.require(rollout.train_batch_size <= drawn_most, "rollout.train_batch_size", || {
        format!(
            "a step can never collect {} groups: it draws at most gen_batch_size x max_gen_batches = {drawn_most} prompts",
            rollout.train_batch_size
        )
    });
    rollout::check_cut_off(recipe, checks);
    checks.require(
        recipe.filter.enable
            || !rollout.early_stop.awaits_all()
            || recipe.launch() == Launch::OnDemand
            || rollout.gen_batch_size >= rollout.train_batch_size,
        "rollout.gen_batch_size",
        || "a synchronous step without a filter collects one generation batch; expected at least train_batch_size".to_owned(),
    );
}

fn check_sampling(sampling: &SamplingParams, key: &str, checks: &mut Checks<'_>) {
    let SamplingParams { temperature, top_p, top_k, .. } = sampling;
    checks.require(temperature.is_finite() && *temperature >= 0.0, &format!("{key}.temperature"), || {
        format!("expected 0 or more, found {temperature}")
    });
    checks.require(*top_p > 0.0 && *top_p <= 1.0, &format!("{key}.top_p"), || {
        format!("expected more than 0 and at most 1, found {top_p}")
    });
    checks.require(*top_k == -1 || *top_k >= 1, &format!("{key}.top_k"), || {
        format!("expected -1 (all) or at least 1, found {top_k}")
    });
}

/// Checks the use of temperature 0, at which all samples of a prompt are equal.
fn check_greedy(recipe: &Recipe, checks: &mut Checks<'_>) {
    let rollout = &recipe.rollout;
    let grouped = rollout.request == RequestShape::Group;
    let rollout_repeats = rollout.sampling.temperature == 0.0 && rollout.samples_per_prompt > 1;
    checks.require(!(rollout_repeats && recipe.filter.enable), "rollout.sampling.temperature", || {
        "at 0 all samples of a prompt are alike, and the filter drops every group; expected more than 0"
            .to_owned()
    });
    checks.require(!(rollout_repeats && grouped), "rollout.sampling.temperature", || {
        "vLLM refuses greedy requests of several samples (request = \"group\"); expected more than 0"
            .to_owned()
    });
    let Some(validation) = &recipe.validation else { return };
    let validation_repeats = validation.sampling.temperature == 0.0 && validation.samples_per_prompt > 1;
    checks.require(!(validation_repeats && grouped), "validation.sampling.temperature", || {
        "vLLM refuses greedy requests of several samples (request = \"group\"); expected samples_per_prompt = 1"
            .to_owned()
    });
}

fn check_validation(recipe: &Recipe, checks: &mut Checks<'_>) {
    let Some(validation) = &recipe.validation else { return };
    checks.require(recipe.data.validation.is_some(), "validation.every_steps", || {
        "a [validation] table needs `data.validation` files".to_owned()
    });
    checks.require(validation.every_steps >= 1, "validation.every_steps", at_least_one);
    let samples = validation.samples_per_prompt as usize;
    counted(samples, SAMPLES_PER_PROMPT_MAX, "validation.samples_per_prompt", checks);
    check_sampling(&validation.sampling, "validation.sampling", checks);
}

fn check_inputs(recipe: &Recipe, checks: &mut Checks<'_>) {
    let data = &recipe.data;
    let named = |files: &Files| {
        !files.paths().is_empty() && files.paths().iter().all(|path| !path.as_os_str().is_empty())
    };
    checks.require(named(&data.train), "data.train", || "expected at least one file".to_owned());
    let validation_named = data.validation.as_ref().is_none_or(named);
    checks.require(validation_named, "data.validation", || "expected at least one file".to_owned());
    if let Some(columns) = &data.columns {
        let source = columns.source.as_deref().unwrap_or("unnamed");
        for (path, key) in
            [(columns.prompt.as_str(), "prompt"), (&columns.answer, "answer"), (source, "source")]
        {
            checks
                .require(!path.is_empty(), &format!("data.columns.{key}"), || "expected a column".to_owned());
        }
    }
    counted(data.max_prompt_length, TOKENS_MAX, "data.max_prompt_length", checks);
    checks.require(data.epochs != Some(0), "data.epochs", at_least_one);
    checks.require(!recipe.model.name.is_empty(), "model.name", || {
        "expected the name by which the servers call it".to_owned()
    });
    checks.require(!recipe.model.chat_template.is_empty(), "model.chat_template", || {
        "expected \"auto\", \"none\" or a file".to_owned()
    });
    checks.require(!recipe.model.tokenizer.is_empty(), "model.tokenizer", || {
        "expected a directory, a tokenizer.json, a hub id or \"builtin\"".to_owned()
    });
}

/// Checks that clients and this process can send the secrets as bearer tokens.
fn check_secrets(recipe: &Recipe, checks: &mut Checks<'_>) {
    for (secret, key) in [
        (&recipe.fleet.api_key, "fleet.api_key"),
        (&recipe.fleet.admin_token, "fleet.admin_token"),
        (&recipe.queue.token, "queue.token"),
        (&recipe.policy.token, "policy.token"),
    ] {
        checks.require(secret.as_deref().is_none_or(is_sendable), key, || {
            "expected a secret that an HTTP header can hold, without line breaks and other control characters"
                .to_owned()
        });
    }
}

fn check_timeouts(recipe: &Recipe, checks: &mut Checks<'_>) {
    let timeouts = &recipe.timeouts;
    for (value, key) in [
        (timeouts.connect, "connect"),
        (timeouts.stall, "stall"),
        (timeouts.sample, "sample"),
        (timeouts.permit, "permit"),
        (timeouts.reward, "reward"),
        (timeouts.queue_put, "queue_put"),
        (timeouts.drain, "drain"),
        (timeouts.silence, "silence"),
    ] {
        check_seconds(value, &format!("timeouts.{key}"), checks);
    }
}

fn check_seconds(value: f64, key: &str, checks: &mut Checks<'_>) {
    checks.require(value > 0.0 && value <= SECONDS_MAX, key, || {
        format!("expected seconds, above 0 and at most {SECONDS_MAX}, found {value}")
    });
}

fn check_connections(connections: &ConnectionLimits, checks: &mut Checks<'_>) {
    let ConnectionLimits { max, unauthenticated_max, head_timeout, body_timeout, keep_alive } = connections;
    for (value, key) in [(max, "max"), (unauthenticated_max, "unauthenticated_max")] {
        checks.require(*value != Some(0), &format!("limits.connections.{key}"), at_least_one);
    }
    for (value, key) in
        [(head_timeout, "head_timeout"), (body_timeout, "body_timeout"), (keep_alive, "keep_alive")]
    {
        check_seconds(*value, &format!("limits.connections.{key}"), checks);
    }
}

fn check_limits(recipe: &Recipe, checks: &mut Checks<'_>) {
    let limits = &recipe.limits;
    check_connections(&limits.connections, checks);
    let rollout = &recipe.rollout;
    checks.require(recipe.run.steps != Some(0), "run.steps", at_least_one);
    let out_is_named = recipe.run.out.as_ref().is_none_or(|out| !out.as_os_str().is_empty());
    checks.require(out_is_named, "run.out", || {
        "expected a directory; without this key the run gets a directory in runs/".to_owned()
    });
    checks.require(limits.body_bytes_max >= 1 << 16, "limits.body_bytes_max", || {
        format!("expected at least 65536 bytes, found {}", limits.body_bytes_max)
    });
    let requests_per_group = match rollout.request {
        RequestShape::Sample => rollout.samples_per_prompt as usize,
        RequestShape::Group => 1,
    };
    let groups = rollout.workers.saturating_mul(rollout.max_concurrent_prompts);
    let requests = groups.saturating_mul(requests_per_group).max(1);
    checks.require(limits.waiting_max >= requests, "limits.waiting_max", || {
        format!(
            "{requests} requests (workers x max_concurrent_prompts x samples) wait at the same time while no \
             server is healthy; expected at least that, found {}",
            limits.waiting_max
        )
    });
}
