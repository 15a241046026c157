//! The advantages of the samples of one group, and of the turns of samples that are trajectories.

use std::sync::Arc;

use rolldock_reward::Estimator;
use rolldock_trajectory::{Row, turn_advantages};

use crate::rollout::Sample;

/// Sets the advantages of a group's samples from their rewards. Advantages that need the whole batch stay 0
/// here.
pub(super) fn estimate(samples: &mut [Sample], estimator: Estimator) {
    if let Some(advantage) = estimator.per_group() {
        let rewards: Vec<f32> = samples.iter().map(|sample| sample.reward).collect();
        for (sample, advantage) in samples.iter_mut().zip(advantage.of_group(&rewards)) {
            sample.advantage = advantage;
        }
    }
    let Some(estimator) = estimator.per_turn() else { return };
    let rows = |sample: &Sample| sample.trajectory.clone();
    let trajectories: Vec<_> = samples.iter().map(rows).collect();
    let paths = trajectories.iter().map(|paths| paths.as_ref().map_or(&[][..], |paths| &paths.rows));
    let group: Vec<(&[Row], f32)> = paths.zip(samples.iter().map(|sample| sample.reward)).collect();
    let of_turns = turn_advantages(&group, estimator);
    for (sample, advantages) in samples.iter_mut().zip(of_turns) {
        sample.turn_advantages = Some(Arc::new(advantages));
    }
}
