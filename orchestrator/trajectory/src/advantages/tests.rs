use rolldock_reward::TurnEstimator;

use super::turn_advantages;
use crate::tests::letters::{Habit, Letters, answer, sampled, says};
use crate::{HistoryPolicy, Request, Row, Trajectory, TurnId};

const EXACT: TurnEstimator = TurnEstimator::GrpoProcess { epsilon: 0.0 };

/// The rows of a trajectory with a turn for each conversation, and the rewards of its turns.
fn rows(conversations: &[&[(&str, &str)]], rewards: &[Option<f32>]) -> Vec<Row> {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    for messages in conversations {
        let messages = messages.iter().map(|(role, content)| says(role, content)).collect();
        let request = Request::chat(messages, None).unwrap();
        let prompt = trajectory.prompt(&request, &Letters(Habit::Plain)).unwrap();
        trajectory.add(&prompt, sampled("ab.", 1), &answer("ab.")).unwrap();
    }
    for (turn, reward) in (0..).zip(rewards) {
        let record = reward.map(|reward| Trajectory::record_reward(TurnId(turn), reward));
        record.into_iter().for_each(|record| trajectory.apply(record).unwrap());
    }
    trajectory.rows()
}

fn values(advantages: &super::TurnAdvantages) -> Vec<f32> {
    advantages.values().copied().collect()
}

const FIRST: &[(&str, &str)] = &[("user", "q")];
const ONE_BRANCH: &[(&str, &str)] = &[("user", "q"), ("assistant", "ab"), ("user", "R")];
const OTHER_BRANCH: &[(&str, &str)] = &[("user", "q"), ("assistant", "ab"), ("user", "S")];

#[test]
fn turns_of_all_branches_count_once_in_the_order_of_their_numbers() {
    let forked = rows(&[FIRST, ONE_BRANCH, OTHER_BRANCH], &[Some(1.0), Some(0.0), Some(0.5)]);
    assert_eq!(forked.len(), 2, "a row for each branch");
    let single = rows(&[FIRST], &[Some(2.0)]);
    // The third trajectory has no turn with a reward, so its own reward counts. The rewards 100 of the others
    // do not count.
    let without = rows(&[FIRST, ONE_BRANCH], &[None, None]);
    let group: [(&[Row], f32); 3] = [(&forked, 100.0), (&single, 100.0), (&without, 0.25)];
    let advantages = turn_advantages(&group, TurnEstimator::GRPO_PROCESS);
    // Computed with NumPy for the rewards [1, 0, 0.5], [2] and [0.25]: see the tests of the estimator.
    let expected: [&[f32]; 3] =
        [&[-0.948_682_07, -1.264_909_5, -0.316_227_38], &[1.581_136_8], &[-0.632_454_75, -0.632_454_75]];
    for (found, expected) in advantages.iter().map(values).zip(expected) {
        let is_near = |(found, expected): (&f32, &f32)| (found - expected).abs() < 2e-6;
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().zip(expected).all(is_near), "{found:?} is not {expected:?}");
    }
}

#[test]
fn a_group_without_rewards_of_turns_has_the_advantages_of_its_outcomes() {
    let [long, short] = [rows(&[FIRST, ONE_BRANCH], &[]), rows(&[FIRST], &[])];
    let advantages = turn_advantages(&[(&long, 1.0), (&short, 0.0)], EXACT);
    // The outcomes 1 and 0 have mean 0.5 and variance 0.5.
    let half = (0.5 / 0.5_f64.sqrt()) as f32;
    assert_eq!(advantages.iter().map(values).collect::<Vec<_>>(), [vec![half, half], vec![-half]]);
    assert_eq!(turn_advantages(&[(&[], 1.0), (&short, 1.0)], EXACT)[0].len(), 0);
}
