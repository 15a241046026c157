//! Drives a step: starts its workers, draws prompts for them, and ends them.

use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio_util::task::AbortOnDropHandle;

use super::AgentLoopManager;
use crate::rollout::holding::Holding;
use crate::rollout::outage::RewardWatch;
use crate::rollout::sample::StepContext;
use crate::rollout::worker::{AgentLoopWorker, StepState};
use crate::rollout::{PromptFeed, RolloutError};

impl AgentLoopManager {
    /// Runs the workers, draws prompts for them, and returns when all workers have ended.
    pub(super) async fn drive(
        &self,
        prompts: &PromptFeed,
        context: &Arc<StepContext>,
        state: &Arc<StepState>,
    ) -> Result<(), RolloutError> {
        let mut rewards = self.rewards.clone();
        state.board.lock().set_reward_is_out(rewards.is_out());
        let mut holding = Holding::new(Arc::clone(&self.waits), Arc::clone(&self.timeline));
        let mut workers: FuturesUnordered<_> = (0..self.config.workers)
            .map(|_| {
                let worker = AgentLoopWorker { context: Arc::clone(context), state: Arc::clone(state) };
                self.scope.spawn("rollout worker", worker.run())
            })
            .collect();
        let mut failure = None;
        loop {
            let changed = state.signals.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let wanted = {
                let mut board = state.board.lock();
                holding.note(board.hold_of_all(), board.policy_version());
                if board.is_finished() && !board.is_stopped() {
                    board.finish();
                    state.publish(context, &mut board);
                }
                board.draw_wanted()
            };
            if workers.is_empty() {
                break;
            }
            if wanted > 0 {
                match prompts.draw(wanted, &self.scope).await {
                    Ok(drawn) => state.board.lock().add_prompts(wanted, drawn),
                    Err(error) => {
                        failure = Some(error);
                        state.board.lock().stop();
                    }
                }
                state.publish(context, &mut state.board.lock());
                continue;
            }
            tokio::select! {
                biased;
                () = state.stop.cancelled() => break,
                () = self.grades.has_ended.cancelled() => break,
                Some(worker) = workers.next() => if let Err(error) = worker {
                    failure = failure.or(Some(RolloutError::WorkerDied { reason: error.to_string() }));
                    state.board.lock().stop();
                    state.publish(context, &mut state.board.lock());
                },
                () = rewards.changed() => self.follow_rewards(&rewards, context, state),
                () = &mut changed => {}
                () = state.signals.low.notified() => {}
            }
        }
        // The stopped board tells the workers about an interrupt.
        state.board.lock().stop();
        state.publish(context, &mut state.board.lock());
        self.drain(workers).await;
        let ended_by_reward = || self.grades.ending().map(|reason| RolloutError::Reward { reason });
        failure.or_else(ended_by_reward).map_or(Ok(()), Err)
    }

    /// Waits for the workers of a step that has stopped, and aborts workers that take longer than `drain`.
    async fn drain(&self, mut workers: FuturesUnordered<AbortOnDropHandle<()>>) {
        let drain = self.config.timeouts.drain;
        let in_time = tokio::time::timeout(drain, async { while workers.next().await.is_some() {} }).await;
        if in_time.is_err() {
            let drain_s = drain.as_secs_f64();
            tracing::warn!(drain_s, "workers did not end in time and are aborted; their groups are cut off");
            workers.iter().for_each(AbortOnDropHandle::abort);
            // An aborted task returns its permits and requests only when the runtime polls it next.
            while workers.next().await.is_some() {}
        }
    }

    /// Sends out nothing during a reward's outage, and ends the run if a reward is given up.
    fn follow_rewards(&self, rewards: &RewardWatch, context: &StepContext, state: &StepState) {
        if let Some(error) = rewards.given_up() {
            self.grades.end(&error);
        }
        let mut board = state.board.lock();
        board.set_reward_is_out(rewards.is_out());
        state.publish(context, &mut board);
    }
}
