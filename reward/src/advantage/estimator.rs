//! Estimators by name, for whole batches, and the advantages of tokens.

use crate::{Advantage, RewardError, TurnEstimator};

const NAMES: &str = "grpo, grpo_no_std, dr_grpo, rloo, reinforce_plus_plus_baseline";

/// How the rewards of a batch of groups become advantages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Estimator {
    /// Each group is estimated on its own.
    PerGroup(Advantage),
    /// The turns of trajectories have advantages of their own, computed from the rewards of turns. A whole
    /// trajectory has the advantage of GRPO.
    PerTurn(TurnEstimator),
    /// REINFORCE++ with a group baseline (Hu et al. 2025, "REINFORCE++", arXiv 2501.03262): `a = r -
    /// mean(group)`, and then `(a - mean(batch)) / sqrt(var(batch) + epsilon)` with the unbiased variance.
    /// The mean of the group removes the difficulty of the prompt. The batch sets the scale, so easy groups
    /// are not amplified, whereas GRPO amplifies them.
    ReinforcePlusPlusBaseline {
        /// Added to the variance as in verl, where it is 1e-8.
        epsilon: f32,
    },
}

impl Estimator {
    /// REINFORCE++ with the reference's epsilon.
    pub const REINFORCE_PLUS_PLUS_BASELINE: Self = Self::ReinforcePlusPlusBaseline { epsilon: 1e-8 };

    /// The estimator with a name: `grpo`, `grpo_no_std`, `dr_grpo`, `rloo` or `reinforce_plus_plus_baseline`.
    /// `epsilon`, 0 or more, is used by the estimators that divide.
    pub fn from_name(name: &str, epsilon: f32) -> Result<Self, RewardError> {
        if !(epsilon.is_finite() && epsilon >= 0.0) {
            return Err(RewardError::invalid("epsilon", epsilon, "expected a number, 0 or more"));
        }
        match name {
            "grpo" => Ok(Self::PerGroup(Advantage::Grpo { epsilon })),
            "grpo_no_std" => Ok(Self::PerGroup(Advantage::GrpoNoStd)),
            "dr_grpo" => Ok(Self::PerGroup(Advantage::DR_GRPO)),
            "rloo" => Ok(Self::PerGroup(Advantage::Rloo)),
            "reinforce_plus_plus_baseline" => Ok(Self::ReinforcePlusPlusBaseline { epsilon }),
            _ => Err(RewardError::Unknown { what: "advantage", name: name.to_owned(), known: NAMES }),
        }
    }

    /// The estimator for a single group, which can be used as soon as the group ends
    /// ([`Advantage::of_group`]); `None` if the estimator needs the whole batch.
    pub fn per_group(self) -> Option<Advantage> {
        match self {
            Self::PerGroup(advantage) => Some(advantage),
            Self::PerTurn(TurnEstimator::GrpoProcess { epsilon }) => Some(Advantage::Grpo { epsilon }),
            Self::ReinforcePlusPlusBaseline { .. } => None,
        }
    }

    /// The estimator of turns, if turns have advantages of their own.
    pub fn per_turn(self) -> Option<TurnEstimator> {
        match self {
            Self::PerTurn(estimator) => Some(estimator),
            Self::PerGroup(_) | Self::ReinforcePlusPlusBaseline { .. } => None,
        }
    }

    /// One advantage per reward, group by group; every sample of the batch has weight 1.
    pub fn of_batch(self, groups: &[&[f32]]) -> Vec<Vec<f32>> {
        self.of_weighted_batch(groups, |_, _| 1.0)
    }

    /// One advantage per reward. The mean and the variance of the batch weight each sample by its tokens, as
    /// verl does. `lengths` has one count per reward; a sample without a count has weight 0.
    pub fn of_batch_by_tokens(self, groups: &[&[f32]], lengths: &[&[u32]]) -> Vec<Vec<f32>> {
        self.of_weighted_batch(groups, |group, sample| {
            let length = lengths.get(group).and_then(|of_group| of_group.get(sample));
            length.map_or(0.0, |length| f64::from(*length))
        })
    }

    fn of_weighted_batch(self, groups: &[&[f32]], weight: impl Fn(usize, usize) -> f64) -> Vec<Vec<f32>> {
        let of_each =
            |advantage: Advantage| groups.iter().map(|rewards| advantage.of_group(rewards)).collect();
        match self {
            Self::PerGroup(advantage) => of_each(advantage),
            Self::PerTurn(TurnEstimator::GrpoProcess { epsilon }) => of_each(Advantage::Grpo { epsilon }),
            Self::ReinforcePlusPlusBaseline { epsilon } => {
                whitened(of_each(Advantage::GrpoNoStd), f64::from(epsilon), weight)
            }
        }
    }
}

/// Scales all values to mean 0 and deviation 1, in 64-bit arithmetic with one rounding at the end. With a
/// total weight of at most 1 there is no deviation, so only the mean is subtracted. Equal values become 0.
fn whitened(values: Vec<Vec<f32>>, epsilon: f64, weight: impl Fn(usize, usize) -> f64) -> Vec<Vec<f32>> {
    let weighted_sum = |term: &dyn Fn(f64) -> f64| -> f64 {
        let groups = values.iter().enumerate();
        let terms = groups.flat_map(|(group, of_group)| {
            let samples = of_group.iter().enumerate();
            samples.map(move |(sample, value)| (group, sample, f64::from(*value)))
        });
        terms.map(|(group, sample, value)| weight(group, sample) * term(value)).sum()
    };
    let count = weighted_sum(&|_| 1.0);
    let mean = if count > 0.0 { weighted_sum(&|value| value) / count } else { 0.0 };
    let squares = weighted_sum(&|value| (value - mean).powi(2));
    let deviation = if count > 1.0 { (squares / (count - 1.0) + epsilon).sqrt() } else { 1.0 };
    let white = |value: &f32| {
        let distance = f64::from(*value) - mean;
        // Without an epsilon, a batch of equal values has deviation 0, and all distances are 0 too.
        if deviation > 0.0 { (distance / deviation) as f32 } else { 0.0 }
    };
    values.iter().map(|of_group| of_group.iter().map(white).collect()).collect()
}

/// Expands a sample's advantage to its tokens: tokens that the policy generated (the mask is not 0) get the
/// advantage, and all others (tool output, padding) get 0.
pub fn expand(advantage: f32, response_mask: &[u8]) -> Vec<f32> {
    response_mask.iter().map(|mask| if *mask == 0 { 0.0 } else { advantage }).collect()
}

#[cfg(test)]
mod tests;
