//! Advantages of the turns of a group of trajectories.

use std::collections::BTreeMap;

use rolldock_reward::{TurnEstimator, TurnRewards};

use crate::{Row, TurnId};

/// The advantages of the turns of one trajectory.
pub type TurnAdvantages = BTreeMap<TurnId, f32>;

/// Returns one advantage for each turn of each trajectory of a group. A trajectory is given by its rows and
/// its reward. The turns of all branches are ordered by their numbers, which is the order in which they
/// happened.
///
/// If no turn of a trajectory has a reward, the reward of the trajectory counts at its end. Otherwise it is
/// ignored: it is usually the sum of the rewards of the turns, and would count twice.
pub fn turn_advantages(group: &[(&[Row], f32)], estimator: TurnEstimator) -> Vec<TurnAdvantages> {
    let of_rows = |(rows, _): &(&[Row], f32)| -> BTreeMap<TurnId, Option<f32>> {
        rows.iter().flat_map(|row| &row.turns).map(|turn| (turn.turn, turn.reward)).collect()
    };
    let turns: Vec<_> = group.iter().map(of_rows).collect();
    let rewards: Vec<Vec<Option<f32>>> =
        turns.iter().map(|turns| turns.values().copied().collect()).collect();
    let given: Vec<TurnRewards<'_>> = rewards
        .iter()
        .zip(group)
        .map(|(turns, (_, reward))| TurnRewards {
            turns,
            outcome: turns.iter().all(Option::is_none).then_some(*reward),
        })
        .collect();
    let advantages = estimator.of_group(&given);
    turns
        .into_iter()
        .zip(advantages)
        .map(|(turns, of_turns)| turns.into_keys().zip(of_turns).collect())
        .collect()
}

#[cfg(test)]
mod tests;
