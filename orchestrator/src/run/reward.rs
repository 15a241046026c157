//! Makes what grades a run's samples: its scorer or its external reward, and the gates of its filter.

use std::sync::Arc;

use anyhow::Context;
use rolldock_reward::{Gates, Overlong, RewardRunner};

use super::convert::seconds;
use crate::data::TextCodec;
use crate::recipe::Recipe;
use crate::rollout::{Grading, OutsideGrader, TextGrader};
use crate::scope::Scope;

/// The reward of a run; training and validation share it and its runner.
pub(super) struct Reward {
    pub(super) grading: Grading,
    /// The gates of training; validation filters nothing.
    pub(super) gates: Arc<Gates>,
    outside: Option<Arc<dyn RewardRunner>>,
}

impl Reward {
    /// Builds the reward of a run. No external scorer is asked or started yet; tasks that are started later
    /// end with `scope`.
    pub(super) fn open(recipe: &Recipe, codec: &Arc<TextCodec>, scope: &Scope) -> anyhow::Result<Self> {
        let overlong = overlong(recipe);
        let codec = Arc::clone(codec);
        let places = recipe.reward.places;
        let gates = recipe.filter.gates(scope.tracker(), scope.token()).context("filter")?;
        let gates = Arc::new(gates);
        let Some(external) = recipe.reward.external(seconds(recipe.timeouts.reward)) else {
            let config = recipe.reward.scorer_config().context("reward.scorer")?;
            let scorer = config.build().context("reward.scorer")?;
            let grader = Arc::new(TextGrader::new(codec, scorer, overlong));
            return Ok(Self { grading: Grading::Pool { grader, places }, gates, outside: None });
        };
        let runner = external.build(scope.tracker().clone(), scope.token().clone()).context("reward")?;
        let grader = OutsideGrader { codec, runner: Arc::clone(&runner), overlong };
        Ok(Self { grading: Grading::Outside { grader, places }, gates, outside: Some(runner) })
    }

    /// Checks that the reward and the gates can be used at all, so that a failure is known before the first
    /// step. Cancel-safe.
    pub(super) async fn check(&self) -> anyhow::Result<()> {
        if let Some(outside) = &self.outside {
            outside.check().await.context("the reward cannot be used")?;
        }
        self.gates.check_outside().await.context("a gate of the filter cannot be used")
    }
}

fn overlong(recipe: &Recipe) -> Option<Overlong> {
    let shaping = recipe.reward.overlong.as_ref()?;
    Some(Overlong {
        max_response_length: recipe.rollout.max_response_length,
        buffer_length: shaping.buffer_length,
        penalty_factor: shaping.penalty_factor,
    })
}
