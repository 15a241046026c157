use proptest::prelude::*;

use super::Advantage;
use crate::invariants;

const ALL: [Advantage; 3] = [Advantage::GRPO, Advantage::GrpoNoStd, Advantage::Rloo];

#[test]
fn three_rewards_by_hand() {
    // Mean -0.5, squared distances 1, 0.0625 and 1.5625, deviation sqrt(2.625 / 2).
    let rewards = [0.5, -0.25, -1.75];
    assert_eq!(Advantage::GrpoNoStd.of_group(&rewards), [1.0, 0.25, -1.25]);
    assert_eq!(Advantage::Rloo.of_group(&rewards), [1.5, 0.375, -1.875]);
    let deviation = 1.3125_f32.sqrt();
    let quotient = |distance: f32| distance / (deviation + 1e-6);
    assert_eq!(Advantage::GRPO.of_group(&rewards), [quotient(1.0), quotient(0.25), quotient(-1.25)]);
}

#[test]
fn rloo_compares_with_the_others() {
    let rewards = [1.0, 0.0, 0.0, 0.5, 1.0];
    for (index, advantage) in Advantage::Rloo.of_group_f64(&rewards).iter().enumerate() {
        let others =
            rewards.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, reward)| reward);
        let baseline = others.sum::<f64>() / 4.0;
        assert!((advantage - (rewards[index] - baseline)).abs() < 1e-12);
    }
}

#[test]
fn a_single_sample_keeps_its_reward_and_no_sample_has_none() {
    for advantage in ALL {
        assert!((advantage.of_group(&[0.75])[0] - 0.75).abs() < 1e-5, "{advantage:?}");
        assert!(advantage.of_group(&[]).is_empty());
    }
}

#[test]
fn equal_rewards_teach_nothing() {
    for advantage in ALL {
        assert_eq!(advantage.of_group(&[0.1; 16]), [0.0; 16], "{advantage:?}");
    }
}

/// Rewards as scorers and shaping give them: a score less a penalty in steps of a sixteenth.
fn rewards() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec((-32_i8..=32).prop_map(|sixteenths| f32::from(sixteenths) / 16.0), 2..64)
}

proptest! {
    #[test]
    fn advantages_cancel_out(rewards in rewards()) {
        for advantage in ALL {
            prop_assert_eq!(invariants::advantages_cancel_out(&advantage.of_group(&rewards)), Ok(()));
        }
    }

    #[test]
    fn a_better_sample_never_has_a_smaller_advantage(rewards in rewards()) {
        for advantage in ALL {
            let advantages = advantage.of_group(&rewards);
            for (i, j) in (1..rewards.len()).map(|j| (j - 1, j)) {
                let order = rewards[i].total_cmp(&rewards[j]);
                prop_assert_eq!(order, advantages[i].total_cmp(&advantages[j]), "{:?}", advantage);
            }
        }
    }

    #[test]
    fn both_widths_agree(rewards in rewards()) {
        let wide: Vec<f64> = rewards.iter().map(|reward| f64::from(*reward)).collect();
        for advantage in ALL {
            for (narrow, exact) in advantage.of_group(&rewards).iter().zip(advantage.of_group_f64(&wide)) {
                prop_assert!((f64::from(*narrow) - exact).abs() <= 1e-5, "{} is not {}", narrow, exact);
            }
        }
    }
}
