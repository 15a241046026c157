//! Filters groups without variance (dynamic sampling of DAPO, Yu et al. 2025, section 3.2). All samples of
//! such a group are equally good, so all advantages are zero and the group teaches nothing.
//!
//! There are two published rules, [`varies`] and [`kept_by_deviation`], which differ only for a group of one
//! sample. Values are compared exactly, without a tolerance, as both rules do.

use serde::{Deserialize, Serialize};

/// The values whose variance counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterMetric {
    /// The accuracies of the samples.
    #[default]
    Acc,
    /// The rewards, shaping included.
    Reward,
}

/// Why the filter rejects a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FilterReason {
    /// Every sample is right.
    AllRight,
    /// Every sample is wrong.
    AllWrong,
    /// All accuracies are equal, but neither 0 nor 1.
    EqualAccs,
    /// All rewards are equal.
    EqualRewards,
    /// The group has no sample.
    Empty,
}

impl FilterReason {
    /// The name of the reason in ledgers, tables and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllRight => "all_right",
            Self::AllWrong => "all_wrong",
            Self::EqualAccs => "equal_accs",
            Self::EqualRewards => "equal_rewards",
            Self::Empty => "empty",
        }
    }
}

/// The filter of the asynchronous recipe: a group passes when its values are not all exactly equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupFilter {
    /// Whether the filter is on; otherwise every group passes.
    pub enable: bool,
    /// The values that are compared.
    pub metric: FilterMetric,
}

impl Default for GroupFilter {
    fn default() -> Self {
        Self { enable: true, metric: FilterMetric::default() }
    }
}

impl GroupFilter {
    /// Checks a group; each list has one value per sample.
    pub fn check(&self, accs: &[f32], rewards: &[f32]) -> Result<(), FilterReason> {
        debug_assert_eq!(accs.len(), rewards.len(), "one acc and one reward per sample");
        if !self.enable {
            return Ok(());
        }
        let values = match self.metric {
            FilterMetric::Acc => accs,
            FilterMetric::Reward => rewards,
        };
        if varies(values) {
            return Ok(());
        }
        let Some(value) = values.first() else { return Err(FilterReason::Empty) };
        Err(match self.metric {
            FilterMetric::Reward => FilterReason::EqualRewards,
            FilterMetric::Acc if *value == 1.0 => FilterReason::AllRight,
            FilterMetric::Acc if *value == 0.0 => FilterReason::AllWrong,
            FilterMetric::Acc => FilterReason::EqualAccs,
        })
    }
}

/// Whether values pass the rule of the asynchronous recipe: the values are not all exactly equal. A single
/// sample does not vary.
pub fn varies(values: &[f32]) -> bool {
    values.windows(2).any(|pair| pair[0] != pair[1])
}

/// Whether values pass the rule of the synchronous recipe: the standard deviation is above zero, or there is
/// a single sample.
pub fn kept_by_deviation(values: &[f32]) -> bool {
    values.len() == 1 || varies(values)
}

#[cfg(test)]
mod tests;
