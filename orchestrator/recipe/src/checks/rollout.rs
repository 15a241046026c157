//! Checks of the keys for work that is cut off or stopped, and of the bias guard.

use rolldock_dispatch::modes::{OnStop, RequestShape, StopUnlikely};

use super::{Checks, SECONDS_MAX};
use crate::Recipe;

/// Maximum of `segments_max`. With more requests, a response would consist of very short segments.
const SEGMENTS_MAX: u32 = 4096;

/// The least share of unlikely groups that run on. With a smaller share single groups would have weights that no mean
/// over a batch can bear.
const RUN_ON_MIN: f64 = 0.01;

/// Seconds that a group needs to return the tokens from its engine.
const HAND_OVER: f64 = 1.0;

pub(super) fn check_cut_off(recipe: &Recipe, checks: &mut Checks<'_>) {
    let rollout = &recipe.rollout;
    let carry = &rollout.carry;
    let resumes_one_by_one = rollout.on_stop != OnStop::Carry || rollout.request == RequestShape::Sample;
    checks.require(resumes_one_by_one, "rollout.on_stop", || {
        "samples are resumed one by one: \"carry\" expects rollout.request = \"sample\"".to_owned()
    });
    checks.require((1..=SEGMENTS_MAX).contains(&carry.segments_max), "rollout.carry.segments_max", || {
        format!("expected 1 to {SEGMENTS_MAX}, found {}", carry.segments_max)
    });
    checks.require(carry.grace > 0.0 && carry.grace <= SECONDS_MAX, "rollout.carry.grace", || {
        format!("expected seconds, above 0 and at most {SECONDS_MAX}, found {}", carry.grace)
    });
    // A request that is aborted at the end of the drain returns no tokens.
    let drain = recipe.timeouts.drain;
    let hands_over = rollout.on_stop != OnStop::Carry || carry.grace + HAND_OVER <= drain;
    checks.require(hands_over, "rollout.carry.grace", || {
        format!("expected at most timeouts.drain={drain} less {HAND_OVER} s, found {}", carry.grace)
    });
    if let Some(guard) = &rollout.bias_guard {
        checks.require(guard.share > 0.0 && guard.share < 1.0, "rollout.bias_guard.share", || {
            format!("expected a share above 0 and below 1, found {}", guard.share)
        });
    }
    check_bias_audit(recipe, checks);
    check_stop_unlikely(recipe, checks);
    let confidence = rollout.launch_confidence;
    checks.require((0.5..1.0).contains(&confidence), "rollout.launch_confidence", || {
        format!("expected a probability from 0.5 to below 1, found {confidence}")
    });
}

fn check_stop_unlikely(recipe: &Recipe, checks: &mut Checks<'_>) {
    let Some(StopUnlikely { below, run_on }) = recipe.rollout.stop_unlikely else { return };
    checks.require(below > 0.0 && below < 1.0, "rollout.stop_unlikely.below", || {
        format!("expected a probability above 0 and below 1, found {below}")
    });
    checks.require((RUN_ON_MIN..1.0).contains(&run_on), "rollout.stop_unlikely.run_on", || {
        format!("expected a share from {RUN_ON_MIN} to below 1, found {run_on}")
    });
    checks.require(recipe.filter.enable, "rollout.stop_unlikely", || {
        "without [filter] every group is accepted, and none is unlikely to be".to_owned()
    });
    checks.require(recipe.filter.compares_samples() || !recipe.filter.enable, "rollout.stop_unlikely", || {
        "no gate compares the samples of a group, so finished samples that are alike prove nothing: expected \
         filter.metric = \"acc\" or \"reward\", or a gate with the rule \"variance\"; found filter.metric = \"none\""
            .to_owned()
    });
    if let Some(gate) = recipe.filter.keeps_alike() {
        checks.require(false, "rollout.stop_unlikely", || {
            format!(
                "groups whose samples are alike are stopped before a short step could keep them: expected \
                 filter.keep_if_short without \"{gate}\""
            )
        });
    }
    let ends_one_by_one = recipe.rollout.request == RequestShape::Sample;
    checks.require(ends_one_by_one, "rollout.stop_unlikely", || {
        "the samples of a request end together: expected rollout.request = \"sample\"".to_owned()
    });
}

fn check_bias_audit(recipe: &Recipe, checks: &mut Checks<'_>) {
    let rollout = &recipe.rollout;
    checks.require((0.0..=1.0).contains(&rollout.bias_audit), "rollout.bias_audit", || {
        format!("expected a share from 0 to 1, found {}", rollout.bias_audit)
    });
    let needs_audit = rollout.early_stop.discards_long_groups(rollout.on_stop);
    let is_measured = rollout.bias_guard.is_none() || !needs_audit || rollout.bias_audit > 0.0;
    checks.require(is_measured, "rollout.bias_audit", || {
        format!(
            "early_stop = \"{}\" with on_stop = \"discard\" leaves nothing from which rollout.bias_guard could \
             know the bias: expected a share above 0, such as 0.05",
            rollout.early_stop
        )
    });
}
