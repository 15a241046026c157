//! Groups without variance: every sample is as good as every other, so their advantages are all zero and the
//! group teaches nothing (dynamic sampling of DAPO, Yu et al. 2025, section 3.2).
//!
//! Two published rules differ on a single sample only: see [`varies`] and [`kept_by_deviation`]. Values are compared
//! exactly, without a tolerance, as both rules do.

use serde::{Deserialize, Serialize};

/// Whose variance counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterMetric {
    /// Right or wrong.
    #[default]
    Acc,
    /// The reward, shaping included.
    Reward,
}

/// Why a group was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FilterReason {
    /// Every sample is right.
    AllRight,
    /// Every sample is wrong.
    AllWrong,
    /// Every sample is as nearly right as every other.
    EqualAccs,
    /// All rewards are the same.
    EqualRewards,
    /// There is no sample.
    Empty,
}

impl FilterReason {
    /// The word in ledgers, tables and metrics.
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

/// The filter of the async recipe: a group is valid when its values are not all exactly equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupFilter {
    /// Off lets every group pass.
    pub enable: bool,
    /// See [`FilterMetric`].
    pub metric: FilterMetric,
}

impl Default for GroupFilter {
    fn default() -> Self {
        Self { enable: true, metric: FilterMetric::default() }
    }
}

impl GroupFilter {
    /// Whether a group passes; one value per sample in each list.
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

/// The async recipe's rule: not all exactly equal. A single sample does not vary.
pub fn varies(values: &[f32]) -> bool {
    values.windows(2).any(|pair| pair[0] != pair[1])
}

/// The synchronous recipe's rule: a standard deviation above zero, or a single sample.
pub fn kept_by_deviation(values: &[f32]) -> bool {
    values.len() == 1 || varies(values)
}

#[cfg(test)]
mod tests;
