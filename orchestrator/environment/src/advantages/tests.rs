use rolldock_dispatch::{FinishReason, VersionSpan};
use rolldock_reward::TurnEstimator;
use rolldock_trajectory::{Emitted, HistoryPolicy, Request, Sampled, Trajectory, TurnId};

use super::{token_advantages, turn_advantages};

/// A trajectory of turns of two tokens, with one token between them.
fn trajectory(rewards: &[Option<f32>]) -> Trajectory {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let mut last: Option<TurnId> = None;
    for (number, reward) in rewards.iter().enumerate() {
        let prompt = match last {
            Some(turn) => trajectory.extend(turn, &[9]).unwrap(),
            None => first(&trajectory),
        };
        let sampled = Sampled {
            ids: vec![number as u32, 100 + number as u32],
            logprobs: vec![-1.0; 2],
            version_spans: vec![VersionSpan { version: "1".into(), start: 0, end: 2 }],
            versions_reported: true,
            finish_reason: FinishReason::Stop,
        };
        let turn = trajectory.add(&prompt, sampled, &Emitted::text("x")).unwrap();
        if let Some(reward) = reward {
            trajectory.apply(Trajectory::record_reward(turn, *reward)).unwrap();
        }
        last = Some(turn);
    }
    trajectory
}

/// The prompt of a trajectory's first turn: ids need no template.
fn first(trajectory: &Trajectory) -> rolldock_trajectory::Prompt {
    let codec = rolldock_data::TextCodec::builtin().unwrap();
    trajectory.prompt(&Request::ids(vec![5]), &codec).unwrap()
}

#[test]
fn each_token_has_the_advantage_of_its_turn() {
    // The rewards 1, 0, 2 and 1 have mean 1 and variance 2 / 3: 1 is 0, and 0 and 2 are -unit and unit.
    let unit = 1.5_f64.sqrt() as f32;
    let group = [trajectory(&[Some(1.0), Some(0.0)]), trajectory(&[Some(2.0), Some(1.0)])];
    let estimator = TurnEstimator::GrpoProcess { epsilon: 0.0 };
    let advantages = turn_advantages(&group.each_ref(), &[], estimator);
    assert_eq!(advantages[1].values().copied().collect::<Vec<_>>(), [unit, 0.0]);
    let rows = group[0].rows();
    assert_eq!(token_advantages(&rows[0], &advantages[0]), [-unit, -unit, 0.0, -unit, -unit]);
}

#[test]
fn an_outcome_is_the_advantage_of_all_turns() {
    let group = [trajectory(&[None, None]), trajectory(&[None])];
    let estimator = TurnEstimator::GrpoProcess { epsilon: 0.0 };
    let advantages = turn_advantages(&group.each_ref(), &[Some(1.0), Some(0.0)], estimator);
    // The outcomes 1 and 0 have mean 0.5 and variance 0.5.
    let half = (0.5 / 0.5_f64.sqrt()) as f32;
    assert_eq!(advantages[0].values().copied().collect::<Vec<_>>(), [half, half]);
    assert_eq!(advantages[1].values().copied().collect::<Vec<_>>(), [-half]);
}
