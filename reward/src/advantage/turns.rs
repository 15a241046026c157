//! Advantages of single turns, for trajectories whose turns have rewards of their own.

use super::Moments;
use crate::RewardError;

const NAMES: &str = "grpo_process";

/// The rewards of one trajectory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TurnRewards<'a> {
    /// The reward of each turn, in order; `None` for a turn without a reward of its own.
    pub turns: &'a [Option<f32>],
    /// The reward of the whole trajectory, which counts at its end; `None` if there is none.
    pub outcome: Option<f32>,
}

/// How the rewards of turns become advantages of turns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TurnEstimator {
    /// GRPO with process supervision (Shao et al. 2024, "DeepSeekMath", section 4.1.3, arXiv 2402.03300). All
    /// rewards of the group, of turns and of outcomes, are normalised together: `(r - mean) / (std +
    /// epsilon)`, with the unbiased standard deviation. The advantage of a turn is the sum of the normalised
    /// rewards from this turn on. If only outcomes are given, the advantage is that of
    /// [`Advantage::Grpo`](crate::Advantage::Grpo).
    GrpoProcess {
        /// Keeps the quotient finite; 1e-6 in [`TurnEstimator::GRPO_PROCESS`].
        epsilon: f32,
    },
}

impl TurnEstimator {
    /// GRPO with process supervision, with the epsilon of [`Advantage::GRPO`](crate::Advantage::GRPO).
    pub const GRPO_PROCESS: Self = Self::GrpoProcess { epsilon: 1e-6 };

    /// The estimator with a name: `grpo_process`. `epsilon` is a number, 0 or more.
    ///
    /// # Errors
    /// The name is unknown, or `epsilon` is not such a number.
    pub fn from_name(name: &str, epsilon: f32) -> Result<Self, RewardError> {
        if !(epsilon.is_finite() && epsilon >= 0.0) {
            return Err(RewardError::invalid("epsilon", epsilon, "expected a number, 0 or more"));
        }
        match name {
            "grpo_process" => Ok(Self::GrpoProcess { epsilon }),
            _ => {
                Err(RewardError::Unknown { what: "advantage of turns", name: name.to_owned(), known: NAMES })
            }
        }
    }

    /// One advantage for each turn of each trajectory of a group. The arithmetic has 64 bits, with one
    /// rounding at the end.
    pub fn of_group(self, group: &[TurnRewards<'_>]) -> Vec<Vec<f32>> {
        let Self::GrpoProcess { epsilon } = self;
        let given = group.iter().flat_map(|one| one.turns.iter().copied().chain([one.outcome]).flatten());
        let rewards: Vec<f64> = given.map(f64::from).collect();
        let Moments { mean, deviation, .. } = Moments::of(&rewards);
        let scale = deviation + f64::from(epsilon);
        let normalised = |reward: &Option<f32>| match reward {
            // Without an epsilon, equal rewards have deviation 0, and all distances are 0 too.
            Some(reward) if scale > 0.0 => (f64::from(*reward) - mean) / scale,
            _ => 0.0,
        };
        let of_trajectory = |one: &TurnRewards<'_>| {
            let mut sum = normalised(&one.outcome);
            let mut advantages: Vec<f32> = Vec::with_capacity(one.turns.len());
            for reward in one.turns.iter().rev() {
                sum += normalised(reward);
                advantages.push(sum as f32);
            }
            advantages.reverse();
            advantages
        };
        group.iter().map(of_trajectory).collect()
    }
}

#[cfg(test)]
mod tests;
