//! Groups without variance: every sample is as good as every other, so their advantages are all zero and the
//! group teaches nothing (dynamic sampling of DAPO, Yu et al. 2025, section 3.2).

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
    /// All rewards are the same.
    EqualRewards,
}

impl FilterReason {
    /// The word in ledgers, tables and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllRight => "all_right",
            Self::AllWrong => "all_wrong",
            Self::EqualRewards => "equal_rewards",
        }
    }
}

/// The filter of the async recipe: a group is valid when its values are not all exactly equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupFilter {
    /// Off lets every group pass.
    pub enable: bool,
    /// See [`FilterMetric`].
    pub metric: FilterMetric,
}

impl GroupFilter {
    /// Whether a group passes; one value per sample in each list.
    pub fn check(&self, accs: &[f32], rewards: &[f32]) -> Result<(), FilterReason> {
        if !self.enable {
            return Ok(());
        }
        match self.metric {
            FilterMetric::Acc if varies(accs) => Ok(()),
            FilterMetric::Acc if accs.first().is_some_and(|acc| *acc > 0.0) => Err(FilterReason::AllRight),
            FilterMetric::Acc => Err(FilterReason::AllWrong),
            FilterMetric::Reward if varies(rewards) => Ok(()),
            FilterMetric::Reward => Err(FilterReason::EqualRewards),
        }
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
