//! Advantages relative to the group: how much better a sample is than the other samples of its group.
//!
//! An [`Advantage`] is outcome-level: each token of a sample has the advantage of the sample. A
//! [`TurnEstimator`] gives each turn of a trajectory an advantage.
//! [`Advantage::of_group`] rounds to 32 bits where trainers do; where a reference implementation is known,
//! the results are bit-identical to the reference. [`Advantage::of_group_f64`] is the plain formula, for
//! analysis.
//!
//! An [`Advantage`] needs only its group. An [`Estimator`] is either an [`Advantage`], or a
//! [`TurnEstimator`], or a method that needs the whole batch.
//!
//! # Deliberately absent
//! There are no estimators that need more than the outcome (GAE needs a critic). Dr. GRPO also changes the
//! loss, which the trainer computes: see [`Advantage::DR_GRPO`].

mod estimator;
mod turns;

use serde::{Deserialize, Serialize};

pub use estimator::{Estimator, expand};
pub use turns::{TurnEstimator, TurnRewards};

/// How rewards become advantages.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advantage {
    /// GRPO (Shao et al. 2024): `(r - mean) / (std + epsilon)`, with the unbiased standard deviation.
    Grpo {
        /// Keeps the quotient finite; 1e-6 in the reference.
        epsilon: f32,
    },
    /// GRPO without the division (Dr. GRPO, Liu et al. 2025): `r - mean`, so easy and hard prompts have equal
    /// weight.
    GrpoNoStd,
    /// RLOO (Ahmadian et al. 2024): `r` minus the mean of the other samples, which is
    /// `(r - mean) * n / (n - 1)`.
    Rloo,
}

impl Advantage {
    /// GRPO with the epsilon of the reference.
    pub const GRPO: Self = Self::Grpo { epsilon: 1e-6 };

    /// The advantage of Dr. GRPO (Liu et al. 2025, "Understanding R1-Zero-Like Training", section 3.2), which
    /// is [`Advantage::GrpoNoStd`]. The method also changes the loss: the trainer must divide the sum of a
    /// batch's token losses by a constant (the number of samples times the maximum length of a response). If
    /// the trainer divided by a response's own length, long wrong answers would be punished less than short
    /// ones.
    pub const DR_GRPO: Self = Self::GrpoNoStd;

    /// One advantage per reward, rounded to 32 bits where the reference does so. A single sample keeps its
    /// reward: its mean counts as 0 and its deviation as 1.
    pub fn of_group(self, rewards: &[f32]) -> Vec<f32> {
        let wide: Vec<f64> = rewards.iter().map(|reward| f64::from(*reward)).collect();
        let moments = Moments::of(&wide);
        // The reference rounds mean and deviation to 32 bits before it uses them.
        let (mean, deviation) = (moments.mean as f32, moments.deviation as f32);
        let of_reward = |reward: f32| match self {
            Self::Grpo { epsilon } => (reward - mean) / (deviation + epsilon),
            Self::GrpoNoStd => reward - mean,
            Self::Rloo => (reward - mean) * moments.leave_one_out as f32,
        };
        rewards.iter().map(|reward| of_reward(*reward)).collect()
    }

    /// One advantage per reward, by the plain formula in 64-bit arithmetic.
    pub fn of_group_f64(self, rewards: &[f64]) -> Vec<f64> {
        let Moments { mean, deviation, leave_one_out } = Moments::of(rewards);
        let of_reward = |reward: f64| match self {
            Self::Grpo { epsilon } => (reward - mean) / (deviation + shortest_decimal(epsilon)),
            Self::GrpoNoStd => reward - mean,
            Self::Rloo => (reward - mean) * leave_one_out,
        };
        rewards.iter().map(|reward| of_reward(*reward)).collect()
    }
}

/// The moments of a group that the estimators use.
struct Moments {
    mean: f64,
    /// The unbiased standard deviation.
    deviation: f64,
    /// `n / (n - 1)`, which turns a distance from the mean into a distance from the mean of the other
    /// samples.
    leave_one_out: f64,
}

impl Moments {
    fn of(rewards: &[f64]) -> Self {
        // A single sample cannot be compared with others, so it keeps its reward.
        if rewards.len() <= 1 {
            return Self { mean: 0.0, deviation: 1.0, leave_one_out: 1.0 };
        }
        let count = rewards.len() as f64;
        let mean = rewards.iter().sum::<f64>() / count;
        let squares: f64 = rewards.iter().map(|reward| (reward - mean).powi(2)).sum();
        Self { mean, deviation: (squares / (count - 1.0)).sqrt(), leave_one_out: count / (count - 1.0) }
    }
}

/// The decimal that was configured: 1e-6, and not 9.99999997e-7, which is the exact value of the 32-bit
/// float.
fn shortest_decimal(epsilon: f32) -> f64 {
    epsilon.to_string().parse().unwrap_or(f64::from(epsilon))
}

#[cfg(test)]
mod tests;
