//! `rubric`: a weighted sum of other scorers, each of which also gets a column of its own.
//!
//! The score is the sum of `weight * score` over the parts; weights are not normalised. One part decides
//! `acc` and `pred`, so form or length do not affect a filter by `acc`. An error of any part is an error of
//! the rubric.
//!
//! # Deliberately absent
//! A rubric cannot contain rubrics; multiply the weights out instead.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Parts, Score, ScoreInput, Scorer, ScorerConfig};
use crate::RewardError;

/// Maximum number of parts of a rubric.
pub const PARTS_MAX: usize = 32;
/// Maximum number of bytes of a part's name.
pub const PART_NAME_BYTES_MAX: usize = 64;
/// The largest weight, which keeps the sum finite.
pub const WEIGHT_MAX: f64 = 1e6;

/// The name of this scorer in recipes.
const NAME: &str = "rubric";

/// The options of [`Rubric`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RubricConfig {
    /// The parts of the sum.
    pub parts: Vec<RubricPart>,
    /// The part whose `acc` and `pred` count; by default the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acc: Option<String>,
}

/// The options of a part: `{ name = "form", weight = 0.1, scorer = "format", ... }`. The scorer refuses
/// unknown keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RubricPart {
    /// The name of the part and of its column.
    pub name: String,
    /// The weight, which may be negative.
    pub weight: f64,
    /// The scorer and its options.
    #[serde(flatten)]
    pub scorer: ScorerConfig,
}

/// One part, ready to score.
pub struct Part {
    /// The name of the part and of its column.
    pub name: Arc<str>,
    /// The weight, which may be negative.
    pub weight: f64,
    /// The scorer.
    pub scorer: Arc<dyn Scorer>,
}

/// A weighted sum of scorers.
pub struct Rubric {
    parts: Vec<Part>,
    /// The index of the part that decides `acc` and `pred`.
    acc: usize,
}

impl Rubric {
    /// A rubric of scorers that are already built; `acc` names the part that decides `acc` and `pred`.
    pub fn new(parts: Vec<Part>, acc: Option<&str>) -> Result<Self, RewardError> {
        if parts.is_empty() || parts.len() > PARTS_MAX {
            return Err(RewardError::invalid(
                "rubric.parts",
                parts.len(),
                format!("expected 1 to {PARTS_MAX} parts"),
            ));
        }
        let mut names = HashSet::new();
        for part in &parts {
            let invalid = |reason: String| Err(RewardError::invalid("rubric part", &part.name, reason));
            if part.name.is_empty() || part.name.len() > PART_NAME_BYTES_MAX {
                return invalid(format!("expected a name of 1 to {PART_NAME_BYTES_MAX} bytes"));
            }
            if !names.insert(Arc::clone(&part.name)) {
                return invalid("named twice".to_owned());
            }
            if !part.weight.is_finite() || part.weight.abs() > WEIGHT_MAX {
                return invalid(format!("weight={} is not within {WEIGHT_MAX} of 0", part.weight));
            }
            if part.scorer.name() == NAME {
                return invalid("a rubric within a rubric".to_owned());
            }
        }
        let index = match acc {
            None => 0,
            Some(name) => parts
                .iter()
                .position(|part| &*part.name == name)
                .ok_or_else(|| RewardError::invalid("rubric.acc", name, "no part has this name"))?,
        };
        Ok(Self { parts, acc: index })
    }

    /// Builds the parts. The error of a part's own options does not name the part.
    pub(super) fn from_config(config: &RubricConfig) -> Result<Self, RewardError> {
        let build = |part: &RubricPart| {
            // The check precedes the building: deeply nested rubrics would overflow the stack.
            if matches!(part.scorer, ScorerConfig::Rubric(_)) {
                return Err(RewardError::invalid("rubric part", &part.name, "a rubric within a rubric"));
            }
            let scorer = part.scorer.build()?;
            Ok(Part { name: part.name.as_str().into(), weight: part.weight, scorer })
        };
        let parts = config.parts.iter().map(build).collect::<Result<Vec<_>, _>>()?;
        Self::new(parts, config.acc.as_deref())
    }
}

impl Scorer for Rubric {
    fn name(&self) -> &'static str {
        NAME
    }

    /// The longest tail that a part needs.
    fn tail_code_points(&self) -> Option<usize> {
        self.parts.iter().try_fold(0, |longest, part| Some(part.scorer.tail_code_points()?.max(longest)))
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError> {
        let mut whole = Score::default();
        let mut parts = Parts::new();
        for (index, part) in self.parts.iter().enumerate() {
            let score = part.scorer.score(input)?;
            whole.score += part.weight * score.score;
            if index == self.acc {
                whole.acc = score.acc;
                whole.pred = score.pred;
                whole.reason = score.reason;
            }
            parts.insert(Arc::clone(&part.name), score.score);
        }
        whole.parts = parts;
        Ok(whole)
    }
}

#[cfg(test)]
mod tests;
