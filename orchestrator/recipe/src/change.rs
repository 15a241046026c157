//! Decides whether a run may continue with a changed recipe, key by key.
//!
//! A resumed run has rows in its queue, waiting prompts and kept tokens. A change that affects none of them
//! is allowed. A change that makes later groups differ from earlier ones is allowed with a warning. A change
//! that would make the existing rows, prompts or tokens invalid is refused. A table has the verdict on every
//! key of a resolved recipe. A change of a key that is not in the table is refused, so every new key needs an
//! entry.
//!
//! # Deliberately absent
//! Secrets have no verdict: a resolved recipe does not contain them, and they may change at any time.

use std::collections::BTreeMap;
use std::fmt;

use toml::{Table, Value};

use rolldock_data::OverlongPrompts;

use super::{Data, Recipe};

/// Maximum number of characters of a value that are shown.
const SHOWN_MAX: usize = 120;

/// The effect of a changed key on a run that continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing that exists depends on the key.
    Allowed,
    /// Later groups differ from earlier ones. The text describes the difference.
    Warned(&'static str),
    /// Existing data would become invalid. The text describes what becomes invalid.
    Refused(&'static str),
}

/// A key whose value has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The dotted key.
    pub key: String,
    /// The old value as TOML; `None` if the key was absent.
    pub old: Option<String>,
    /// The new value as TOML; `None` if the key is absent.
    pub new: Option<String>,
    /// The effect of the change.
    pub verdict: Verdict,
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, old, new, verdict } = self;
        write!(formatter, "{key}: {} -> {}", shown(old.as_deref()), shown(new.as_deref()))?;
        match verdict {
            Verdict::Allowed => Ok(()),
            Verdict::Warned(why) => write!(formatter, " (warning: {why})"),
            Verdict::Refused(why) => write!(formatter, " (refused: {why})"),
        }
    }
}

fn shown(value: Option<&str>) -> String {
    let Some(value) = value else { return "absent".to_owned() };
    if value.chars().count() <= SHOWN_MAX {
        return value.to_owned();
    }
    value.chars().take(SHOWN_MAX).chain("...".chars()).collect()
}

/// The keys that differ between both recipes, in order.
///
/// # Errors
/// Returns the errors of [`Recipe::to_toml`].
pub fn changes(old: &Recipe, new: &Recipe) -> Result<Vec<Change>, toml::ser::Error> {
    let (old_leaves, new_leaves) = (leaves(old)?, leaves(new)?);
    let mut keys: Vec<&String> = old_leaves.keys().chain(new_leaves.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let differs = |key: &&String| old_leaves.get(*key) != new_leaves.get(*key);
    let change = |key: &String| Change {
        key: key.clone(),
        old: old_leaves.get(key).map(Value::to_string),
        new: new_leaves.get(key).map(Value::to_string),
        verdict: verdict_between(key, &old.data, &new.data),
    };
    Ok(keys.into_iter().filter(differs).map(change).collect())
}

fn leaves(recipe: &Recipe) -> Result<BTreeMap<String, Value>, toml::ser::Error> {
    let mut found = BTreeMap::new();
    gather(&Table::try_from(recipe)?, "", &mut found);
    Ok(found)
}

fn gather(table: &Table, prefix: &str, found: &mut BTreeMap<String, Value>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Table(inner) => gather(inner, &key, found),
            // A list of one text equals the text alone.
            Value::Array(items) if let [only @ Value::String(_)] = items.as_slice() => {
                found.insert(key, only.clone());
            }
            leaf => {
                found.insert(key, leaf.clone());
            }
        }
    }
}

/// The verdict on a change of `key` from `old` to `new`. The lengths of prompts are judged by their values: prompts
/// that are cut differently are others, and prompts that are left out are not.
fn verdict_between(key: &str, old: &Data, new: &Data) -> Verdict {
    let cuts = |data: &Data| data.overlong_prompts == OverlongPrompts::TruncateLeft;
    let are_cut_differently = cuts(old) || (cuts(new) && new.max_prompt_length < old.max_prompt_length);
    match key {
        "data.max_prompt_length" | "data.overlong_prompts" if are_cut_differently => Verdict::Refused(TOKENS),
        _ => verdict_of(key).unwrap_or(UNKNOWN),
    }
}

