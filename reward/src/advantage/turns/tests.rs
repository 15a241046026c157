use proptest::prelude::*;

use super::{TurnEstimator, TurnRewards};
use crate::Advantage;

const EXACT: TurnEstimator = TurnEstimator::GrpoProcess { epsilon: 0.0 };

fn one(turns: &[Option<f32>], outcome: Option<f32>) -> TurnRewards<'_> {
    TurnRewards { turns, outcome }
}

#[test]
fn two_trajectories_by_hand() {
    // The rewards 1, 0, 2 and 1 have mean 1 and squared distances 0, 1, 1 and 0: the variance is 2 / 3. The
    // normalised rewards are 0 and -sqrt(1.5), and sqrt(1.5) and 0.
    let unit = 1.5_f64.sqrt() as f32;
    let group = [one(&[Some(1.0), Some(0.0)], None), one(&[Some(2.0), Some(1.0)], None)];
    assert_eq!(EXACT.of_group(&group), [vec![-unit, -unit], vec![unit, 0.0]]);
}

#[test]
fn an_outcome_counts_for_all_turns_and_a_missing_reward_for_none() {
    // The rewards 3, 0 and 0 have mean 1 and squared distances 4, 1 and 1: the deviation is sqrt(3).
    let root = 3.0_f64.sqrt();
    let group = [one(&[None, Some(3.0), None], Some(0.0)), one(&[None], Some(0.0))];
    let [low, high] = [-1.0 / root, 2.0 / root];
    assert_eq!(
        EXACT.of_group(&group),
        [vec![(low + high) as f32, (low + high) as f32, low as f32], vec![low as f32]]
    );
}

#[test]
fn equal_rewards_teach_nothing_and_a_single_one_stays() {
    for estimator in [EXACT, TurnEstimator::GRPO_PROCESS] {
        let equal = [one(&[Some(0.5), None], Some(0.5)), one(&[Some(0.5)], None)];
        assert_eq!(estimator.of_group(&equal), [vec![0.0, 0.0], vec![0.0]]);
    }
    assert_eq!(EXACT.of_group(&[one(&[None, None], Some(0.75))]), [vec![0.75, 0.75]]);
    assert_eq!(EXACT.of_group(&[one(&[None], None)]), [vec![0.0]]);
    assert!(EXACT.of_group(&[]).is_empty());
}

/// The advantages were computed with NumPy 2.4.6. `turns` is a list of arrays, and `r = concatenate(turns)`. The
/// advantages of an array `t` are `cumsum(((t - r.mean()) / (r.std(ddof=1) + 1e-6))[::-1])[::-1]`.
#[test]
fn the_numbers_are_those_of_numpy() {
    let group: [(&[f32], &[f32]); 4] = [
        (&[-0.029, -0.547, 0.953], &[0.831_973_7, 0.786_669_7, 1.518_434_4]),
        (&[-0.783], &[-1.085_796_1]),
        (&[0.608, 0.097, -0.826, 0.522], &[0.956_784_7, -0.044_103_906, -0.278_424_65, 0.871_877_2]),
        (&[-0.888, 0.301], &[-0.702_962_3, 0.540_347_9]),
    ];
    let rewards: Vec<Vec<Option<f32>>> =
        group.iter().map(|(rewards, _)| rewards.iter().copied().map(Some).collect()).collect();
    let given: Vec<TurnRewards<'_>> = rewards.iter().map(|turns| one(turns, None)).collect();
    for (found, (_, expected)) in TurnEstimator::GRPO_PROCESS.of_group(&given).iter().zip(group) {
        let is_near = |(found, expected): (&f32, &f32)| (found - expected).abs() < 2e-6;
        assert!(found.iter().zip(expected).all(is_near), "{found:?} is not {expected:?}");
    }
}

#[test]
fn names_and_epsilons_are_checked() {
    assert_eq!(TurnEstimator::from_name("grpo_process", 1e-6).unwrap(), TurnEstimator::GRPO_PROCESS);
    let error = TurnEstimator::from_name("grpo", 1e-6).unwrap_err().to_string();
    assert!(error.contains("\"grpo\"") && error.contains("grpo_process"), "{error}");
    assert!(TurnEstimator::from_name("grpo_process", -1.0).is_err());
}

proptest! {
    #[test]
    fn with_outcomes_only_it_is_grpo(outcomes in prop::collection::vec(-16_i8..=16, 2..32)) {
        let outcomes: Vec<f32> = outcomes.into_iter().map(|eighths| f32::from(eighths) / 8.0).collect();
        let group: Vec<TurnRewards<'_>> =
            outcomes.iter().map(|outcome| one(&[None, None], Some(*outcome))).collect();
        let expected = Advantage::GRPO.of_group(&outcomes);
        for (advantages, expected) in TurnEstimator::GRPO_PROCESS.of_group(&group).iter().zip(expected) {
            for advantage in advantages {
                prop_assert!((advantage - expected).abs() < 1e-4, "{advantage} is not {expected}");
            }
        }
    }
}
