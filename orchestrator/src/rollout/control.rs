//! Handles to a running rollout. `RolloutView` reads the state of the rollout. `RolloutControl` tells the
//! rollout about policy versions and the queue.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_dispatch::bias::BiasReading;
use rolldock_dispatch::modes::OnSilence;
use rolldock_dispatch::{TokenTotals, Totals};

use crate::rollout::board::{Board, Counts};
use crate::rollout::meter::{Meter, StepCosts};
use crate::rollout::outage::RewardWatch;
use crate::rollout::versions::Versions;
use crate::rollout::waits::Waits;
use crate::rollout::watchdog::Watchdog;
use crate::rollout::worker::Signals;

/// Reads the state of a running step. It is cheap to clone and to query.
#[derive(Clone)]
pub struct RolloutView {
    pub(crate) board: Arc<Mutex<Board>>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) waits: Arc<Waits>,
    pub(crate) signals: Arc<Signals>,
}

impl RolloutView {
    /// Groups by state.
    pub fn counts(&self) -> Counts {
        self.board.lock().counts()
    }

    /// The step that is being collected.
    pub fn step(&self) -> u64 {
        self.board.lock().step()
    }

    /// Dispatches of the step by fate.
    pub fn totals(&self) -> Totals {
        self.board.lock().dispatches().step_totals().clone()
    }

    /// Response tokens of the step so far, by bucket.
    pub fn tokens(&self) -> TokenTotals {
        self.board.lock().dispatches().tokens().step()
    }

    /// Response tokens of the run so far, by bucket.
    pub fn run_tokens(&self) -> TokenTotals {
        self.board.lock().dispatches().tokens().run()
    }

    /// Costs of the step so far.
    pub fn costs(&self) -> StepCosts {
        self.meter.step_costs()
    }

    /// The bias of accepted groups, up to the last step whose groups are all decided.
    pub fn bias(&self) -> BiasReading {
        self.board.lock().dispatches().bias()
    }

    /// The waits that are open.
    pub fn waits(&self) -> &Waits {
        &self.waits
    }
}

/// Tells a rollout about policy versions and the queue. It is cheap to clone.
#[derive(Clone)]
pub struct RolloutControl {
    pub(crate) board: Arc<Mutex<Board>>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) waits: Arc<Waits>,
    pub(crate) versions: Arc<Versions>,
    pub(crate) rewards: RewardWatch,
}

impl RolloutControl {
    /// Notes that the servers have this version now. Groups that have become too old for the recipe are given
    /// up. Prompts that waited for the trainer are sent out.
    pub fn set_policy_version(&self, version: u64) {
        let fresh_from = {
            let mut board = self.board.lock();
            let fresh_from = board.set_policy_version(version);
            self.versions.serve(board.policy_version());
            fresh_from
        };
        self.signals.fresh_from.set(fresh_from);
        self.waits.progressed();
        self.signals.changed.notify_waiters();
    }

    /// Notes that the servers will have this version soon. Groups that the version makes too old for the
    /// recipe are given up now, so that they are not carried over the update.
    pub fn retire_before(&self, version: u64) {
        self.versions.expect(version);
        let fresh_from = self.board.lock().fresh_from_at(version);
        self.signals.fresh_from.set(fresh_from);
    }

    /// From now on, believes a server's label only if its number is at most `announced`, or a version that is
    /// announced later by [`retire_before`](Self::retire_before) or [`set_policy_version`](Self::set_policy_version).
    /// Tokens with another label count as tokens of the version that the servers should have. The rollout warns of
    /// such a label.
    pub fn believe_only_announced(&self, announced: u64) {
        self.versions.believe_only_announced(announced);
    }

    /// From now on, accepts no answer with a label that is not one of the run, if its request was sent at a version after
    /// `announced`. The caller gives these versions and their labels to the servers, so a server with another label has
    /// other weights.
    pub fn sets_labels_after(&self, announced: u64) {
        self.versions.sets_labels_after(announced);
    }

    /// The version that the servers have.
    pub fn policy_version(&self) -> u64 {
        self.versions.served()
    }

    /// Notes that one more accepted group is in the queue or will never be put into the queue.
    pub fn was_put(&self) {
        self.board.lock().was_put();
        self.waits.progressed();
        self.signals.changed.notify_waiters();
    }

    /// Counts the response tokens of a validation. A validation has its own rollout on the same servers.
    pub fn count_validation(&self, tokens: &TokenTotals) {
        self.board.lock().dispatches().count_validation(tokens);
    }

    /// The waits that are open.
    pub fn waits(&self) -> &Arc<Waits> {
        &self.waits
    }

    /// A watchdog for this rollout. `silence` is the time without progress after which it reports.
    pub fn watchdog(&self, silence: Duration, action: OnSilence) -> Watchdog {
        Watchdog {
            waits: Arc::clone(&self.waits),
            board: Arc::clone(&self.board),
            signals: Arc::clone(&self.signals),
            rewards: self.rewards.clone(),
            silence,
            action,
        }
    }
}
