//! Creates the components that grade a run's samples: its scorer or its external reward, and the gates of its
//! filter.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rolldock_reward::{Gates, Overlong, RewardRunner};

use super::convert::seconds;
use crate::data::{Prompt, TextCodec};
use crate::recipe::Recipe;
use crate::rollout::{Grading, OutsideGrader, TextGrader, gate_row, probe_job};
use crate::scope::Scope;

/// The reward of a run. Training and validation share the reward and its runner.
pub(super) struct Reward {
    pub(super) grading: Grading,
    /// The gates of training. Validation filters nothing.
    pub(super) gates: Arc<Gates>,
    outside: Option<Arc<dyn RewardRunner>>,
    samples_per_prompt: usize,
}

impl Reward {
    /// Builds the reward of a run. No external scorer is called or started yet. Tasks that are started later
    /// end with `scope`.
    pub(super) fn open(recipe: &Recipe, codec: &Arc<TextCodec>, scope: &Scope) -> anyhow::Result<Self> {
        let overlong = overlong(recipe);
        let codec = Arc::clone(codec);
        let places = recipe.reward.places;
        let samples_per_prompt = recipe.rollout.samples_per_prompt as usize;
        let gates = recipe.filter.gates(scope.tracker(), scope.token()).context("filter")?;
        let gates = Arc::new(gates);
        let Some(external) = recipe.reward.external(seconds(recipe.timeouts.reward)) else {
            let config = recipe.reward.scorer_config().context("reward.scorer")?;
            let scorer = config.build().context("reward.scorer")?;
            let grader = Arc::new(TextGrader::new(codec, scorer, overlong));
            let grading = Grading::Pool { grader, places };
            return Ok(Self { grading, gates, outside: None, samples_per_prompt });
        };
        let runner = external.build(scope.tracker().clone(), scope.token().clone()).context("reward")?;
        let grader = OutsideGrader { codec, runner: Arc::clone(&runner), overlong };
        let grading = Grading::Outside { grader, places };
        Ok(Self { grading, gates, outside: Some(runner), samples_per_prompt })
    }

    /// Checks that the reward and the gates can be used and answer, so that a failure is found before the
    /// first step. They are called with `prompt`, a row of the data. Cancel-safe.
    pub(super) async fn check(&self, prompt: &Prompt) -> anyhow::Result<()> {
        if let Some(outside) = &self.outside {
            outside.check().await.context("the reward cannot be used")?;
            outside.probe(&probe_job(prompt)).await.context("the reward cannot be used")?;
        }
        let asked = self.gates.check_outside(&gate_row(prompt), self.samples_per_prompt).await;
        asked.context("a gate of the filter cannot be used")
    }

    /// Whether the reward or a gate is outside of this process.
    pub(super) fn is_outside(&self) -> bool {
        self.outside.is_some() || self.gates.has_outside()
    }

    /// The number of outages of the reward and the gates, and their total duration.
    pub(super) fn outages(&self) -> (u64, Duration) {
        let mut watched = self.gates.outside_health();
        watched.extend(self.outside.as_ref().and_then(|outside| outside.health()));
        watched.iter().fold((0, Duration::ZERO), |(outages, out), health| {
            let health = health.borrow();
            (outages + health.outages, out + health.out)
        })
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
