//! Checks of `[agent]` and `[gateway]`.

use rolldock_dispatch::modes::{OnStop, RequestShape};

use rolldock_agent::{AgentConfig, TASKS_PARTITION};

use super::Checks;
use crate::{Origin, Recipe, Transport};

pub(super) fn check(recipe: &Recipe, checks: &mut Checks<'_>) {
    for (key, message) in recipe.gateway.iter().flat_map(|gateway| gateway.faults()) {
        checks.require(false, &format!("gateway.{key}"), || message);
    }
    let Some(agent) = &recipe.agent else {
        checks.require(recipe.gateway.is_none(), "gateway", || {
            "the gateway serves the agents of a run: expected an [agent] table too".to_owned()
        });
        return;
    };
    for (key, message) in agent.faults() {
        checks.require(false, &format!("agent.{key}"), || message);
    }
    check_remote(recipe, agent, checks);
    checks.require(recipe.environment.is_none(), "environment", || {
        "a sample is made either by an agent or in an environment: expected [agent] or [environment], found both"
            .to_owned()
    });
    let rollout = &recipe.rollout;
    checks.require(rollout.on_stop != OnStop::Carry, "rollout.on_stop", || {
        "an agent cannot be continued from tokens: expected \"requeue\" or \"discard\" with [agent]"
            .to_owned()
    });
    checks.require(rollout.request == RequestShape::Sample, "rollout.request", || {
        "each agent makes its own requests: expected \"sample\" with [agent]".to_owned()
    });
    checks.require(rollout.sampling.stop_token_ids.is_empty(), "rollout.sampling.stop_token_ids", || {
        "the agent decides where its turns end: expected none with [agent]".to_owned()
    });
    checks.require(recipe.model.chat_template != "none", "model.chat_template", || {
        "an agent calls the model with messages: expected \"auto\" or a file with [agent]".to_owned()
    });
    let is_served = recipe.fleet.simulated.as_ref().is_none_or(|fleet| fleet.transport == Transport::Http);
    // `rolldock simulate` refuses the whole table.
    checks.require(is_served || checks.origin == Origin::Simulated, "fleet.simulated.transport", || {
        "agents call servers over HTTP: expected \"http\" with [agent]".to_owned()
    });
}

/// Checks that agents that run elsewhere can reach the queue and the gateway.
fn check_remote(recipe: &Recipe, agent: &AgentConfig, checks: &mut Checks<'_>) {
    if !agent.remote {
        return;
    }
    checks.require(recipe.queue.listen.is_some(), "queue.listen", || {
        "agents elsewhere take their tasks from the queue: expected an address with agent.remote".to_owned()
    });
    checks.require(recipe.queue.partition != TASKS_PARTITION, "queue.partition", || {
        format!("the tasks of agents are in the partition {TASKS_PARTITION:?}; expected another name")
    });
    let gateway = recipe.gateway.clone().unwrap_or_default();
    // Agents on this machine take their tasks from a queue on the loopback interface.
    let is_queue_local = recipe.queue.address().is_none_or(|queue| queue.ip().is_loopback());
    let listen = gateway.listen.ip();
    let is_reachable = !listen.is_unspecified() && (is_queue_local || !listen.is_loopback());
    checks.require(gateway.advertise.is_some() || is_reachable, "gateway.advertise", || {
        format!(
            "expected the URL at which agents on other machines reach the gateway, because they cannot reach it at \
             gateway.listen={}",
            gateway.listen
        )
    });
}
