//! Checks of `[fleet]`: servers, permits, and the simulated fleet.

use rolldock_dispatch::modes::RequestShape;
use rolldock_loadbalancer::AdaptiveConfig;
use rolldock_simengine::{ServerConfig, SimError};

use super::{Checks, at_least_one, counted, within};
use crate::{MaxLoads, Recipe, Simulated, Transport};

/// Maximum number of simulated servers, which all run in one process.
const SERVERS_MAX: usize = 1024;

pub(super) fn check(recipe: &Recipe, checks: &mut Checks<'_>) {
    let fleet = &recipe.fleet;
    checks.require(!fleet.endpoints.is_empty() || fleet.simulated.is_some(), "fleet", || {
        "expected `endpoints` with at least one URL, or a `[fleet.simulated]` table".to_owned()
    });
    checks.require(fleet.endpoints.is_empty() || fleet.simulated.is_none(), "fleet.endpoints", || {
        "expected either `endpoints` or `[fleet.simulated]`, found both".to_owned()
    });
    check_endpoints(&fleet.endpoints, checks);
    let servers = fleet.simulated.as_ref().map_or(fleet.endpoints.len(), |simulated| simulated.servers);
    counted(fleet.servers_min, servers.max(1), "fleet.servers_min", checks);
    match (&fleet.max_loads_per_server, recipe.measured_permits()) {
        (MaxLoads::Fixed(loads), _) => check_permits(*loads, "fleet.max_loads_per_server", recipe, checks),
        (MaxLoads::Named(name), Some(adaptive)) if name == "auto" => {
            check_adaptive(&adaptive, checks);
            check_permits(adaptive.min, "fleet.adaptive.min", recipe, checks);
            check_permits(adaptive.unreported, "fleet.adaptive.unreported", recipe, checks);
        }
        (MaxLoads::Named(name), _) => checks.require(false, "fleet.max_loads_per_server", || {
            format!("expected a number of samples, or \"auto\", found {name:?}")
        }),
    }
    let is_served = fleet.simulated.as_ref().is_none_or(|simulated| simulated.transport == Transport::Http);
    for (key, is_given) in [("fleet.file", fleet.file.is_some()), ("fleet.admin", fleet.admin.is_some())] {
        checks.require(!is_given || is_served, key, || {
            "the servers of [fleet.simulated] are in this process: no server can join or leave".to_owned()
        });
    }
    let file_is_named = fleet.file.as_ref().is_none_or(|file| !file.as_os_str().is_empty());
    checks.require(file_is_named, "fleet.file", || "expected a file".to_owned());
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

/// Checks that the largest request fits. A request acquires all of its permits together, so a request with
/// more samples than the limit would never get them.
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
    counted(simulated.servers, SERVERS_MAX, "fleet.simulated.servers", checks);
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
    // Only the engine's keys can be wrong here, because the other values are the defaults.
    let server = simulated.engine.unwrap_or_default().configure(ServerConfig::default());
    if let Err(SimError::Config { key, reason }) = server.validate() {
        checks.require(false, &format!("fleet.simulated.engine.{key}"), || reason);
    }
}
