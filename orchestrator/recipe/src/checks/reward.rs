//! Checks of `[reward]` and `[filter]`. The reward crate decides which values are valid.

use std::time::Duration;

use rolldock_agent::RewardBy;
use rolldock_reward::invariants::is_finite_in_32_bits;
use rolldock_reward::{GateRule, Gsm8kMethod, RewardError, ScorerConfig, Shaping, Variant};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as WordError, StrDeserializer};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Checks, TOKENS_MAX, counted};
use crate::sections::key_of;
use crate::{AdvantageEstimator, Recipe, Reward, RewardGuard};

const GRADINGS_MAX: usize = 1 << 12;

pub(super) fn check(recipe: &Recipe, checks: &mut Checks<'_>) {
    let reward = &recipe.reward;
    check_scorer(reward, checks);
    let seconds = Duration::try_from_secs_f64(recipe.timeouts.reward).unwrap_or_default();
    let external = reward.external(seconds);
    let guards_nothing = external.is_none() && reward.guard != RewardGuard::default();
    checks.require(!guards_nothing, "reward.guard", || {
        "it guards rewards from outside; expected one of `python`, `command`, `http`, `judge`, `code` beside it"
            .to_owned()
    });
    if let Some(external) = external {
        // The runner is built only for its errors. It starts nothing before its first job.
        let built = external.build(TaskTracker::new(), CancellationToken::new());
        if let Err(error) = built {
            checks.require(false, &key_of(&error), || words_of(&error));
        }
    }
    if let Err(error) = reward.shaping.check() {
        checks.require(false, "reward.shaping.clip", || words_of(&error));
    }
    if let Err(error) = recipe.filter.gates(&TaskTracker::new(), &CancellationToken::new()) {
        let key = match &error {
            RewardError::Misconfigured { .. } => "filter.outside",
            RewardError::Invalid { what, .. } if what.starts_with("keep_if_short") => "filter.keep_if_short",
            _ => "filter.gates",
        };
        checks.require(false, key, || error.to_string());
    }
    for gate in &recipe.filter.gates {
        let samples = recipe.rollout.samples_per_prompt as usize;
        if let GateRule::MinSamples { samples: needed } = gate.rule {
            checks.require(needed <= samples, "filter.gates", || {
                format!(
                    "min_samples needs samples={needed}, and a group has rollout.samples_per_prompt={samples}"
                )
            });
        }
    }
    check_variance(recipe, checks);
    counted(reward.places, GRADINGS_MAX, "reward.places", checks);
    check_advantage(recipe, checks);
    let Some(overlong) = &reward.overlong else { return };
    // A buffer as long as `max_response_length` or longer is allowed for short trials of a long recipe.
    // `Run::describe` explains its effect.
    counted(overlong.buffer_length as usize, TOKENS_MAX, "reward.overlong.buffer_length", checks);
    let factor = overlong.penalty_factor;
    checks.require(is_finite_in_32_bits(factor) && factor >= 0.0, "reward.overlong.penalty_factor", || {
        format!("expected 0 or more, found {factor}")
    });
}

/// Checks that a gate that compares the samples of a group has samples to compare.
fn check_variance(recipe: &Recipe, checks: &mut Checks<'_>) {
    let filter = &recipe.filter;
    // Groups that such a gate rejects can still fill a short step.
    let rejects_all = filter.enable && filter.compares_samples() && filter.keeps_alike().is_none();
    let is_single = recipe.rollout.samples_per_prompt == 1;
    checks.require(!(is_single && rejects_all), "rollout.samples_per_prompt", || {
        "a single sample never varies, so the filter rejects every group; expected 2 or more, or a filter without the \
         rule \"variance\" (filter.metric = \"none\", or filter.enable = false)"
            .to_owned()
    });
}

/// Checks that an estimator of turns gets the rewards of turns. Also checks that no key changes the rewards
/// of trajectories, because such an estimator does not use them.
fn check_advantage(recipe: &Recipe, checks: &mut Checks<'_>) {
    let reward = &recipe.reward;
    if reward.advantage != AdvantageEstimator::GrpoProcess {
        return;
    }
    let rewards_turns = match &recipe.agent {
        Some(agent) => agent.reward == RewardBy::Agent,
        None => recipe.environment.is_some(),
    };
    checks.require(rewards_turns, "reward.advantage", || {
        "\"grpo_process\" needs the rewards of turns: expected an [environment], or an [agent] with \
         agent.reward = \"agent\""
            .to_owned()
    });
    let of_trajectories = [
        ("reward.overlong", reward.overlong.is_none()),
        ("reward.shaping", reward.shaping == Shaping::default()),
    ];
    for (key, is_absent) in of_trajectories {
        checks.require(is_absent, key, || {
            "it changes the rewards of trajectories, and advantage = \"grpo_process\" takes those of turns: expected \
             none"
                .to_owned()
        });
    }
}

/// The message of an error without its key, because the complaint already names the key.
fn words_of(error: &RewardError) -> String {
    match error {
        RewardError::Misconfigured { expected, found, .. } => format!("expected {expected}, found {found}"),
        other => other.to_string(),
    }
}

fn check_scorer(reward: &Reward, checks: &mut Checks<'_>) {
    if let Err(error) = ScorerConfig::from_name(&reward.scorer)
        && (reward.options.is_empty() || !matches!(error, RewardError::NeedsOptions { .. }))
    {
        return checks.require(false, "reward.scorer", || error.to_string());
    }
    require_word::<Variant>(&reward.variant, "reward.variant", checks);
    require_word::<Gsm8kMethod>(&reward.method, "reward.method", checks);
    if reward.options.is_empty() {
        return;
    }
    let built = reward.scorer_config().map_err(|error| error.to_string());
    if let Err(message) = built.and_then(|config| config.build().map_err(|error| error.to_string())) {
        checks.require(false, "reward.options", || message);
    }
}

/// Checks that the reward crate's type `T` has a value called `word`.
fn require_word<'de, T: Deserialize<'de>>(word: &'de str, key: &str, checks: &mut Checks<'_>) {
    let reader: StrDeserializer<'de, WordError> = word.into_deserializer();
    if let Err(error) = T::deserialize(reader) {
        checks.require(false, key, || error.to_string());
    }
}
