//! Checks of `[policy]`: where versions are announced, and how servers get the weights.

use rolldock_policy::{PolicyMode, PolicyUpdate, UpdateMethod};

use super::Checks;
use crate::{Origin, Recipe, Transport};

/// Maximum of `max_staleness` and `steps_per_version`. A larger bound is not useful, and its product with the
/// groups of a step could overflow.
const STALENESS_MAX: u64 = 1 << 20;
/// The maximum of each time-out, in seconds. Calls to servers always end after an hour.
const SECONDS_MAX: f64 = 3600.0;

pub(super) fn check(recipe: &Recipe, checks: &mut Checks<'_>) {
    let policy = &recipe.policy;
    if checks.origin != Origin::Simulated {
        check_announcements(recipe, checks);
    }
    let staleness_min = u64::from(matches!(policy.mode, PolicyMode::OneStepOff | PolicyMode::FullyAsync));
    let staleness = policy.staleness_max();
    checks.require((staleness_min..=STALENESS_MAX).contains(&staleness), "policy.max_staleness", || {
        format!(
            "expected {staleness_min} to {STALENESS_MAX} with mode = \"{}\", found {staleness}",
            policy.mode
        )
    });
    checks.require(
        (1..=STALENESS_MAX).contains(&policy.steps_per_version),
        "policy.steps_per_version",
        || format!("expected 1 to {STALENESS_MAX}, found {}", policy.steps_per_version),
    );
    checks.require(policy.listen.is_none() || policy.address().is_some(), "policy.listen", || {
        format!(
            "expected an address and a port, for example \"127.0.0.1:7401\", found {:?}",
            policy.listen.as_deref().unwrap_or_default()
        )
    });
    checks.require(policy.token.as_ref().is_none_or(|token| !token.is_empty()), "policy.token", || {
        "expected a token that cannot be guessed".to_owned()
    });
    let watch_is_named = policy.watch.as_ref().is_none_or(|watch| !watch.as_os_str().is_empty());
    checks.require(watch_is_named, "policy.watch", || "expected a directory".to_owned());
    let can_transfer = policy.watch.is_none() || policy.update.method != UpdateMethod::Transfer;
    checks.require(can_transfer, "policy.watch", || {
        "a marker file says nothing about a transfer (policy.update.method = \"transfer\"); expected `policy.listen` \
         instead"
            .to_owned()
    });
    check_method(&policy.update, checks);
    check_workers(recipe, checks);
    check_timeouts(&policy.update, checks);
}

/// Checks that the mode and the ways of announcing versions agree.
fn check_announcements(recipe: &Recipe, checks: &mut Checks<'_>) {
    let policy = &recipe.policy;
    match policy.mode {
        PolicyMode::Sync => {
            checks.require(recipe.names_announcer(), "policy.mode", || {
                "mode = \"sync\" waits for the trainer's next version after every step, and the recipe does not \
                 say how the trainer announces it; expected policy.listen, policy.watch or a [queue.consumer] \
                 that announces, or policy.mode = \"off\" for a run without a trainer"
                    .to_owned()
            });
        }
        PolicyMode::Off => {
            let is_without = "mode = \"off\" is for runs without a trainer; expected no announcements, or mode = \
                              \"sync\", \"one_step_off\" or \"fully_async\"";
            for (is_given, key) in [
                (policy.listen.is_some(), "policy.listen"),
                (policy.watch.is_some(), "policy.watch"),
                (recipe.own_trainer().is_some(), "queue.consumer.announces"),
            ] {
                checks.require(!is_given, key, || is_without.to_owned());
            }
        }
        PolicyMode::OneStepOff | PolicyMode::FullyAsync => {}
    }
}

/// Checks that the method has the keys that it needs, and no keys of other methods.
fn check_method(update: &PolicyUpdate, checks: &mut Checks<'_>) {
    let method = update.method;
    let only_for = |other: &str| format!("it is for method = \"{other}\"; found method = \"{method}\"");
    checks.require(!update.rpc.is_empty(), "policy.update.rpc", || {
        "expected the name of a method of the servers' workers".to_owned()
    });
    if method == UpdateMethod::Command {
        let has_program = update.command.first().is_some_and(|program| !program.is_empty());
        checks.require(has_program, "policy.update.command", || {
            "expected a program and its arguments, as a list of strings".to_owned()
        });
    } else {
        checks.require(update.command.is_empty(), "policy.update.command", || only_for("command"));
    }
    match &update.url {
        Some(_) if method != UpdateMethod::Http => {
            checks.require(false, "policy.update.url", || only_for("http"));
        }
        None if method != UpdateMethod::Http => {}
        found => {
            let url = found.as_deref().unwrap_or_default();
            let is_http = url::Url::parse(url).is_ok_and(|parsed| parsed.scheme() == "http");
            checks.require(is_http, "policy.update.url", || {
                format!("expected a URL like http://host:port/path, found {url:?}")
            });
        }
    }
}

/// Checks that the servers have the workers that the method calls. Simulated servers in this process have none, so no
/// version would reach them, and the run would wait for the first one forever.
fn check_workers(recipe: &Recipe, checks: &mut Checks<'_>) {
    let Some(simulated) = &recipe.fleet.simulated else { return };
    let method = recipe.policy.update.method;
    let calls_workers = matches!(method, UpdateMethod::Reload | UpdateMethod::Transfer);
    let is_called = calls_workers && recipe.is_announced_to() && checks.origin != Origin::Simulated;
    checks.require(!is_called || simulated.transport == Transport::Http, "policy.update.method", || {
        format!(
            "method = \"{method}\" calls the servers' workers, and simulated servers in this process have none; \
             expected fleet.simulated.transport = \"http\", or method = \"none\""
        )
    });
}

fn check_timeouts(update: &PolicyUpdate, checks: &mut Checks<'_>) {
    let timeouts = &update.timeouts;
    for (value, key) in [
        (timeouts.pause, "pause"),
        (timeouts.update, "update"),
        (timeouts.reset, "reset"),
        (timeouts.label, "label"),
        (timeouts.resume, "resume"),
        (timeouts.check, "check"),
    ] {
        checks.require(value > 0.0 && value <= SECONDS_MAX, &format!("policy.update.timeouts.{key}"), || {
            format!("expected seconds, above 0 and at most {SECONDS_MAX}, found {value}")
        });
    }
}
