//! Values that are out of range, or right one by one and wrong together.
//!
//! Everything is looked at before anything is reported, so that a recipe is mended in one go. What parses but
//! has no code behind it yet is refused here, by name: a key that is read and ignored would be a lie.
//!
//! # Invariants
//! A recipe that passes cannot wait for itself: no request needs more permits than a server has, no step
//! needs more groups than it may draw, and no put waits for room that no consumer will make. Numbers that
//! size memory or become a `Duration` are bounded.

mod policy;
mod reward;
mod rollout;

use rolldock_loadbalancer::AdaptiveConfig;
use rolldock_queue::OnFull;

use super::layers::Layers;
use super::{Consumer, Files, MaxLoads, Recipe, RecipeError, Simulated, Transport};
use crate::engine::SamplingParams;
use crate::rollout::{Launch, RequestShape};

// Larger numbers than these are slips of the finger, and some would be allocated at once.
const WORKERS_MAX: usize = 4096;
const PROMPTS_PER_WORKER_MAX: usize = 1 << 16;
const SAMPLES_PER_PROMPT_MAX: usize = 1 << 12;
const BATCH_GROUPS_MAX: usize = 1 << 20;
const GEN_BATCHES_MAX: usize = 1 << 16;
const TOKENS_MAX: usize = 1 << 24;
const ATTEMPTS_MAX: usize = 100;
const SIMULATED_SERVERS_MAX: usize = 1024;
/// Months; a `Duration` takes it.
const SECONDS_MAX: f64 = 1e7;

struct Checks<'a> {
    layers: &'a Layers,
    complaints: Vec<super::Complaint>,
}

impl Checks<'_> {
    fn require(&mut self, holds: bool, key: &str, message: impl FnOnce() -> String) {
        if !holds {
            let key: Vec<String> = key.split('.').map(str::to_owned).collect();
            self.complaints.push(self.layers.complain(&key, message()));
        }
    }
}

/// All complaints at once.
pub(super) fn check(recipe: &Recipe, layers: &Layers) -> Result<(), RecipeError> {
    let mut checks = Checks { layers, complaints: Vec::new() };
    check_fleet(recipe, &mut checks);
    check_rollout(recipe, &mut checks);
    check_sampling(&recipe.rollout.sampling, "rollout.sampling", &mut checks);
    check_greedy(recipe, &mut checks);
    check_validation(recipe, &mut checks);
    check_inputs(recipe, &mut checks);
    check_timeouts(recipe, &mut checks);
    reward::check(recipe, &mut checks);
    check_limits(recipe, &mut checks);
    policy::check(recipe, &mut checks);
    check_queue(recipe, &mut checks);
    if checks.complaints.is_empty() { Ok(()) } else { Err(RecipeError::Wrong(checks.complaints)) }
}

fn check_fleet(recipe: &Recipe, checks: &mut Checks<'_>) {
    let fleet = &recipe.fleet;
    checks.require(!fleet.endpoints.is_empty() || fleet.simulated.is_some(), "fleet", || {
        "expected `endpoints` with at least one URL, or a `[fleet.simulated]` table".to_owned()
    });
    checks.require(fleet.endpoints.is_empty() || fleet.simulated.is_none(), "fleet.endpoints", || {
        "expected either `endpoints` or `[fleet.simulated]`, found both".to_owned()
    });
    check_endpoints(&fleet.endpoints, checks);
    match &fleet.max_loads_per_server {
        MaxLoads::Fixed(loads) => check_permits(*loads, "fleet.max_loads_per_server", recipe, checks),
        MaxLoads::Named(name) if name == "auto" => {
            let adaptive = fleet.adaptive.unwrap_or_default();
            check_adaptive(&adaptive, checks);
            check_permits(adaptive.min, "fleet.adaptive.min", recipe, checks);
        }
        MaxLoads::Named(name) => checks.require(false, "fleet.max_loads_per_server", || {
            format!("expected a number of samples, or \"auto\", found {name:?}")
        }),
    }
    let is_served = fleet.simulated.as_ref().is_none_or(|simulated| simulated.transport == Transport::Http);
    for (key, is_given) in [("fleet.file", fleet.file.is_some()), ("fleet.admin", fleet.admin.is_some())] {
        checks.require(!is_given || is_served, key, || {
            "the servers of [fleet.simulated] are in this process: no server can join or leave".to_owned()
        });
    }
    if let Some(admin) = &fleet.admin {
        checks.require(admin.parse::<std::net::SocketAddr>().is_ok(), "fleet.admin", || {
            format!("expected an address like 127.0.0.1:7500, found {admin:?}")
        });
        let is_open = admin.parse().is_ok_and(|address: std::net::SocketAddr| !address.ip().is_loopback());
        checks.require(!is_open || fleet.admin_token.is_some(), "fleet.admin_token", || {
            format!("everyone who can reach fleet.admin={admin} could change the fleet: expected a token")
        });
    }
    let is_empty = fleet.admin_token.as_ref().is_some_and(String::is_empty);
    checks.require(!is_empty, "fleet.admin_token", || {
        "an empty token would admit everyone: expected a token, or none".to_owned()
    });
    let is_auto = matches!(fleet.max_loads_per_server, MaxLoads::Named(_));
    checks.require(fleet.adaptive.is_none() || is_auto, "fleet.adaptive", || {
        "it says how to find the number of permits: expected max_loads_per_server = \"auto\"".to_owned()
    });
    if let Some(total) = fleet.max_loads_total {
        check_permits(total, "fleet.max_loads_total", recipe, checks);
    }
    if let Some(tokens) = fleet.max_tokens_per_server {
        checks.require(tokens > 0, "fleet.max_tokens_per_server", at_least_one);
    }
    if let Some(simulated) = &fleet.simulated {
        check_simulated(simulated, checks);
    }
    within(fleet.probe_interval, 1e-3, 3600.0, "fleet.probe_interval", checks);
}

