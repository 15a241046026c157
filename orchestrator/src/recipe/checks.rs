//! Values that are right one by one and wrong together.

use super::layers::Layers;
use super::{
    EarlyStop, Files, Launch, MaxLoads, OnFull, OnStop, PolicyMode, Recipe, RecipeError, RequestShape, Sampling,
};

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
    check_validation(recipe, &mut checks);
    check_rest(recipe, &mut checks);
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
    for (index, endpoint) in fleet.endpoints.iter().enumerate() {
        let key = format!("fleet.endpoints.{index}");
        match url::Url::parse(endpoint) {
            Ok(url) if url.scheme() == "http" && url.host().is_some() => {}
            Ok(url) if url.scheme() == "https" => checks.require(false, &key, || {
                "https is not available yet; expected http://host:port (put a TLS proxy beside Rolldock)".to_owned()
            }),
            _ => checks.require(false, &key, || format!("expected a URL like http://host:port, found {endpoint:?}")),
        }
        let first = fleet.endpoints.iter().position(|other| other == endpoint);
        checks.require(first == Some(index), &key, || "this endpoint is listed twice".to_owned());
    }
    match &fleet.max_loads_per_server {
        MaxLoads::Fixed(loads) => {
            let weight = match recipe.rollout.request {
                RequestShape::Sample => 1,
                RequestShape::Group => recipe.rollout.samples_per_prompt,
            };
            checks.require(*loads >= weight, "fleet.max_loads_per_server", || {
                format!(
                    "{loads} permits are never enough for one request of {weight} samples \
                     (rollout.samples_per_prompt with request = \"group\"); expected at least {weight}"
                )
            });
        }
        MaxLoads::Named(name) => checks.require(false, "fleet.max_loads_per_server", || match name.as_str() {
            "auto" => "\"auto\" is not available yet; expected a number".to_owned(),
            _ => format!("expected a number of samples, found {name:?}"),
        }),
    }
    if let Some(simulated) = &fleet.simulated {
        checks.require((1..=1024).contains(&simulated.servers), "fleet.simulated.servers", || {
            "expected 1 to 1024".to_owned()
        });
        checks.require(simulated.max_num_seqs > 0, "fleet.simulated.max_num_seqs", at_least_one);
        checks.require(
            simulated.speeds.iter().all(|speed| speed.is_finite() && *speed > 0.0),
            "fleet.simulated.speeds",
            || "expected numbers above 0".to_owned(),
        );
        positive(simulated.time_scale, "fleet.simulated.time_scale", checks);
        positive(simulated.mean_response_length, "fleet.simulated.mean_response_length", checks);
    }
    positive(fleet.probe_interval, "fleet.probe_interval", checks);
}

fn at_least_one() -> String {
    "expected at least 1".to_owned()
}

fn positive(value: f64, key: &str, checks: &mut Checks<'_>) {
    checks.require(value.is_finite() && value > 0.0, key, || format!("expected a number above 0, found {value}"));
}

fn check_rollout(recipe: &Recipe, checks: &mut Checks<'_>) {
    let rollout = &recipe.rollout;
    for (value, key) in [
        (rollout.workers, "workers"),
        (rollout.max_concurrent_prompts, "max_concurrent_prompts"),
        (rollout.samples_per_prompt as usize, "samples_per_prompt"),
        (rollout.train_batch_size, "train_batch_size"),
        (rollout.gen_batch_size, "gen_batch_size"),
        (rollout.max_gen_batches, "max_gen_batches"),
        (rollout.max_response_length as usize, "max_response_length"),
        (rollout.sample_attempts_max as usize, "sample_attempts_max"),
    ] {
        checks.require(value >= 1, &format!("rollout.{key}"), at_least_one);
    }
    let drawn_most = rollout.gen_batch_size.saturating_mul(rollout.max_gen_batches);
    checks.require(rollout.train_batch_size <= drawn_most, "rollout.train_batch_size", || {
        format!(
            "a step can never collect {} groups: it draws at most gen_batch_size x max_gen_batches = {drawn_most} prompts",
            rollout.train_batch_size
        )
    });
    checks.require(rollout.on_stop != OnStop::Carry, "rollout.on_stop", || {
        "\"carry\" is not available yet; expected \"requeue\" or \"discard\"".to_owned()
    });
    checks.require(
        recipe.filter.enable
            || rollout.early_stop != EarlyStop::Off
            || rollout.launch == Launch::OnDemand
            || rollout.gen_batch_size >= rollout.train_batch_size,
        "rollout.gen_batch_size",
        || "a synchronous step without a filter collects one generation batch; expected at least train_batch_size".to_owned(),
    );
}

