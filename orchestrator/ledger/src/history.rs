//! The history of dispatches. It shows the fates of a prompt, or why a step is short of groups.
//!
//! The log is read once, and only the requested dispatches are kept. The run may still be in progress.

use std::collections::BTreeMap;
use std::path::Path;

use rolldock_dispatch::{DispatchId, Fate};

use super::{DispatchRecord, LedgerError, LedgerState, LogEnd, Next, Record, read_log};

/// A dispatch with its fate.
#[derive(Debug, Clone, PartialEq)]
pub struct DispatchHistory {
    /// The record that was written when the dispatch was sent out.
    pub dispatch: DispatchRecord,
    /// The step in which the end of the dispatch is counted; `None` while the dispatch is in flight.
    pub ended_in: Option<u64>,
    /// The fate; `None` while the dispatch is in flight.
    pub fate: Option<Fate>,
    /// How the prompt of the dispatch continues; `None` while the dispatch is in flight.
    pub next: Option<Next>,
    /// Whether the dispatch was recorded as accepted, but its rows never reached the queue.
    pub is_taken_back: bool,
}

/// The requested dispatches of a ledger, and its state.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// The requested dispatches, oldest first.
    pub dispatches: Vec<DispatchHistory>,
    /// The state after the whole log.
    pub state: LedgerState,
    /// The end of the undamaged part of the log.
    pub end: LogEnd,
}

impl History {
    /// Reads the ledger in `dir` and keeps the dispatches for which `is_asked_for` returns true. The
    /// second argument of `is_asked_for` is the step in which the dispatch ended, or `None` for a dispatch that
    /// is in flight at the end of the log. Blocks.
    ///
    /// # Errors
    /// The errors of [`read_log`] and [`LedgerState::apply`].
    pub fn read(
        dir: &Path,
        is_asked_for: impl Fn(&DispatchRecord, Option<u64>) -> bool,
    ) -> Result<Self, LedgerError> {
        let mut state = LedgerState::default();
        let mut found: BTreeMap<DispatchId, DispatchHistory> = BTreeMap::new();
        let end = read_log(dir, |_, record| {
            if let Record::End { id, fate, next } = &record {
                let step = state.current_step();
                if let Some(taken_back) = found.get_mut(id) {
                    taken_back.is_taken_back = true;
                    (taken_back.fate, taken_back.next) = (Some(fate.clone()), Some(*next));
                } else if let Some(dispatch) = state.in_flight(*id)
                    && is_asked_for(dispatch, Some(step))
                {
                    let (fate, next, dispatch) = (Some(fate.clone()), Some(*next), dispatch.clone());
                    let ended_in = Some(step);
                    found.insert(
                        *id,
                        DispatchHistory { dispatch, ended_in, fate, next, is_taken_back: false },
                    );
                }
            }
            state.apply(&record)
        })?;
        for dispatch in state.open().filter(|dispatch| is_asked_for(dispatch, None)) {
            let dispatch = dispatch.clone();
            let (id, in_flight) = (dispatch.id, None);
            let history = DispatchHistory {
                dispatch,
                ended_in: in_flight,
                fate: None,
                next: None,
                is_taken_back: false,
            };
            found.insert(id, history);
        }
        Ok(Self { dispatches: found.into_values().collect(), state, end })
    }

    /// The reasons for which groups failed, with the number of groups. The most frequent reason is first.
    pub fn failures(&self) -> Vec<(&str, u64)> {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for history in &self.dispatches {
            if let Some(Fate::Failed(reason)) = &history.fate {
                *counts.entry(reason).or_default() += 1;
            }
        }
        let mut failures: Vec<(&str, u64)> = counts.into_iter().collect();
        failures.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        failures
    }
}

#[cfg(test)]
mod tests;