fn check_endpoints(endpoints: &[String], checks: &mut Checks<'_>) {
    let mut seen = Vec::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        let key = format!("fleet.endpoints.{index}");
        let example = "expected a URL like http://host:port";
        let url = match url::Url::parse(endpoint) {
            Ok(url) => url,
            Err(error) => {
                checks.require(false, &key, || format!("{example}, found {endpoint:?}: {error}"));
                continue;
            }
        };
        let bare = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
        let problem = match url.scheme() {
            "https" => {
                Some("https is not available yet; expected http://host:port (a TLS proxy can stand between)")
            }
            "http" if !bare => Some("expected only http://host:port, without user, query or fragment"),
            "http" if url.path().trim_end_matches('/').ends_with("/v1") => {
                Some("expected the server's base URL, without the /v1 of its endpoints")
            }
            "http" if seen.contains(&url) => Some("this endpoint is listed twice"),
            "http" => None,
            _ => Some(example),
        };
        checks.require(problem.is_none(), &key, || {
            format!("{}, found {endpoint:?}", problem.unwrap_or_default())
        });
        seen.push(url);
    }
}

fn check_adaptive(adaptive: &AdaptiveConfig, checks: &mut Checks<'_>) {
    let AdaptiveConfig { start, min, max, decrease, kv_usage_max, kv_usage_high, .. } = *adaptive;
    checks.require((1..=max).contains(&min), "fleet.adaptive.min", || {
        format!("expected 1 to max={max}, found {min}")
    });
    checks.require((min..=max).contains(&start), "fleet.adaptive.start", || {
        format!("expected min={min} to max={max}, found {start}")
    });
    checks.require(decrease > 0.0 && decrease < 1.0, "fleet.adaptive.decrease", || {
        format!("expected a share between 0 and 1, found {decrease}")
    });
    let is_ordered = 0.0 < kv_usage_high && kv_usage_high <= kv_usage_max && kv_usage_max <= 1.0;
    checks.require(is_ordered, "fleet.adaptive.kv_usage_max", || {
        format!("expected 0 < kv_usage_high={kv_usage_high} <= kv_usage_max={kv_usage_max} <= 1")
    });
}

/// A request takes all of its permits at once or none, so one that is heavier than a server waits for ever.
fn check_permits(loads: u32, key: &str, recipe: &Recipe, checks: &mut Checks<'_>) {
    let grouped = recipe.rollout.request == RequestShape::Group;
    let weight = if grouped { recipe.rollout.samples_per_prompt } else { 1 };
    checks.require(loads >= weight, key, || {
        format!(
            "{loads} permits are never enough for one request of {weight} samples \
             (rollout.samples_per_prompt with request = \"group\"); expected at least {weight}"
        )
    });
    let Some(validation) = recipe.validation.as_ref().filter(|_| grouped) else { return };
    checks.require(loads >= validation.samples_per_prompt, "validation.samples_per_prompt", || {
        format!(
            "{} samples in one request (rollout.request = \"group\") never fit a server's {loads} permits",
            validation.samples_per_prompt
        )
    });
}

fn check_simulated(simulated: &Simulated, checks: &mut Checks<'_>) {
    counted(simulated.servers, SIMULATED_SERVERS_MAX, "fleet.simulated.servers", checks);
    counted(simulated.max_num_seqs as usize, 1 << 20, "fleet.simulated.max_num_seqs", checks);
    let speeds = &simulated.speeds;
    checks.require(speeds.iter().all(|speed| (1e-3..=1e3).contains(speed)), "fleet.simulated.speeds", || {
        format!("expected numbers from 0.001 to 1000, found {speeds:?}")
    });
    checks.require(speeds.len() <= simulated.servers, "fleet.simulated.speeds", || {
        format!("expected at most one for each of {} servers, found {}", simulated.servers, speeds.len())
    });
    within(simulated.time_scale, 1e-6, 1e3, "fleet.simulated.time_scale", checks);
    within(simulated.mean_response_length, 1.0, 1e6, "fleet.simulated.mean_response_length", checks);
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
            || rollout.launch == Launch::OnDemand
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

/// Greedy samples of one prompt are one sample, several times.
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
    checks.require(!recipe.model.tokenizer.is_empty(), "model.tokenizer", || {
        "expected a directory, a tokenizer.json, a hub id or \"builtin\"".to_owned()
    });
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
        checks.require(value > 0.0 && value <= SECONDS_MAX, &format!("timeouts.{key}"), || {
            format!("expected seconds, above 0 and at most {SECONDS_MAX}, found {value}")
        });
    }
}

