//! Reward shaping: changes rewards between the scorer and the advantage.
//!
//! A reward is clipped as soon as it is known, so gates and logs get the clipped value. The rewards of a
//! group are normalised after the group has passed its gates, because a gate on variance needs the original
//! values.

use serde::{Deserialize, Serialize};

use crate::RewardError;

/// Keeps the quotient finite if the rewards of a group are equal.
const EPSILON: f32 = 1e-6;

/// The configuration of reward shaping; it changes nothing by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shaping {
    /// The smallest and the largest reward; the overlong penalty is added before clipping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<[f32; 2]>,
    /// How the rewards of a group are normalised.
    pub normalise: Normalise,
}

/// How the rewards of a group are made comparable with those of other groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalise {
    /// Rewards stay as they are.
    #[default]
    Off,
    /// `(r - min) / (max - min)`; 0 if all rewards are equal.
    MinMax,
    /// `(r - mean) / (std + 1e-6)`, with the unbiased deviation; a single reward becomes 0.
    MeanStd,
}

impl Shaping {
    /// Checks the configuration. An error names the value and what was expected.
    pub fn check(&self) -> Result<(), RewardError> {
        let Some([least, most]) = self.clip else { return Ok(()) };
        if least.is_finite() && most.is_finite() && least <= most {
            return Ok(());
        }
        let found = format!("[{least}, {most}]");
        Err(RewardError::Misconfigured {
            key: "shaping.clip",
            expected: "[least, most], two finite numbers in order",
            found,
        })
    }

    /// The clipped reward of a sample.
    pub fn clipped(&self, reward: f32) -> f32 {
        self.clip.map_or(reward, |[least, most]| reward.max(least).min(most))
    }

    /// The normalised rewards of a group.
    pub fn normalised(&self, rewards: &[f32]) -> Vec<f32> {
        match self.normalise {
            Normalise::Off => rewards.to_vec(),
            Normalise::MinMax => {
                let least = rewards.iter().copied().fold(f32::INFINITY, f32::min);
                let range = rewards.iter().copied().fold(f32::NEG_INFINITY, f32::max) - least;
                let scaled = |reward: &f32| if range > 0.0 { (reward - least) / range } else { 0.0 };
                rewards.iter().map(scaled).collect()
            }
            Normalise::MeanStd if rewards.len() < 2 => vec![0.0; rewards.len()],
            Normalise::MeanStd => crate::Advantage::Grpo { epsilon: EPSILON }.of_group(rewards),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shaping(normalise: Normalise) -> Shaping {
        Shaping { normalise, ..Shaping::default() }
    }

    #[test]
    fn rewards_stay_as_they_are_by_default() {
        assert_eq!(Shaping::default().clipped(-7.5), -7.5);
        assert_eq!(Shaping::default().normalised(&[1.0, -1.0]), [1.0, -1.0]);
    }

    #[test]
    fn clipping_keeps_rewards_within_its_bounds_and_refuses_bounds_out_of_order() {
        let clip = Shaping { clip: Some([-1.0, 0.5]), ..Shaping::default() };
        assert_eq!([-3.0, -1.0, 0.2, 0.7].map(|reward| clip.clipped(reward)), [-1.0, -1.0, 0.2, 0.5]);
        clip.check().unwrap();
        for clip in [[1.0, 0.0], [f32::NAN, 1.0], [0.0, f32::INFINITY]] {
            assert!(Shaping { clip: Some(clip), ..Shaping::default() }.check().is_err(), "{clip:?}");
        }
    }

    #[test]
    fn normalised_groups_have_the_range_or_the_moments_that_they_should() {
        assert_eq!(shaping(Normalise::MinMax).normalised(&[2.0, 4.0, 3.0]), [0.0, 1.0, 0.5]);
        assert_eq!(shaping(Normalise::MinMax).normalised(&[2.0, 2.0]), [0.0, 0.0]);
        let normal = shaping(Normalise::MeanStd).normalised(&[1.0, 2.0, 3.0]);
        assert!((normal[0] + 1.0).abs() < 1e-5 && normal[1].abs() < 1e-6 && (normal[2] - 1.0).abs() < 1e-5);
        for normalise in [Normalise::MinMax, Normalise::MeanStd] {
            assert_eq!(shaping(normalise).normalised(&[5.0]), [0.0]);
            assert!(shaping(normalise).normalised(&[]).is_empty());
        }
    }
}
