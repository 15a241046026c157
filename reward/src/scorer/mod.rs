//! Scorers of verifiable answers, scorers of the form of a response, and weighted sums of scorers.

mod boxed;
mod choice;
mod exact_match;
mod format;
mod gsm8k;
mod json_schema;
mod length;
mod math;
mod math_dapo;
pub mod math_equiv;
mod pattern;
mod repetition;
mod rewrites;
mod routed;
mod rubric;
mod search_qa;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::RewardError;

pub use choice::Choice;
pub use exact_match::ExactMatch;
pub use format::{Format, TAG_BYTES_MAX, TAGS_MAX};
pub use gsm8k::{Gsm8k, Gsm8kMethod};
pub use json_schema::{
    JsonSchema, JsonSchemaConfig, SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX, SCHEMA_KEYWORDS, SCHEMA_PATTERNS_MAX,
    SCHEMA_STEPS_MAX,
};
pub use length::{Length, Ramp};
pub use math::Math;
pub use math_dapo::{MathDapo, Variant, normalize};
pub use math_equiv::{MathEquiv, Reason};
pub use pattern::{COMPILED_BYTES_MAX, PATTERN_BYTES_MAX, Pattern, PatternConfig};
pub use repetition::{NGRAM_MAX, Repetition, RepetitionUnit};
pub use routed::Routed;
pub use rubric::{PART_NAME_BYTES_MAX, PARTS_MAX, Part, Rubric, RubricConfig, RubricPart, WEIGHT_MAX};

/// The response to score, with its row.
#[derive(Debug, Clone, Copy)]
pub struct ScoreInput<'a> {
    /// The response, or at least as much of its end as [`Scorer::tail_code_points`] asks for.
    pub response: &'a str,
    /// The right answer.
    pub ground_truth: &'a str,
    /// The name of the row's data source.
    pub data_source: &'a str,
    /// The row's other fields.
    pub extra: Option<&'a serde_json::Value>,
}

/// The unweighted scores of a rubric's parts by name. Each part has its own column.
pub type Parts = BTreeMap<Arc<str>, f64>;

/// The score of a response.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The reward before shaping; its range depends on the scorer.
    pub score: f64,
    /// 1 for a right answer and 0 for a wrong one; for scorers of form, the degree to which the form is kept.
    pub acc: f64,
    /// The answer that the scorer found in the response.
    pub pred: Option<String>,
    /// The scores of a [`Rubric`]'s parts; empty for other scorers.
    #[serde(default, skip_serializing_if = "Parts::is_empty")]
    pub parts: Parts,
    /// The reason of [`MathEquiv`] for its verdict. A rubric has the reason of the part that decides its
    /// `acc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

impl Score {
    /// A score of 1 or 0, with the same `acc`.
    pub fn right_or_wrong(right: bool, pred: Option<String>) -> Self {
        Self { score: f64::from(right), acc: f64::from(right), pred, ..Self::default() }
    }
}

/// Scores one response.
pub trait Scorer: Send + Sync + 'static {
    /// The name of the scorer in recipes.
    fn name(&self) -> &'static str;

    /// The number of code points at the end of a response that decide its score; `None` when all of them do.
    /// Callers may leave the rest undecoded.
    fn tail_code_points(&self) -> Option<usize>;

    /// Scores a response. An error is due to the row, never to the response.
    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError>;
}

/// The name and the options of a scorer, as a recipe writes them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "scorer", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScorerConfig {
    /// See [`MathDapo`].
    MathDapo {
        /// "2025" or "2026".
        #[serde(default)]
        variant: Variant,
        /// Whether only the last `\boxed{}` counts, compared as text.
        #[serde(default)]
        strict_box: bool,
    },
    /// See [`Gsm8k`].
    Gsm8k {
        /// "strict" or "flexible".
        #[serde(default)]
        method: Gsm8kMethod,
    },
    /// See [`Math`]. The braces make serde refuse unknown keys.
    Math {},
    /// See [`MathEquiv`].
    MathEquiv {},
    /// See [`Routed`].
    Routed {
        /// The method for rows that go to [`Gsm8k`].
        #[serde(default)]
        method: Gsm8kMethod,
        /// The variant for rows that go to [`MathDapo`].
        #[serde(default)]
        variant: Variant,
        /// `strict_box` for rows that go to [`MathDapo`].
        #[serde(default)]
        strict_box: bool,
    },
    /// See [`Choice`].
    Choice {},
    /// See [`ExactMatch`].
    ExactMatch(ExactMatch),
    /// See [`Pattern`].
    Regex(PatternConfig),
    /// See [`JsonSchema`].
    JsonSchema(JsonSchemaConfig),
    /// See [`Format`].
    Format(Format),
    /// See [`Length`].
    Length(Length),
    /// See [`Repetition`].
    Repetition(Repetition),
    /// See [`Rubric`].
    Rubric(RubricConfig),
}

const NAMES: &str = "math_dapo, gsm8k, math, math_equiv, routed, choice, exact_match, regex, json_schema, format, \
                     length, repetition, rubric";

impl ScorerConfig {
    /// The scorer `name` with its default options. A scorer that has options without defaults is an error.
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
            "choice" => Ok(Self::Choice {}),
            "exact_match" => Ok(Self::ExactMatch(ExactMatch::default())),
            "json_schema" => Ok(Self::JsonSchema(JsonSchemaConfig::default())),
            "format" => Ok(Self::Format(Format::default())),
            "repetition" => Ok(Self::Repetition(Repetition::default())),
            "regex" => Err(RewardError::NeedsOptions { scorer: "regex", options: "pattern" }),
            "length" => Err(RewardError::NeedsOptions { scorer: "length", options: "target, max" }),
            "rubric" => Err(RewardError::NeedsOptions { scorer: "rubric", options: "parts" }),
            _ => Err(RewardError::Unknown { what: "scorer", name: name.to_owned(), known: NAMES }),
        }
    }

    /// Builds the scorer. An error names the option and the expected value.
    pub fn build(&self) -> Result<Arc<dyn Scorer>, RewardError> {
        Ok(match self {
            Self::MathDapo { variant, strict_box } => {
                Arc::new(MathDapo { variant: *variant, strict_box: *strict_box })
            }
            Self::Gsm8k { method } => Arc::new(Gsm8k { method: *method }),
            Self::Math {} => Arc::new(Math),
            Self::MathEquiv {} => Arc::new(MathEquiv),
            Self::Routed { method, variant, strict_box } => {
                Arc::new(Routed::new(*method, MathDapo { variant: *variant, strict_box: *strict_box }))
            }
            Self::Choice {} => Arc::new(Choice),
            Self::ExactMatch(options) => Arc::new(options.clone().checked()?),
            Self::Regex(options) => Arc::new(Pattern::new(options)?),
            Self::JsonSchema(options) => Arc::new(JsonSchema::new(options)?),
            Self::Format(options) => Arc::new(options.clone().checked()?),
            Self::Length(options) => Arc::new(options.checked()?),
            Self::Repetition(options) => Arc::new(options.checked()?),
            Self::Rubric(options) => Arc::new(Rubric::from_config(options)?),
        })
    }
}

#[cfg(test)]
mod tests;