fn check_limits(recipe: &Recipe, checks: &mut Checks<'_>) {
    let limits = &recipe.limits;
    let rollout = &recipe.rollout;
    checks.require(recipe.run.steps != Some(0), "run.steps", at_least_one);
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
            "{requests} requests (workers x max_concurrent_prompts x samples) wait at once while no server is \
             healthy; expected at least that, found {}",
            limits.waiting_max
        )
    });
}

fn check_queue(recipe: &Recipe, checks: &mut Checks<'_>) {
    let queue = &recipe.queue;
    let tasks_named = !queue.tasks.is_empty() && queue.tasks.iter().all(|task| !task.is_empty());
    checks.require(tasks_named, "queue.tasks", || "expected at least one task name".to_owned());
    let repeated = (1..queue.tasks.len()).find(|at| queue.tasks[..*at].contains(&queue.tasks[*at]));
    checks.require(repeated.is_none(), "queue.tasks", || "a task is listed twice".to_owned());
    checks.require(!queue.partition.is_empty(), "queue.partition", || "expected a name".to_owned());
    checks.require(queue.listen.is_none() || queue.address().is_some(), "queue.listen", || {
        format!("expected an address and a port, for example \"127.0.0.1:7070\", found {:?}", queue.listen)
    });
    checks.require(queue.token.as_ref().is_none_or(|token| !token.is_empty()), "queue.token", || {
        "expected a token that cannot be guessed".to_owned()
    });
    match &queue.consumer {
        None => check_room_for_all(recipe, checks),
        Some(consumer) => check_consumer(recipe, consumer, checks),
    }
}

/// Without a consumer nothing is freed before the run has ended, unless others take it.
fn check_room_for_all(recipe: &Recipe, checks: &mut Checks<'_>) {
    let queue = &recipe.queue;
    let group_rows = recipe.rollout.samples_per_prompt as usize;
    if queue.listen.is_some() {
        checks.require(queue.capacity_rows >= group_rows, "queue.capacity_rows", || {
            format!("one group must fit; expected at least {group_rows}, found {}", queue.capacity_rows)
        });
        return;
    }
    let steps = recipe.run.steps.map_or(1, |steps| usize::try_from(steps).unwrap_or(usize::MAX));
    let step_rows = group_rows.saturating_mul(recipe.rollout.train_batch_size);
    let (needed, of_what) = match (queue.on_full, recipe.run.steps) {
        (OnFull::DropOldest, _) => (group_rows, "one group"),
        (_, None) => (step_rows, "one step"),
        (_, Some(_)) => (step_rows.saturating_mul(steps), "all of run.steps"),
    };
    checks.require(queue.capacity_rows >= needed, "queue.capacity_rows", || {
        format!(
            "no consumer takes rows during the run, so {of_what} must fit; expected at least {needed}, found {}, or a \
             [queue.consumer]",
            queue.capacity_rows
        )
    });
}

fn check_consumer(recipe: &Recipe, consumer: &Consumer, checks: &mut Checks<'_>) {
    let queue = &recipe.queue;
    checks.require(queue.tasks == [consumer.task.clone()], "queue.consumer.task", || {
        format!(
            "the embedded consumer frees rows only if its task is the only one; queue.tasks = {:?}",
            queue.tasks
        )
    });
    checks.require(
        consumer.keep_last_steps == 0 || recipe.run.steps.is_some(),
        "queue.consumer.keep_last_steps",
        || "the last steps are known only with `run.steps`; expected `run.steps`, or 0".to_owned(),
    );
    counted(consumer.take_groups, BATCH_GROUPS_MAX, "queue.consumer.take_groups", checks);
    within(consumer.train_s, 0.0, SECONDS_MAX, "queue.consumer.train_s", checks);
    let group_rows = recipe.rollout.samples_per_prompt as usize;
    let step_rows = group_rows.saturating_mul(recipe.rollout.train_batch_size);
    let kept_steps = consumer.keep_last_steps.min(recipe.run.steps.unwrap_or(u64::MAX));
    let kept = step_rows.saturating_mul(usize::try_from(kept_steps).unwrap_or(usize::MAX));
    let needed = kept.max(group_rows);
    checks.require(queue.capacity_rows >= needed, "queue.capacity_rows", || {
        format!("expected at least {needed}: one group, and the steps that queue.consumer keeps")
    });
}