/// The verdict on `key`. It is the entry of the key itself or, without such an entry, that of the longest
/// `prefix.*` that covers the key.
fn verdict_of(key: &str) -> Option<Verdict> {
    let covers = |pattern: &str| match pattern.strip_suffix(".*") {
        None => key == pattern,
        Some(prefix) => key == prefix || key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.')),
    };
    // An entry of the key itself has precedence over an entry with a prefix.
    let strength = |pattern: &str| (!pattern.ends_with(".*"), pattern.len());
    let lines = VERDICTS.iter().flat_map(|(patterns, verdict)| patterns.iter().map(move |p| (*p, *verdict)));
    lines.filter(|(pattern, _)| covers(pattern)).max_by_key(|(pattern, _)| strength(pattern)).map(|(_, v)| v)
}

const UNKNOWN: Verdict = Verdict::Refused("it is not known what a change of it means for a run");

const ROWS: &str =
    "the place in the data, its order and the rows of waiting prompts are those of the old value";
const TOKENS: &str = "prompts that wait and tokens that are kept were made with the old value";
const DECLARED: &str = "the partition keeps what it was declared with";
const SAMPLED: &str = "samples are drawn differently from here on; tokens that are kept were drawn as before";
const SCORED: &str = "groups are scored differently from here on; those in the queue keep their scores";
const CHOSEN: &str = "groups are chosen differently from here on; those in the queue stay";
const COLLECTED: &str = "steps are collected differently from here on, beginning with the one that goes on";
const MEASURED: &str = "figures of validations do not compare with those before";
const SIMULATED: &str = "the simulated servers answer differently from here on";

