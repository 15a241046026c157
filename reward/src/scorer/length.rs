//! `length`: the full score for short responses, and a falling score for longer ones.
//!
//! Let `x = (code points - target) / (max - target)`, clamped to 0..=1. The score is `1 - x` on a linear ramp
//! and `(1 + cos(pi * x)) / 2` on a cosine ramp. The cosine ramp is flat at both ends, so the first code
//! points beyond the target cost little (in the manner of Yeo et al. 2025, "Demystifying Long
//! Chain-of-Thought Reasoning").
//!
//! # Deliberately absent
//! There is no lower bound: an empty response has the full score here. Another part of a rubric has to
//! penalise it. A scorer sees only text, so it does not count tokens; [`crate::Overlong`] does.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use super::{Score, ScoreInput, Scorer};
use crate::RewardError;

/// The shape of the falling score.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ramp {
    /// A straight line.
    #[default]
    Linear,
    /// Half a period of a cosine.
    Cosine,
}

/// Scores 1 up to `target` and 0 from `max` on; between them the score falls on a ramp. `acc` equals the
/// score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Length {
    /// Maximum number of code points that have the full score.
    pub target: usize,
    /// The smallest number of code points that scores 0. If it equals `target`, a response of that length has
    /// the full score.
    pub max: usize,
    /// The shape of the falling score.
    #[serde(default)]
    pub ramp: Ramp,
}

impl Length {
    /// Checks the options.
    pub(super) fn checked(self) -> Result<Self, RewardError> {
        if self.target > self.max {
            let reason = format!("expected at least target={}", self.target);
            return Err(RewardError::invalid("length.max", self.max, reason));
        }
        Ok(self)
    }

    /// The score of a response of `code_points`.
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
