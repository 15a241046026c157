//! The environment of an agent, and the task that it reads.
//!
//! | variable | value |
//! |---|---|
//! | `OPENAI_BASE_URL`, `OPENAI_API_BASE` | the base URL of the sample's trajectory |
//! | `ANTHROPIC_BASE_URL` | the base URL for Anthropic's clients, which add `/v1` themselves |
//! | `OPENAI_API_KEY`, `ANTHROPIC_API_KEY` | the capability of the trajectory; clients insist on a key |
//! | `ROLLDOCK_TRAJECTORY` | the name of the trajectory, as in the column `trajectory_uid` |
//! | `ROLLDOCK_SAMPLE`, `ROLLDOCK_SEED` | the index of the sample in its group, and the sample's own seed |
//! | `ROLLDOCK_REWARD_URL` | where the agent posts its reward, if agents give the rewards |
//! | `ROLLDOCK_AGENT_RUN`, `ROLLDOCK_AGENT` | marks by which the run finds processes that were left behind |
//!
//! The gateway's host is added to `NO_PROXY`, because clients would otherwise call it through a proxy.

use std::collections::BTreeMap;

use rolldock_gateway::Session;
use serde_json::{Value, json};

use crate::job::AgentJob;

/// The variable with a value that all agents of a run share.
pub(crate) const OF_RUN: &str = "ROLLDOCK_AGENT_RUN";
/// The variable with a value that no other agent has.
pub(crate) const OF_AGENT: &str = "ROLLDOCK_AGENT";

/// The variables of an agent. They override the variables of the recipe.
pub(crate) fn variables(
    job: &AgentJob<'_>,
    session: &Session,
    run: &str,
    gives_reward: bool,
) -> BTreeMap<String, String> {
    let (base, anthropic, capability) =
        (session.base_url(), session.anthropic_base_url(), session.capability().to_owned());
    let mut variables = vec![
        ("OPENAI_BASE_URL", base.clone()),
        ("OPENAI_API_BASE", base),
        ("ANTHROPIC_BASE_URL", anthropic.clone()),
        ("OPENAI_API_KEY", capability.clone()),
        ("ANTHROPIC_API_KEY", capability),
        ("ROLLDOCK_TRAJECTORY", job.uid.to_owned()),
        ("ROLLDOCK_SAMPLE", job.index.to_string()),
        ("ROLLDOCK_SEED", job.seed.to_string()),
        (OF_RUN, run.to_owned()),
        (OF_AGENT, format!("{run}/{}", job.uid)),
    ];
    if gives_reward {
        variables.push(("ROLLDOCK_REWARD_URL", session.reward_url()));
    }
    let mut variables: BTreeMap<String, String> =
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let host = host_of(&anthropic);
    for name in ["NO_PROXY", "no_proxy"] {
        let others = std::env::var(name).unwrap_or_default();
        let all = if others.is_empty() { host.to_owned() } else { format!("{others},{host}") };
        variables.insert(name.to_owned(), all);
    }
    variables
}

/// The host of a URL, without its port.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    match authority.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((address, _)) => address,
        None => authority.split(':').next().unwrap_or_default(),
    }
}

/// What the agent works on: one JSON object. An agent that the run starts reads the object from its standard
/// input.
pub(crate) fn task(job: &AgentJob<'_>, session: &Session, gives_reward: bool) -> Value {
    let mut task = job.task.clone();
    if let Value::Object(task) = &mut task {
        let mut add = |key: &str, value: Value| drop(task.insert(key.to_owned(), value));
        add("trajectory", json!(job.uid));
        add("sample", json!(job.index));
        add("seed", json!(job.seed));
        add("base_url", json!(session.base_url()));
        add("anthropic_base_url", json!(session.anthropic_base_url()));
        add("api_key", json!(session.capability()));
        if gives_reward {
            add("reward_url", json!(session.reward_url()));
        }
    }
    task
}
