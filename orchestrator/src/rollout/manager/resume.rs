//! Restores a manager to the state in which an earlier process left the run.

use rolldock_ledger::LedgerWriter;

use super::AgentLoopManager;
use crate::rollout::guard::GuardState;
use crate::rollout::{EarlyStop, Restored};

impl AgentLoopManager {
    /// Writes the fate of every dispatch into `journal`. If there is `restored` state, continues from it.
    pub fn keep_journal(&mut self, journal: LedgerWriter, restored: Option<Restored>) {
        let mut board = self.board.lock();
        if let Some(restored) = restored {
            let rule = restored.resumption.rule.as_deref().and_then(EarlyStop::named);
            if let (Some(guard), Some(rule)) = (&self.config.bias_guard, rule) {
                let state = GuardState::after_rule(guard, self.config.early_stop, rule);
                if state.has_changed_the_rule() {
                    board.set_early_stop(rule);
                }
                *self.guard.lock() = state;
            }
            self.step = board.restore(restored);
            self.versions.serve(board.policy_version());
        }
        board.keep_journal(journal);
    }
}
