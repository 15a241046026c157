//! Queries of a run's state.

use std::collections::BTreeMap;

use rolldock_dispatch::history::PromptHistory;
use rolldock_dispatch::{DispatchId, Position, TokenTotals, Totals};

use super::{LedgerState, QueuedPrompt, StepState};
use crate::{DispatchRecord, RunRecord};

impl LedgerState {
    pub(super) fn last_step(&self) -> u64 {
        self.steps.last_key_value().map_or(0, |(step, _)| *step)
    }

    /// The first record, if there is one.
    pub fn run(&self) -> Option<&RunRecord> {
        self.run.as_ref()
    }

    /// Number of processes that have worked on the run so far.
    pub fn lives(&self) -> u32 {
        self.lives
    }

    /// Dispatches of the run by fate.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Response tokens of the run by bucket, as of the last end of a dispatch.
    pub fn run_tokens(&self) -> &TokenTotals {
        &self.run_tokens
    }

    /// Steps that have begun, by number.
    pub fn steps(&self) -> &BTreeMap<u64, StepState> {
        &self.steps
    }

    /// Dispatches in flight, oldest first.
    pub fn open(&self) -> impl Iterator<Item = &DispatchRecord> {
        self.open.values()
    }

    /// Accepted dispatches that are not [settled](crate::Record::Settled), oldest first.
    pub fn accepted(&self) -> impl Iterator<Item = &DispatchRecord> {
        self.accepted.values().map(|accepted| &accepted.dispatch)
    }

    /// A dispatch, while it is in flight.
    pub fn in_flight(&self, id: DispatchId) -> Option<&DispatchRecord> {
        self.open.get(&id)
    }

    /// The step in progress, or the last step that has ended; 0 before the first one.
    pub fn current_step(&self) -> u64 {
        self.current
    }

    /// Prompts that wait for their next dispatch, in dispatch order.
    pub fn queued(&self) -> impl Iterator<Item = &QueuedPrompt> {
        self.queued.values()
    }

    /// Whether the file of this step has tokens that are still needed.
    pub fn needs_tokens_of(&self, step: u64) -> bool {
        self.token_files.contains_key(&step)
    }

    /// The id of the next dispatch.
    pub fn next_dispatch(&self) -> DispatchId {
        DispatchId(self.next_id)
    }

    /// The number of the next new prompt.
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// The position in the data after the last new prompt that was sent out. `None` before the first prompt,
    /// or if the source of the data has no positions.
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// The history of the prompts.
    pub fn history(&self) -> &PromptHistory {
        &self.history
    }

    /// The policy version that generates tokens.
    pub fn policy_version(&self) -> u64 {
        self.policy_version
    }
}
