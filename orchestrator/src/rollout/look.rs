//! A look at a running step, for displays and for the question why it has not ended.
//!
//! These are plain values that can be sent to another process. A look costs time in proportion to the open
//! waits, and is taken only when someone asks.

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
    /// What is waited for.
    pub phase: Phase,
    /// How long it has lasted; seconds.
    pub age_s: f64,
    /// The group's dispatch.
    pub dispatch: Option<u64>,
    /// The place of the request's first sample in its group.
    pub sample: Option<u32>,
    /// The server that is asked.
    pub server: Option<String>,
    /// The tokens so far, if the engine reports them as they come.
    pub tokens: Option<u64>,
    /// Further words.
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
    /// Its dispatch; the last one, if the prompt waits to be sent out again.
    pub dispatch: u64,
    /// Its place in dispatch order.
    pub number: u64,
    /// The prompt, as rows and logs name it.
    pub prompt_uid: String,
    /// The prompt's row in the data.
    pub row: u64,
    /// How long the group has run; seconds. `None` if the prompt waits to be sent out again.
    pub age_s: Option<f64>,
    /// Valid groups without a decision. If groups are decided in dispatch order, they wait for this one.
    pub behind: usize,
    /// What its samples wait for. Samples without a wait have finished.
    pub waits: Vec<WaitLook>,
}

/// A step in progress.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct StepLook {
    /// Its number; 0 before the first step.
    pub step: u64,
    /// Whether groups are still accepted. If not, the run is between two steps.
    pub is_open: bool,
    /// Whether it has a use for new groups. `counts.hold` says what holds them back.
    pub wants_new: bool,
    /// Which groups it accepts, and when it ends.
    pub early_stop: EarlyStop,
    /// Groups by state.
    pub counts: Counts,
    /// The version of the servers.
    pub policy_version: u64,
    /// The oldest group that has not ended.
    pub oldest: Option<GroupLook>,
    /// The number of open waits of each phase that has any.
    pub waiting: BTreeMap<Phase, usize>,
    /// The oldest wait of each phase that has any.
    pub oldest_waits: Vec<WaitLook>,
}

impl RolloutView {
    /// The oldest group of the step that has not ended.
    pub fn oldest(&self) -> Option<GroupLook> {
        // The lock of the board is released before that of the waits is taken.
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

    /// The step in progress, or the last one between two steps.
    pub fn look(&self) -> StepLook {
        // The lock of the board is not held while that of the waits is.
        let (oldest, oldest_waits) = (self.oldest(), self.waits.oldest());
        let counted = |phase: Phase| Some((phase, self.waits.count(phase))).filter(|(_, count)| *count > 0);
        let board = self.board.lock();
        StepLook {
            step: board.step(),
            is_open: !board.is_stopped(),
            wants_new: board.has_use_for_new(),
            early_stop: board.early_stop(),
            counts: board.counts(),
            policy_version: board.policy_version(),
            oldest,
            waiting: Phase::ALL.into_iter().filter_map(counted).collect(),
            oldest_waits: oldest_waits.into_iter().map(WaitLook::from).collect(),
        }
    }

    /// What has been dispatched in the whole run, by fate.
    pub fn run_totals(&self) -> Totals {
        self.board.lock().dispatches().run_totals().clone()
    }
}