fn check_sampling(sampling: &Sampling, key: &str, checks: &mut Checks<'_>) {
    let Sampling { temperature, top_p, top_k, .. } = sampling;
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

fn check_validation(recipe: &Recipe, checks: &mut Checks<'_>) {
    let Some(validation) = &recipe.validation else { return };
    checks.require(recipe.data.validation.is_some(), "validation", || {
        "a [validation] table needs `data.validation` files".to_owned()
    });
    checks.require(validation.every_steps >= 1, "validation.every_steps", at_least_one);
    checks.require(validation.samples_per_prompt >= 1, "validation.samples_per_prompt", at_least_one);
    check_sampling(&validation.sampling, "validation.sampling", checks);
}

fn check_rest(recipe: &Recipe, checks: &mut Checks<'_>) {
    checks.require(!recipe.data.train.paths().is_empty(), "data.train", || "expected at least one file".to_owned());
    let validation_files = recipe.data.validation.as_ref().map_or(1, |files| Files::paths(files).len());
    checks.require(validation_files > 0, "data.validation", || "expected at least one file".to_owned());
    checks.require(recipe.data.max_prompt_length >= 1, "data.max_prompt_length", at_least_one);
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
        let key = format!("timeouts.{key}");
        checks.require(value.is_finite() && value > 0.0 && value <= 1e7, &key, || {
            format!("expected seconds, above 0 and at most 1e7, found {value}")
        });
    }
    if let Some(overlong) = &recipe.reward.overlong {
        let limit = recipe.rollout.max_response_length;
        checks.require((1..=limit).contains(&overlong.buffer_length), "reward.overlong.buffer_length", || {
            format!("expected 1 to rollout.max_response_length = {limit}, found {}", overlong.buffer_length)
        });
    }
    checks.require(recipe.reward.places >= 1, "reward.places", at_least_one);
    checks.require(recipe.policy.mode == PolicyMode::Sync, "policy.mode", || {
        "asynchronous modes are not available yet; expected \"sync\"".to_owned()
    });
    checks.require(recipe.limits.body_bytes_max >= 1 << 16, "limits.body_bytes_max", || {
        "expected at least 65536 bytes".to_owned()
    });
    checks.require(recipe.limits.waiting_max >= 1, "limits.waiting_max", at_least_one);
}

fn check_queue(recipe: &Recipe, checks: &mut Checks<'_>) {
    let queue = &recipe.queue;
    let group = recipe.rollout.samples_per_prompt as usize;
    let step_rows = group.saturating_mul(recipe.rollout.train_batch_size);
    checks.require(!queue.tasks.is_empty(), "queue.tasks", || "expected at least one task name".to_owned());
    checks.require(!queue.partition.is_empty(), "queue.partition", || "expected a name".to_owned());
    checks.require(queue.listen.is_none(), "queue.listen", || {
        "serving other processes is not available yet; they can read the run's directory after it has ended".to_owned()
    });
    let Some(consumer) = &queue.consumer else {
        checks.require(
            queue.on_full != OnFull::Block || queue.capacity_rows >= step_rows,
            "queue.capacity_rows",
            || format!("nobody takes rows during the run, so a step of {step_rows} rows can never fit; expected at least that"),
        );
        return;
    };
    checks.require(queue.tasks == [consumer.task.clone()], "queue.consumer.task", || {
        format!("the embedded consumer frees rows only if its task is the only one; queue.tasks = {:?}", queue.tasks)
    });
    checks.require(consumer.keep_last_steps == 0 || recipe.run.steps.is_some(), "queue.consumer.keep_last_steps", || {
        "nobody knows which steps are the last ones without `run.steps`".to_owned()
    });
    checks.require(consumer.take_groups >= 1, "queue.consumer.take_groups", at_least_one);
    let kept = step_rows.saturating_mul(consumer.keep_last_steps as usize);
    let needed = kept.max(group);
    checks.require(queue.capacity_rows >= needed, "queue.capacity_rows", || {
        format!("expected at least {needed}: one group, and the steps that queue.consumer keeps")
    });
}
