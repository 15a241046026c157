//! `length`: full score for short responses, less and less for longer ones.
//!
//! With `x = (code points - target) / (max - target)`, cut to 0..=1, the score is `1 - x` on a linear ramp and
//! `(1 + cos(pi * x)) / 2` on a cosine one, which hardly punishes the first tokens beyond the target and is flat at
//! both ends (in the manner of Yeo et al. 2025, "Demystifying Long Chain-of-Thought Reasoning").
//!
//! # Deliberately absent
//! A lower bound: an empty response has the full score here, and a rubric's other parts say that it is wrong.
//! Tokens: a scorer sees text; [`crate::Overlong`] counts tokens.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use super::{Score, ScoreInput, Scorer};
use crate::RewardError;

/// How the score falls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ramp {
    /// Evenly.
    #[default]
    Linear,
    /// Half a wave of a cosine.
    Cosine,
}

/// 1 up to `target`, 0 from `max` on, a ramp between them; `acc` is the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Length {
    /// Most code points with the full score.
    pub target: usize,
    /// Fewest code points without any score, unless `target` is as many: then that many have the full one.
    pub max: usize,
    /// See [`Ramp`].
    #[serde(default)]
    pub ramp: Ramp,
}

impl Length {
    /// Itself, when its options can be used.
    pub(super) fn checked(self) -> Result<Self, RewardError> {
        if self.target > self.max {
            let reason = format!("expected at least target={}", self.target);
            return Err(RewardError::invalid("length.max", self.max, reason));
        }
        Ok(self)
    }

    /// The score of so many code points.
    pub fn of(&self, code_points: usize) -> f64 {
        if code_points <= self.target {
            return 1.0;
        }
        if code_points >= self.max {
            return 0.0;
        }
        let beyond = (code_points - self.target) as f64 / (self.max - self.target) as f64;
        match self.ramp {
            Ramp::Linear => 1.0 - beyond,
            Ramp::Cosine => f64::midpoint(1.0, (PI * beyond).cos()),
        }
    }
}

impl Scorer for Length {
    fn name(&self) -> &'static str {
        "length"
    }

    fn tail_code_points(&self) -> Option<usize> {
        None
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError> {
        let score = self.of(input.response.chars().count());
        Ok(Score { score, acc: score, ..Score::default() })
    }
}
