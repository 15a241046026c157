//! Advantages of a group of trajectories, for turns and for tokens.

use std::collections::BTreeMap;

use rolldock_reward::{TurnEstimator, TurnRewards};
use rolldock_trajectory::{Row, Trajectory, TurnId};

/// The advantages of the turns of one trajectory.
pub type TurnAdvantages = BTreeMap<TurnId, f32>;

/// One advantage for each turn of each trajectory of a group. Rewards of turns are those in the trajectories,
/// in the order of the turns' numbers, which is the order in which they happened. `outcomes` has the reward
/// of each whole trajectory; a trajectory without an entry has none.
///
/// If no turn has a reward of its own, all turns of a trajectory have the advantage of its outcome.
pub fn turn_advantages(
    group: &[&Trajectory],
    outcomes: &[Option<f32>],
    estimator: TurnEstimator,
) -> Vec<TurnAdvantages> {
    let rewards: Vec<Vec<Option<f32>>> =
        group.iter().map(|one| one.turns().map(|turn| turn.reward()).collect()).collect();
    let given: Vec<TurnRewards<'_>> = rewards
        .iter()
        .enumerate()
        .map(|(index, turns)| TurnRewards { turns, outcome: outcomes.get(index).copied().flatten() })
        .collect();
    let of_turns = |one: &&Trajectory, advantages: Vec<f32>| {
        one.turns().map(|turn| turn.id()).zip(advantages).collect::<TurnAdvantages>()
    };
    group.iter().zip(estimator.of_group(&given)).map(|(one, advantages)| of_turns(one, advantages)).collect()
}

/// One advantage for each token of a row's response: that of its turn for tokens that the row trains, and 0
/// for all others.
pub fn token_advantages(row: &Row, advantages: &TurnAdvantages) -> Vec<f32> {
    let mut of_tokens = vec![0.0; row.response_ids.len()];
    for turn in row.turns.iter().filter(|turn| turn.is_trained) {
        let advantage = advantages.get(&turn.turn).copied().unwrap_or_default();
        if let Some(tokens) = of_tokens.get_mut(turn.start as usize..turn.end as usize) {
            tokens.fill(advantage);
        }
    }
    of_tokens
}

#[cfg(test)]
mod tests;
