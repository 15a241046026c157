//! The oldest groups that have not ended. A step or a flow waits for them.

use std::collections::BTreeSet;
use std::sync::Arc;

use rolldock_dispatch::DispatchId;

use super::{Board, Slot};
use crate::data::Prompt;

/// The first number in dispatch order whose group has not ended.
#[derive(Debug, Clone)]
pub(crate) struct Oldest {
    pub(crate) number: u64,
    /// The group's running dispatch. If the prompt waits for its next dispatch, this is the last dispatch.
    pub(crate) dispatch: DispatchId,
    pub(crate) prompt: Arc<Prompt>,
    pub(crate) is_running: bool,
    /// Valid groups that are not decided yet. If groups are decided in dispatch order, they wait for this
    /// group.
    pub(crate) behind: usize,
}

impl Board {
    /// The group that the step waits for: the first running group in dispatch order.
    pub(crate) fn waits_for(&self) -> Option<(DispatchId, Arc<Prompt>)> {
        self.slots.values().find_map(|slot| match slot {
            Slot::Running(dispatch, _) => Some((dispatch.id, Arc::clone(&dispatch.prompt))),
            _ => None,
        })
    }

    /// The running groups for which a flow will soon wait: enough valid groups of its step have ended, but these come
    /// before them in dispatch order. Without the trainer's next version, the flow can send out less than another step.
    pub(crate) fn blocking(&self) -> BTreeSet<DispatchId> {
        let keeps_order = self.early_stop().keeps_dispatch_order();
        if self.flow_until.is_none() || !keeps_order || self.admits() >= self.target as u64 {
            return BTreeSet::new();
        }
        let needed = self.target.saturating_sub(self.accepted_count);
        let last_needed = needed.checked_sub(1).and_then(|before| self.undecided.iter().nth(before));
        let Some(last_needed) = last_needed else { return BTreeSet::new() };
        let before = self.slots.range(..last_needed).filter_map(|(_, slot)| match slot {
            Slot::Running(dispatch, _) => Some(dispatch.id),
            _ => None,
        });
        before.collect()
    }

    /// The first group in dispatch order that has not ended; `None` if every group has ended.
    pub(crate) fn oldest(&self) -> Option<Oldest> {
        let (number, slot) = self.slots.iter().find(|(_, slot)| !matches!(slot, Slot::Valid(_)))?;
        let (dispatch, prompt, is_running) = match slot {
            Slot::Running(dispatch, _) => (dispatch.id, Arc::clone(&dispatch.prompt), true),
            Slot::Queued(requeued) => (requeued.parent, Arc::clone(&requeued.prompt), false),
            Slot::Valid(_) => return None,
        };
        Some(Oldest { number: *number, dispatch, prompt, is_running, behind: self.undecided.len() })
    }
}
