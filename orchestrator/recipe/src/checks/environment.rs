//! Checks of `[environment]`, and of keys that have no meaning for trajectories.

use rolldock_dispatch::modes::{OnStop, RequestShape};
use rolldock_environment::EnvironmentError;

use super::Checks;
use crate::Recipe;

pub(super) fn check(recipe: &Recipe, checks: &mut Checks<'_>) {
    let Some(environment) = &recipe.environment else { return };
    if let Err(EnvironmentError::Misconfigured { key, expected, found }) = environment.check() {
        checks
            .require(false, &format!("environment.{key}"), || format!("expected {expected}, found {found}"));
    }
    let rollout = &recipe.rollout;
    checks.require(rollout.on_stop != OnStop::Carry, "rollout.on_stop", || {
        "a trajectory that is cut off cannot go on from its tokens; with [environment], expected \"requeue\" or \
         \"discard\""
            .to_owned()
    });
    checks.require(rollout.request == RequestShape::Sample, "rollout.request", || {
        "each turn of a trajectory is a request of its own; with [environment], expected \"sample\""
            .to_owned()
    });
    checks.require(recipe.model.chat_template != "none", "model.chat_template", || {
        "the messages of an environment need a chat template; with [environment], expected \"auto\" or a file"
            .to_owned()
    });
}
