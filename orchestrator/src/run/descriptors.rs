//! The file descriptors of a run: the descriptors that it reserves for its files, and the number that its
//! recipe may need.
//!
//! A request to a server waits if there is no free descriptor. So a run with too few descriptors for its
//! requests is slow, but it works. A run with too few descriptors for everything else cannot start.

use anyhow::bail;
use rustix::process::{Resource, getrlimit};

use super::convert::seconds;
use crate::process::{held_files, hold_for_files, threads_default};
use crate::recipe::{MaxLoads, Recipe, Simulated, Transport};

/// Descriptors that every run has open: for its streams, runtime, logs, ledger, data and listeners.
const PROCESS: u64 = 64;
/// Connections to a server besides its requests: probes, control calls and weight updates.
const CALLS_PER_SERVER: u64 = 4;
/// Connections that clients make to one listener.
const CLIENTS: u64 = 64;
/// Pipes and handles of one program that grades.
const PER_GRADING: u64 = 4;
/// Pipes, handles and connections of one agent.
const PER_AGENT: u64 = 6;
/// Concurrent gradings of an outside reward without `reward.guard.concurrency`.
const GRADINGS: u64 = 64;

/// The maximum number of descriptors that a recipe may need at a time, by use.
#[derive(Debug, PartialEq, Eq)]
struct Demand {
    files: u64,
    rewards: u64,
    agents: u64,
    listeners: u64,
    calls: u64,
    requests: u64,
}

/// The number of consumers and serving threads of a run that read segments.
fn readers(recipe: &Recipe) -> usize {
    let serving = if recipe.queue.listen.is_some() { threads_default() } else { 0 };
    serving + usize::from(recipe.queue.consumer.is_some())
}

impl Demand {
    fn of(recipe: &Recipe) -> Self {
        let (servers, per_request) = match &recipe.fleet.simulated {
            // Both ends of a connection are in this process.
            Some(Simulated { servers, transport: Transport::Http, .. }) => (*servers as u64, 2),
            Some(_) => (0, 0),
            None => (recipe.fleet.endpoints.len() as u64, 1),
        };
        let queue = &recipe.queue;
        let listens = [queue.listen.is_some(), recipe.policy.listen.is_some(), recipe.fleet.admin.is_some()];
        let outside = recipe.reward.external(seconds(recipe.timeouts.reward));
        let agents = recipe.agent.as_ref().map_or(0, |agent| agent.concurrency as u64);
        let gradings = recipe.reward.guard.concurrency.map_or(GRADINGS, |jobs| jobs as u64);
        Self {
            files: PROCESS + held_files(readers(recipe)) as u64,
            rewards: outside.map_or(0, |_| gradings.min(recipe.reward.places as u64) * PER_GRADING),
            agents: agents.min(samples(recipe)) * PER_AGENT,
            listeners: listens.into_iter().filter(|listens| *listens).count() as u64 * CLIENTS,
            calls: servers * CALLS_PER_SERVER * per_request,
            requests: requests(recipe, servers) * per_request,
        }
    }

    /// The minimum for a start: all descriptors except those for requests, plus a number for requests that
    /// equals the number for calls.
    fn least(&self) -> u64 {
        self.files + self.rewards + self.agents + self.listeners + 2 * self.calls
    }

    fn most(&self) -> u64 {
        self.files + self.rewards + self.agents + self.listeners + self.calls + self.requests
    }
}

/// The maximum number of requests that are open at a time. Permits and samples both bound it.
fn requests(recipe: &Recipe, servers: u64) -> u64 {
    let fleet = &recipe.fleet;
    let per_server = match fleet.max_loads_per_server {
        MaxLoads::Fixed(loads) => loads,
        MaxLoads::Named(_) => recipe.measured_permits().unwrap_or_default().max,
    };
    let permits = servers * u64::from(per_server);
    let permits = fleet.max_loads_total.map_or(permits, |total| permits.min(u64::from(total)));
    permits.min(samples(recipe))
}

/// The maximum number of samples that run at a time.
fn samples(recipe: &Recipe) -> u64 {
    let rollout = &recipe.rollout;
    let validated = recipe.validation.as_ref().map_or(0, |validation| validation.samples_per_prompt);
    let per_prompt = u64::from(rollout.samples_per_prompt.max(validated));
    (rollout.workers * rollout.max_concurrent_prompts) as u64 * per_prompt
}

impl std::fmt::Display for Demand {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { files, rewards, agents, listeners, calls, requests } = self;
        write!(
            formatter,
            "{requests} for requests to servers, {calls} for other calls to them, {listeners} for clients, \
             {rewards} for rewards, {agents} for agents, {files} for files"
        )
    }
}

/// Checks the recipe's demand against the limit of this process, and reserves descriptors for the run's
/// files.
///
/// # Errors
/// Returns an error if the limit is below the minimum for a start. If the limit is only too low for all
/// requests at the same time, logs a warning.
pub(super) fn prepare(recipe: &Recipe) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if let Some(words) = checked(&Demand::of(recipe), limit)? {
        tracing::warn!("{words}");
    }
    hold_for_files(readers(recipe));
    Ok(())
}

fn checked(demand: &Demand, limit: u64) -> anyhow::Result<Option<String>> {
    let most = demand.most();
    if most <= limit {
        return Ok(None);
    }
    let words = format!(
        "the recipe may have {most} file descriptors open at a time ({demand}), and this process may open {limit}: \
         set `ulimit -n {most}`, or lower fleet.max_loads_per_server or fleet.max_loads_total"
    );
    let least = demand.least();
    if least > limit {
        bail!("{words}; at least {least} are needed");
    }
    Ok(Some(format!("{words}; until then requests wait for descriptors")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMAND: Demand =
        Demand { files: 96, rewards: 0, agents: 0, listeners: 64, calls: 16, requests: 4096 };

    #[test]
    fn too_few_descriptors_for_requests_are_a_warning_with_the_limit_to_set() {
        assert_eq!(checked(&DEMAND, 4272).unwrap(), None);
        let warning = checked(&DEMAND, 1024).unwrap().unwrap();
        for words in ["4272", "1024", "`ulimit -n 4272`", "fleet.max_loads_total", "4096 for requests"] {
            assert!(warning.contains(words), "{words}: {warning}");
        }
    }

    #[test]
    fn too_few_descriptors_for_the_rest_are_an_error_with_the_needed_number() {
        let error = checked(&DEMAND, 128).unwrap_err().to_string();
        assert!(error.contains("at least 192 are needed") && error.contains("may open 128"), "{error}");
    }
}
