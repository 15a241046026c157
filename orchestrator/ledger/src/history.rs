//! Questions that people ask a ledger: what became of a prompt, and why is a step short.
//!
//! One pass over the log, which may be that of a run at work. Only what was asked for is kept.

use std::collections::BTreeMap;
use std::path::Path;

use rolldock_dispatch::{DispatchId, Fate};

use super::{DispatchRecord, LedgerError, LedgerState, LogEnd, Next, Record, read_log};

/// A dispatch with what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatchHistory {
    /// The record of the sending.
    pub dispatch: DispatchRecord,
    /// The step that its end counts for; `None` while it is in flight.
    pub ended_in: Option<u64>,
    /// `None` while it is in flight.
    pub fate: Option<Fate>,
    /// What becomes of its prompt, once it has ended.
    pub next: Option<Next>,
    /// It was called accepted, and its rows never came to the queue.
    pub is_taken_back: bool,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Dispatches that were asked for, oldest first.
    pub dispatches: Vec<DispatchHistory>,
    /// The fold of the whole log.
    pub state: LedgerState,
    /// Where its sound part ends.
    pub end: LogEnd,
}

impl History {
    /// Reads the ledger in `dir` and keeps the dispatches that `is_asked_for`, each when it has ended, or is
    /// in flight at the end of the log. Blocks.
    ///
    /// # Errors
    /// What [`read_log`] and [`LedgerState::apply`] say.
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

    /// Why groups failed: each reason with how often it was, the most frequent first.
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
