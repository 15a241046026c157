use proptest::prelude::*;

use super::{Estimator, expand};
use crate::{Advantage, invariants};

const WHITE: Estimator = Estimator::ReinforcePlusPlusBaseline { epsilon: 1e-8 };

fn by_name(name: &str) -> Estimator {
    Estimator::from_name(name, 1e-6).unwrap()
}

fn slices(groups: &[Vec<f32>]) -> Vec<&[f32]> {
    groups.iter().map(Vec::as_slice).collect()
}

#[test]
fn names_and_estimators_agree() {
    assert_eq!(by_name("grpo").per_group(), Some(Advantage::GRPO));
    assert_eq!(by_name("grpo_no_std").per_group(), Some(Advantage::GrpoNoStd));
    assert_eq!(by_name("dr_grpo"), by_name("grpo_no_std"), "they differ in the trainer's loss only");
    assert_eq!(by_name("rloo").per_group(), Some(Advantage::Rloo));
    assert_eq!(by_name("reinforce_plus_plus_baseline").per_group(), None);
    let error = Estimator::from_name("gae", 1e-6).unwrap_err().to_string();
    assert!(error.contains("\"gae\"") && error.contains("reinforce_plus_plus_baseline"), "{error}");
    for epsilon in [-1e-6, f32::NAN, f32::INFINITY] {
        assert!(Estimator::from_name("grpo", epsilon).is_err(), "{epsilon}");
    }
}

#[test]
fn whitening_by_hand() {
    // Without the means of the groups, the rewards are 0.5, -0.5 and 1, -1, 0. Their mean is 0. The sum of
    // their squares is 2.5, which is divided by 5 - 1.
    let groups: [&[f32]; 2] = [&[1.0, 0.0], &[3.0, 1.0, 2.0]];
    let estimator = Estimator::ReinforcePlusPlusBaseline { epsilon: 0.0 };
    let deviation = 0.625_f64.sqrt();
    let white = |value: f64| (value / deviation) as f32;
    assert_eq!(
        estimator.of_batch(&groups),
        [vec![white(0.5), white(-0.5)], vec![white(1.0), white(-1.0), 0.0]]
    );
}

#[test]
fn whitening_over_tokens_by_hand() {
    // 0.5 counts three times and -0.5 once. The mean is 0.25; the sum of squares 3 * 0.0625 + 0.5625 = 0.75
    // is divided by 4 - 1.
    let groups: [&[f32]; 1] = [&[1.0, 0.0]];
    let estimator = Estimator::ReinforcePlusPlusBaseline { epsilon: 0.0 };
    assert_eq!(estimator.of_batch_by_tokens(&groups, &[&[3, 1]]), [vec![0.5, -1.5]]);
    assert_eq!(
        estimator.of_batch_by_tokens(&groups, &[]),
        [vec![0.5, -0.5]],
        "without tokens there is nothing to whiten by"
    );
}

#[test]
fn batches_without_a_signal_have_finite_zero_advantages() {
    for epsilon in [0.0, 1e-8] {
        let estimator = Estimator::ReinforcePlusPlusBaseline { epsilon };
        assert_eq!(estimator.of_batch(&[&[0.1; 3], &[0.7; 4]]), [vec![0.0; 3], vec![0.0; 4]]);
        assert_eq!(estimator.of_batch(&[&[0.5]]), [[0.0]]);
        assert_eq!(estimator.of_batch(&[&[], &[]]), [[0.0_f32; 0]; 2]);
        assert!(estimator.of_batch(&[]).is_empty());
    }
}

#[test]
fn tokens_of_the_policy_have_the_advantage() {
    assert_eq!(expand(-0.5, &[1, 1, 0, 1, 0]), [-0.5, -0.5, 0.0, -0.5, 0.0]);
    assert!(expand(1.0, &[]).is_empty());
}

/// Rewards in steps of a sixteenth, so that adding a constant to them is exact.
fn groups() -> impl Strategy<Value = Vec<Vec<f32>>> {
    let reward = (-32_i8..=32).prop_map(|sixteenths| f32::from(sixteenths) / 16.0);
    prop::collection::vec(prop::collection::vec(reward, 2..12), 1..8)
}

proptest! {
    #[test]
    fn a_batch_is_its_groups_where_the_batch_does_not_matter(groups in groups()) {
        for name in ["grpo", "grpo_no_std", "dr_grpo", "rloo"] {
            let advantage = by_name(name).per_group().unwrap();
            let each: Vec<Vec<f32>> = groups.iter().map(|rewards| advantage.of_group(rewards)).collect();
            prop_assert_eq!(by_name(name).of_batch(&slices(&groups)), each);
        }
    }

    #[test]
    fn every_estimator_cancels_out_within_groups(groups in groups()) {
        for name in ["grpo", "grpo_no_std", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"] {
            for of_group in by_name(name).of_batch(&slices(&groups)) {
                prop_assert_eq!(invariants::advantages_cancel_out(&of_group), Ok(()), "{}", name);
            }
        }
    }

    #[test]
    fn a_constant_for_all_samples_of_a_group_changes_nothing(groups in groups(), steps in prop::collection::vec(-64_i8..=64, 8)) {
        let moved: Vec<Vec<f32>> = groups
            .iter()
            .zip(&steps)
            .map(|(rewards, step)| rewards.iter().map(|reward| reward + f32::from(*step) / 16.0).collect())
            .collect();
        for name in ["grpo", "grpo_no_std", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"] {
            let (plain, shifted) = (by_name(name).of_batch(&slices(&groups)), by_name(name).of_batch(&slices(&moved)));
            for (a, b) in plain.iter().flatten().zip(shifted.iter().flatten()) {
                prop_assert!((a - b).abs() <= 1e-4, "{}: {} became {}", name, a, b);
            }
        }
    }

    #[test]
    fn a_whitened_batch_has_mean_0_and_deviation_1(groups in groups()) {
        let white: Vec<f64> = WHITE.of_batch(&slices(&groups)).iter().flatten().map(|value| f64::from(*value)).collect();
        let count = white.len() as f64;
        let mean = white.iter().sum::<f64>() / count;
        let variance = white.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        prop_assert!(mean.abs() <= 1e-5, "mean {}", mean);
        let is_flat = groups.iter().all(|rewards| rewards.windows(2).all(|pair| pair[0] == pair[1]));
        let expected = if is_flat { 0.0 } else { 1.0 };
        // The smallest variance of these rewards is 2.5e-5, so the effect of epsilon is small but not zero.
        prop_assert!((variance.sqrt() - expected).abs() <= 1e-3, "deviation {}", variance.sqrt());
    }

    #[test]
    fn equal_lengths_weigh_as_samples_do(groups in groups(), length in 1_000_000_u32..2_000_000) {
        // Only the divisor of the variance differs: the samples less one, or the tokens less one.
        let lengths: Vec<Vec<u32>> = groups.iter().map(|rewards| vec![length; rewards.len()]).collect();
        let lengths: Vec<&[u32]> = lengths.iter().map(Vec::as_slice).collect();
        let samples: usize = groups.iter().map(Vec::len).sum();
        let ratio = (samples as f64 / (samples as f64 - 1.0)).sqrt();
        let by_tokens = WHITE.of_batch_by_tokens(&slices(&groups), &lengths);
        for (token, sample) in by_tokens.iter().flatten().zip(WHITE.of_batch(&slices(&groups)).iter().flatten()) {
            prop_assert!((f64::from(*token) - f64::from(*sample) * ratio).abs() <= 1e-4, "{} and {}", token, sample);
        }
    }
}
