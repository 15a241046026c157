//! Watches the rewards of a run that are outside of this process: the reward itself and the gates.
//!
//! The guards in [`rolldock_reward::external`] detect outages, hold the samples that wait for grades, and
//! probe the reward. The rollout sends out no group during an outage, and it ends when a reward is given up.
//! A running group continues to its last token, and then waits for its grades without a permit.

use futures::future::select_all;
use rolldock_reward::{Gates, RewardError, RewardHealth, RewardState};
use tokio::sync::watch;

use crate::rollout::grading::Grades;

/// The rewards that are watched. The value is cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct RewardWatch {
    rewards: Vec<watch::Receiver<RewardHealth>>,
}

impl RewardWatch {
    pub(crate) fn new(grades: &Grades, gates: &Gates) -> Self {
        let mut rewards = gates.outside_health();
        rewards.extend(grades.health());
        let watch = Self { rewards };
        if !watch.rewards.is_empty() {
            watch.meter();
        }
        watch
    }

    /// Whether a reward is in an outage, so that samples wait for it.
    pub(crate) fn is_out(&self) -> bool {
        self.any(|state| *state == RewardState::Out)
    }

    /// Whether no reward is known to fail.
    pub(crate) fn all_answer(&self) -> bool {
        !self.any(|state| *state != RewardState::Answering)
    }

    /// The error that ends the run, if a reward is given up.
    pub(crate) fn given_up(&self) -> Option<RewardError> {
        self.rewards.iter().find_map(|reward| match &reward.borrow().state {
            RewardState::GivenUp(error) => Some(error.clone()),
            _ => None,
        })
    }

    /// Waits until the health of a reward has changed since the last call. The wait never ends if no reward
    /// is watched. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        if self.rewards.is_empty() {
            std::future::pending::<()>().await;
        }
        let changes = self.rewards.iter_mut().map(|reward| Box::pin(reward.changed()));
        let (changed, index, _) = select_all(changes).await;
        if changed.is_err() {
            // The reward was dropped, so its health does not change any more.
            drop(self.rewards.swap_remove(index));
        }
        self.meter();
    }

    fn any(&self, is: impl Fn(&RewardState) -> bool) -> bool {
        self.rewards.iter().any(|reward| is(&reward.borrow().state))
    }

    fn meter(&self) {
        let outages = self.rewards.iter().map(|reward| reward.borrow().outages).sum();
        metrics::counter!("rolldock_reward_outages_total").absolute(outages);
        metrics::gauge!("rolldock_reward_up").set(if self.is_out() { 0.0 } else { 1.0 });
    }
}
