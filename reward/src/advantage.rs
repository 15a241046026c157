//! Advantages relative to the group.

use serde::{Deserialize, Serialize};

/// How rewards become advantages.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advantage {
    /// GRPO (Shao et al. 2024): `(r - mean) / (std + epsilon)`, with the unbiased standard deviation.
    Grpo {
        /// Keeps the quotient finite; 1e-6 in the reference.
        epsilon: f32,
    },
    /// GRPO without the division (Dr. GRPO, Liu et al. 2025): `r - mean`, so that easy and hard prompts weigh alike.
    GrpoNoStd,
}

impl Advantage {
    /// GRPO with the reference's epsilon.
    pub const GRPO: Self = Self::Grpo { epsilon: 1e-6 };

    /// One advantage per reward, in 32-bit arithmetic as the reference has it. A single sample keeps its reward: its
    /// mean counts as 0 and its deviation as 1.
    pub fn of_group(self, rewards: &[f32]) -> Vec<f32> {
        let (mean, deviation) = match rewards {
            [_] => (0.0, 1.0),
            _ => moments(rewards),
        };
        match self {
            Self::Grpo { epsilon } => rewards.iter().map(|r| (r - mean) / (deviation + epsilon)).collect(),
            Self::GrpoNoStd => rewards.iter().map(|r| r - mean).collect(),
        }
    }
}

/// Mean and unbiased standard deviation, accumulated in 64 bits and rounded once.
fn moments(values: &[f32]) -> (f32, f32) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum();
    let variance = squares / (count - 1.0).max(1.0);
    (mean as f32, variance.sqrt() as f32)
}
