//! The rules of gates.

use serde::{Deserialize, Serialize};

use super::{Gate, GroupView, Refusal};
use crate::invariants::is_finite_in_32_bits;
use crate::{FilterMetric, GroupFilter, RewardError};

/// A rule with its options. A bound that is left out does not apply; a value equal to a bound passes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "gate", rename_all = "snake_case", deny_unknown_fields)]
pub enum GateRule {
    /// The largest and the smallest value must differ by more than `tolerance`. With 0, the rule makes the
    /// same decisions as [`crate::GroupFilter`], for the same reasons. The measured value is the difference.
    Variance {
        /// The values whose variance counts.
        #[serde(default)]
        metric: FilterMetric,
        /// The tolerance, 0 or more.
        #[serde(default)]
        tolerance: f64,
    },
    /// The mean must lie in a range: prompts that are too easy or too hard teach little. The mean and the bounds are
    /// compared in single precision, like the values: a reward of 0.7 is not below a bound of 0.7.
    MeanRange {
        /// The values whose mean counts.
        #[serde(default)]
        metric: FilterMetric,
        /// The smallest mean that passes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min: Option<f64>,
        /// The largest mean that passes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<f64>,
    },
    /// The group must have a minimum number of valid samples.
    MinSamples {
        /// The number of samples, 1 or more.
        samples: usize,
    },
    /// At most a given share of the responses may be cut off at the token limit.
    Truncated {
        /// The largest share that passes, from 0 to 1.
        share_max: f64,
    },
    /// The mean length of responses, in tokens, must lie in a range.
    Length {
        /// The smallest mean that passes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mean_tokens_min: Option<f64>,
        /// The largest mean that passes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mean_tokens_max: Option<f64>,
    },
}

impl GateRule {
    /// The names of the rules. A gate without its own name has the name of its rule.
    pub const NAMES: [&str; 5] = ["variance", "mean_range", "min_samples", "truncated", "length"];

    /// The name of the rule in recipes.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Variance { .. } => "variance",
            Self::MeanRange { .. } => "mean_range",
            Self::MinSamples { .. } => "min_samples",
            Self::Truncated { .. } => "truncated",
            Self::Length { .. } => "length",
        }
    }

    /// Checks the options.
    pub(super) fn check_options(&self) -> Result<(), RewardError> {
        match *self {
            Self::Variance { tolerance, .. } => require(
                tolerance.is_finite() && tolerance >= 0.0,
                "variance.tolerance",
                tolerance,
                "0 or more",
            ),
            Self::MeanRange { min, max, .. } => check_range("mean_range", min, max),
            Self::MinSamples { samples } => require(samples > 0, "min_samples.samples", samples, "1 or more"),
            Self::Truncated { share_max } => {
                require((0.0..=1.0).contains(&share_max), "truncated.share_max", share_max, "0 to 1")
            }
            Self::Length { mean_tokens_min, mean_tokens_max } => {
                check_range("length", mean_tokens_min, mean_tokens_max)
            }
        }
    }
}

fn require(
    holds: bool,
    what: &'static str,
    value: impl ToString,
    expected: &'static str,
) -> Result<(), RewardError> {
    if holds {
        return Ok(());
    }
    Err(RewardError::invalid(what, value, format!("expected {expected}")))
}

fn check_range(what: &'static str, min: Option<f64>, max: Option<f64>) -> Result<(), RewardError> {
    let bound = |bound: Option<f64>| bound.map_or("none".to_owned(), |bound| bound.to_string());
    let found = format!("{} to {}", bound(min), bound(max));
    let is_bounded = min.is_some() || max.is_some();
    let is_finite = min.iter().chain(&max).all(|bound| is_finite_in_32_bits(*bound));
    let is_ordered = min.zip(max).is_none_or(|(least, most)| least <= most);
    require(
        is_bounded && is_finite && is_ordered,
        what,
        found,
        "a finite lower or upper bound, or both in order",
    )
}

fn values<'a>(metric: FilterMetric, group: &GroupView<'a>) -> &'a [f32] {
    match metric {
        FilterMetric::Acc => group.accs,
        FilterMetric::Reward => group.rewards,
    }
}

/// The mean; NaN for an empty list.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// A number, rounded to single precision.
fn single(value: f64) -> f64 {
    f64::from(value as f32)
}

/// The largest value less the smallest; 0 for an empty list and for equal infinities.
fn spread(values: &[f32]) -> f64 {
    let wide = || values.iter().map(|value| f64::from(*value));
    let (least, most) = (wide().fold(f64::INFINITY, f64::min), wide().fold(f64::NEG_INFINITY, f64::max));
    if least < most { most - least } else { 0.0 }
}

fn check_variance(metric: FilterMetric, tolerance: f64, group: &GroupView<'_>) -> Result<(), Refusal> {
    let values = values(metric, group);
    let value = spread(values);
    let published = GroupFilter { enable: true, metric };
    published
        .check(group.accs, group.rewards)
        .map_err(|reason| Refusal { reason: reason.as_str(), value })?;
    // NaN differs from every value, as in the published rule.
    let is_known = values.iter().all(|value| !value.is_nan());
    if tolerance > 0.0 && is_known && value <= tolerance {
        return Err(Refusal { reason: "within_tolerance", value });
    }
    Ok(())
}

fn check_mean(
    value: f64,
    (min, max): (Option<f64>, Option<f64>),
    [none, below, above]: [&'static str; 3],
) -> Result<(), Refusal> {
    if value.is_nan() {
        return Err(Refusal { reason: none, value });
    }
    if min.is_some_and(|least| value < least) {
        return Err(Refusal { reason: below, value });
    }
    if max.is_some_and(|most| value > most) {
        return Err(Refusal { reason: above, value });
    }
    Ok(())
}

impl Gate for GateRule {
    fn check(&self, group: &GroupView<'_>) -> Result<(), Refusal> {
        match *self {
            Self::Variance { metric, tolerance } => check_variance(metric, tolerance, group),
            Self::MeanRange { metric, min, max } => {
                let value = mean(values(metric, group).iter().map(|value| f64::from(*value)));
                check_mean(
                    single(value),
                    (min.map(single), max.map(single)),
                    ["no_mean", "mean_too_low", "mean_too_high"],
                )
            }
            Self::MinSamples { samples } => {
                let count = group.accs.len();
                if count >= samples {
                    return Ok(());
                }
                Err(Refusal { reason: "too_few_samples", value: count as f64 })
            }
            Self::Truncated { share_max } => {
                let cut = group.truncated.iter().filter(|is_cut| **is_cut).count();
                let value = cut as f64 / group.truncated.len().max(1) as f64;
                if value <= share_max {
                    return Ok(());
                }
                Err(Refusal { reason: "too_many_truncated", value })
            }
            Self::Length { mean_tokens_min, mean_tokens_max } => {
                let value = mean(group.tokens.iter().map(|tokens| f64::from(*tokens)));
                check_mean(value, (mean_tokens_min, mean_tokens_max), ["no_length", "too_short", "too_long"])
            }
        }
    }
}
