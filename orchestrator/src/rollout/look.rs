//! A snapshot of a running step, for displays and for `rolldock why`.
//!
//! Snapshots are plain values that can be sent to another process. The cost of a snapshot is proportional to
//! the number of open waits. A snapshot is taken only on request.

use std::collections::BTreeMap;

use rolldock_dispatch::Totals;
use serde::{Deserialize, Serialize};

use crate::rollout::EarlyStop;
use crate::rollout::board::Counts;
use crate::rollout::control::RolloutView;
use crate::rollout::waits::{Phase, Waiting};

/// An open wait.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct WaitLook {
    /// The phase that the wait is in.
    pub phase: Phase,
    /// The age of the wait, in seconds.
    pub age_s: f64,
    /// The group's dispatch.
    pub dispatch: Option<u64>,
    /// The index of the request's first sample in its group.
    pub sample: Option<u32>,
    /// The server that has the request.
    pub server: Option<String>,
    /// The number of tokens so far, if the engine streams tokens.
    pub tokens: Option<u64>,
    /// A further description, such as a version.
    pub detail: Option<String>,
}

impl From<Waiting> for WaitLook {
    fn from(waiting: Waiting) -> Self {
        let Waiting { phase, age, subject, tokens } = waiting;
        Self {
            phase,
            age_s: age.as_secs_f64(),
            dispatch: subject.dispatch.map(|id| id.0),
            sample: subject.sample,
            server: subject.server.as_deref().map(str::to_owned),
            tokens,
            detail: subject.detail.as_deref().map(str::to_owned),
        }
    }
}

/// The oldest group of a step that has not ended.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct GroupLook {
    /// The group's dispatch. If the prompt waits for its next dispatch, this is the last dispatch.
    pub dispatch: u64,
    /// Its number in dispatch order.
    pub number: u64,
    /// The `prompt_uid` of the prompt, as in rows and logs.
    pub prompt_uid: String,
    /// The prompt's row in the data.
    pub row: u64,
    /// The time for which the group has run, in seconds; `None` if the prompt waits for its next dispatch.
    pub age_s: Option<f64>,
    /// Valid groups without a decision. If groups are decided in dispatch order, they wait for this group.
    pub behind: usize,
    /// The waits of its samples. Samples without a wait have finished.
    pub waits: Vec<WaitLook>,
}

/// A snapshot of the step in progress.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct StepLook {
    /// The number of the step; 0 before the first step. A resumed run begins with the number of the step before the
    /// one that it continues with.
    pub step: u64,
    /// Whether groups are still accepted. If not, the run is between two steps.
    pub is_open: bool,
    /// Whether the step needs new groups, and the data has prompts for them. `counts.hold` is the reason why they are
    /// held back.
    pub wants_new: bool,
    /// Whether all prompts of the data have been sent out.
    #[serde(default)]
    pub data_has_ended: bool,
    /// The workers that start no group because they have as many groups, or samples in flight, as the recipe allows.
    #[serde(default)]
    pub workers_without_places: usize,
    /// The workers that have places for a further group and start none because the fleet is full (`rollout.fill`).
    #[serde(default)]
    pub workers_at_full_fleet: usize,
    /// The rule by which the step accepts groups and ends.
    pub early_stop: EarlyStop,
    /// Groups by state.
    pub counts: Counts,
    /// The policy version of the servers.
    pub policy_version: u64,
    /// The oldest group that has not ended.
    pub oldest: Option<GroupLook>,
    /// The number of open waits by phase. Phases without a wait are left out.
    pub waiting: BTreeMap<Phase, usize>,
    /// The oldest wait of each phase. Phases without a wait are left out.
    pub oldest_waits: Vec<WaitLook>,
}

impl RolloutView {
    /// The oldest group of the step that has not ended.
    pub fn oldest(&self) -> Option<GroupLook> {
        // The lock of the board is released before the lock of the waits is taken.
        let oldest = self.board.lock().oldest()?;
        let id = oldest.dispatch;
        let waits = if oldest.is_running { self.waits.all_of_dispatch(id) } else { Vec::new() };
        Some(GroupLook {
            dispatch: id.0,
            number: oldest.number,
            prompt_uid: oldest.prompt.uid.to_string(),
            row: oldest.prompt.row,
            age_s: self.waits.group_age(id).filter(|_| oldest.is_running).map(|age| age.as_secs_f64()),
            behind: oldest.behind,
            waits: waits.into_iter().map(WaitLook::from).collect(),
        })
    }

    /// A snapshot of the step in progress. Between two steps, it is a snapshot of the step that has ended.
    pub fn look(&self) -> StepLook {
        // The locks of the board and of the waits are never held together.
        let (oldest, oldest_waits) = (self.oldest(), self.waits.oldest());
        let counted = |phase: Phase| Some((phase, self.waits.count(phase))).filter(|(_, count)| *count > 0);
        let held = &self.signals.held_workers;
        let board = self.board.lock();
        StepLook {
            step: board.step(),
            is_open: !board.is_stopped(),
            wants_new: board.has_use_for_new(),
            data_has_ended: board.out_of_prompts(),
            workers_without_places: held.by_places(),
            workers_at_full_fleet: held.by_fleet(),
            early_stop: board.early_stop(),
            counts: board.counts(),
            policy_version: board.policy_version(),
            oldest,
            waiting: Phase::ALL.into_iter().filter_map(counted).collect(),
            oldest_waits: oldest_waits.into_iter().map(WaitLook::from).collect(),
        }
    }

    /// The dispatches of the whole run, by fate.
    pub fn run_totals(&self) -> Totals {
        self.board.lock().dispatches().run_totals().clone()
    }
}
