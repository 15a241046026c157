//! Scores each row by the scorer that verl chooses for its `data_source`.
//!
//! If verl's scorer of a source has no exact counterpart in this crate, scoring the row fails. The error
//! names what to configure instead. An approximation would be a different reward under the same name.

use super::{Gsm8k, Gsm8kMethod, Math, MathDapo, Score, ScoreInput, Scorer, search_qa};
use crate::RewardError;

const KNOWN: &str = "openai/gsm8k, lighteval/MATH, DigitalLearningGmbH/MATH-lighteval, HuggingFaceH4/MATH-500, \
                     math_dapo, math, math_dapo_reasoning, aime*, DAPO-17k, searchR1_*, rolldock/arithmetic";

/// If verl's scorer of a source has no counterpart here: the name of that scorer, and what to configure
/// instead. `None` for other sources.
fn elsewhere(source: &str) -> Option<(&'static str, &'static str)> {
    match source {
        "codecontests" | "apps" | "codeforces" | "taco" => {
            Some(("prime_code or sandbox_fusion", "set reward.code, which runs the row's tests in a sandbox"))
        }
        "hiyouga/geometry3k" => {
            Some(("geo3k", "set reward.scorer to \"math_equiv\", or reward.python to verl's own function"))
        }
        numina if numina.starts_with("numina_") => Some((
            "prime_math",
            "set reward.scorer to \"math_equiv\", or reward.python to verl's own function",
        )),
        _ => None,
    }
}

/// Chooses the scorer by `data_source`.
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
            source if source.starts_with("searchR1_") => Ok(search_qa::score(input)),
            source => Err(match elsewhere(source) {
                Some((verl, instead)) => {
                    RewardError::SourceElsewhere { data_source: source.to_owned(), verl, instead }
                }
                None => RewardError::UnknownSource { data_source: source.to_owned(), known: KNOWN },
            }),
        }
    }
}