/// Keys with their verdicts. `prefix.*` covers all keys below `prefix`.
const VERDICTS: &[(&[&str], Verdict)] = &[
    (
        &["model.name"],
        Verdict::Warned("groups are generated by what the servers call so from here on; kept tokens are not"),
    ),
    (&["model.tokenizer", "model.chat_template"], Verdict::Refused(TOKENS)),
    (
        &["data.train", "data.columns.*", "data.duplicates", "data.shuffle", "data.seed"],
        Verdict::Refused(ROWS),
    ),
    (
        &["data.max_prompt_length", "data.overlong_prompts"],
        Verdict::Warned("other prompts are left out or cut from here on"),
    ),
    (&["data.validation"], Verdict::Warned(MEASURED)),
    (&["data.epochs"], Verdict::Allowed),
    (&["data.history.*"], Verdict::Warned(CHOSEN)),
    (
        &[
            "fleet.endpoints",
            "fleet.servers_min",
            "fleet.max_loads_per_server",
            "fleet.policy",
            "fleet.api_key",
            "fleet.adaptive.*",
            "fleet.max_loads_total",
            "fleet.max_tokens_per_server",
            "fleet.probe",
            "fleet.file",
            "fleet.admin",
            "fleet.admin_token",
            "fleet.probe_interval",
            "fleet.simulated.servers",
            "fleet.simulated.time_scale",
            "fleet.simulated.max_num_seqs",
            "fleet.simulated.speeds",
            "fleet.simulated.transport",
            "fleet.simulated.engine.*",
        ],
        Verdict::Allowed,
    ),
    (&["fleet.simulated.seed", "fleet.simulated.mean_response_length"], Verdict::Warned(SIMULATED)),
    (
        &[
            "rollout.workers",
            "rollout.max_concurrent_prompts",
            "rollout.fill",
            "rollout.max_gen_batches",
            "rollout.launch",
            "rollout.launch_confidence",
            "rollout.stragglers",
            "rollout.request",
            "rollout.sample_attempts_max",
        ],
        Verdict::Allowed,
    ),
    (
        &["rollout.samples_per_prompt"],
        Verdict::Refused("groups that are held, carried or in the queue have the old number of samples"),
    ),
    (
        &["rollout.train_batch_size", "rollout.gen_batch_size", "rollout.early_stop", "rollout.on_stop"],
        Verdict::Warned(COLLECTED),
    ),
    (
        &["rollout.max_response_length"],
        Verdict::Warned("samples have another limit from here on, those that are resumed included"),
    ),
    (&["rollout.sampling.*"], Verdict::Warned(SAMPLED)),
    (&["rollout.carry.*", "rollout.bias_audit"], Verdict::Allowed),
    (&["rollout.bias_guard.*"], Verdict::Warned(COLLECTED)),
    (&["rollout.stop_unlikely.*"], Verdict::Warned(CHOSEN)),
    (&["agent.*", "gateway.*"], Verdict::Warned(SAMPLED)),
    (
        &[
            "agent.attempts_max",
            "agent.concurrency",
            "agent.deadline",
            "agent.lease",
            "agent.memory_mb",
            "agent.sandbox",
            "agent.readable",
            "agent.scratch_mb",
            "gateway.listen",
            "gateway.advertise",
            "gateway.heartbeat",
            "gateway.call_timeout",
            "gateway.attempts_max",
        ],
        Verdict::Allowed,
    ),
    (&["agent.reward"], Verdict::Warned(SCORED)),
    (&["timeouts.*"], Verdict::Allowed),
    (&["validation.before_training", "validation.every_steps", "validation.priority"], Verdict::Allowed),
    (&["validation.samples_per_prompt", "validation.sampling.*"], Verdict::Warned(MEASURED)),
    (
        &["environment.*"],
        Verdict::Warned("trajectories have another environment or other limits from here on"),
    ),
    (
        &[
            "environment.name",
            "environment.python",
            "environment.python.class",
            "environment.url",
            "environment.url.url",
        ],
        Verdict::Refused("groups that wait and rows in the queue were made in the old environment"),
    ),
    (
        &[
            "reward.scorer",
            "reward.variant",
            "reward.strict_box",
            "reward.method",
            "reward.options.*",
            "reward.python.*",
            "reward.command.*",
            "reward.http.*",
            "reward.judge.*",
            "reward.code.*",
            "reward.guard.on_failure",
            "reward.guard.on_failure.*",
            "reward.overlong.*",
            "reward.mask_truncated",
            "reward.shaping.*",
            "reward.advantage",
        ],
        Verdict::Warned(SCORED),
    ),
    (
        &[
            "reward.guard.concurrency",
            "reward.guard.per_second",
            "reward.guard.retries",
            "reward.guard.attempt_s",
            "reward.guard.cache_entries",
            "reward.guard.consecutive_failures_max",
            "reward.guard.backoff_initial_s",
            "reward.guard.backoff_max_s",
            "reward.guard.outage_deadline_s",
            "reward.places",
        ],
        Verdict::Allowed,
    ),
    (
        &["filter.enable", "filter.metric", "filter.gates", "filter.outside", "filter.keep_if_short"],
        Verdict::Warned(CHOSEN),
    ),
    (&["policy.*"], Verdict::Allowed),
    (&["policy.mode"], Verdict::Warned("how far generation runs ahead of training is another from here on")),
    (
        &["policy.max_staleness"],
        Verdict::Warned("how old a group may be is another from here on; those in the queue may be older"),
    ),
    (
        &["queue.partition"],
        Verdict::Refused("what was accepted is recorded in the old partition, and would be accepted again"),
    ),
    (
        &[
            "queue.tasks",
            "queue.tasks.*",
            "queue.columns",
            "queue.columns.*",
            "queue.capacity_rows",
            "queue.on_full",
            "queue.lease_s",
        ],
        Verdict::Refused(DECLARED),
    ),
    (
        &["queue.durability"],
        Verdict::Warned("rows and the ledger survive what the new value says from here on"),
    ),
    (&["queue.listen", "queue.token", "queue.consumer.*"], Verdict::Allowed),
    (&["report.listen"], Verdict::Allowed),
    (&["run.steps", "run.on_short", "run.on_silence", "run.out"], Verdict::Allowed),
    (
        &["run.seed"],
        Verdict::Refused(
            "a prompt that is issued again has to replay its own draw, which the old seed fixes",
        ),
    ),
    (&["report.tensorboard", "report.timelines"], Verdict::Allowed),
    (&["limits.*", "trainer.*"], Verdict::Allowed),
];

#[cfg(test)]
mod tests;
