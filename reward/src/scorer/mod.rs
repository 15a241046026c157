//! Scorers of verifiable answers.

mod boxed;
mod gsm8k;
mod math;
mod math_dapo;
pub mod math_equiv;
mod rewrites;
mod routed;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::RewardError;

pub use gsm8k::{Gsm8k, Gsm8kMethod};
pub use math::Math;
pub use math_dapo::{MathDapo, Variant, normalize};
pub use math_equiv::MathEquiv;
pub use routed::Routed;

/// What is scored.
#[derive(Debug, Clone, Copy)]
pub struct ScoreInput<'a> {
    /// The response, or at least as much of its end as [`Scorer::tail_code_points`] asks for.
    pub response: &'a str,
    /// The right answer.
    pub ground_truth: &'a str,
    /// Where the row comes from.
    pub data_source: &'a str,
    /// The row's other fields.
    pub extra: Option<&'a serde_json::Value>,
}

/// What a response is worth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The reward before shaping; its range is the scorer's.
    pub score: f64,
    /// 1 when the answer is right, 0 when not.
    pub acc: f64,
    /// The answer that was found.
    pub pred: Option<String>,
}

/// Scores one response.
pub trait Scorer: Send + Sync + 'static {
    /// As recipes name it.
    fn name(&self) -> &'static str;

    /// How many code points of a response's end decide its score; `None` when all do. Callers may cut the rest off
    /// before they decode it.
    fn tail_code_points(&self) -> Option<usize>;

    /// The score; an error only for input that has none, never for a response.
    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError>;
}

/// A scorer by name and options, as a recipe has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "scorer", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScorerConfig {
    /// See [`MathDapo`].
    MathDapo {
        /// "2025" or "2026".
        #[serde(default)]
        variant: Variant,
        /// Only the last `\boxed{}` counts, as text.
        #[serde(default)]
        strict_box: bool,
    },
    /// See [`Gsm8k`].
    Gsm8k {
        /// "strict" or "flexible".
        #[serde(default)]
        method: Gsm8kMethod,
    },
    /// See [`Math`]; the braces make serde refuse unknown keys here too.
    Math {},
    /// See [`MathEquiv`].
    MathEquiv {},
    /// See [`Routed`].
    Routed {
        /// Of the rows that go to [`Gsm8k`].
        #[serde(default)]
        method: Gsm8kMethod,
        /// Of the rows that go to [`MathDapo`].
        #[serde(default)]
        variant: Variant,
        /// Of the rows that go to [`MathDapo`].
        #[serde(default)]
        strict_box: bool,
    },
}

impl ScorerConfig {
    /// The scorer of a name, with its default options.
    pub fn from_name(name: &str) -> Result<Self, RewardError> {
        match name {
            "math_dapo" => Ok(Self::MathDapo { variant: Variant::default(), strict_box: false }),
            "gsm8k" => Ok(Self::Gsm8k { method: Gsm8kMethod::default() }),
            "math" => Ok(Self::Math {}),
            "math_equiv" => Ok(Self::MathEquiv {}),
            "routed" => Ok(Self::Routed {
                method: Gsm8kMethod::default(),
                variant: Variant::default(),
                strict_box: false,
            }),
            _ => Err(RewardError::Unknown {
                what: "scorer",
                name: name.to_owned(),
                known: "math_dapo, gsm8k, math, math_equiv, routed",
            }),
        }
    }

    /// The scorer.
    pub fn build(&self) -> Arc<dyn Scorer> {
        match self {
            Self::MathDapo { variant, strict_box } => {
                Arc::new(MathDapo { variant: *variant, strict_box: *strict_box })
            }
            Self::Gsm8k { method } => Arc::new(Gsm8k { method: *method }),
            Self::Math {} => Arc::new(Math),
            Self::MathEquiv {} => Arc::new(MathEquiv),
            Self::Routed { method, variant, strict_box } => {
                Arc::new(Routed::new(*method, MathDapo { variant: *variant, strict_box: *strict_box }))
            }
        }
    }
}

#[cfg(test)]
mod tests;
