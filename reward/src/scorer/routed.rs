//! The scorer that a row's `data_source` names, as verl routes.

use super::{Gsm8k, Gsm8kMethod, Math, MathDapo, Score, ScoreInput, Scorer};
use crate::RewardError;

const KNOWN: &str = "openai/gsm8k, lighteval/MATH, DigitalLearningGmbH/MATH-lighteval, HuggingFaceH4/MATH-500, \
                     math_dapo, math, math_dapo_reasoning, aime*, DAPO-17k, rolldock/arithmetic";

/// See the module's documentation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Routed {
    gsm8k: Gsm8k,
    math: Math,
    math_dapo: MathDapo,
}

impl Routed {
    /// A router whose GSM8K scorer uses `method`.
    pub fn new(method: Gsm8kMethod, math_dapo: MathDapo) -> Self {
        Self { gsm8k: Gsm8k { method }, math: Math, math_dapo }
    }
}

impl Scorer for Routed {
    fn name(&self) -> &'static str {
        "routed"
    }

    fn tail_code_points(&self) -> Option<usize> {
        None
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError> {
        match input.data_source {
            "openai/gsm8k" => self.gsm8k.score(input),
            "lighteval/MATH" | "DigitalLearningGmbH/MATH-lighteval" | "HuggingFaceH4/MATH-500" => {
                self.math.score(input)
            }
            "math_dapo" | "math" | "math_dapo_reasoning" | "DAPO-17k" | "rolldock/arithmetic" => {
                self.math_dapo.score(input)
            }
            source if source.starts_with("aime") => self.math_dapo.score(input),
            source => Err(RewardError::UnknownSource { data_source: source.to_owned(), known: KNOWN }),
        }
    }
}
