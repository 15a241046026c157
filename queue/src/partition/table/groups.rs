//! A group as the table knows it.

use super::RowHandle;
use super::index::Keys;
use super::samples::GroupSamples;
use crate::take::ReadyGroup;

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) key: String,
    pub(crate) size: usize,
    /// Live rows, in order of their puts.
    pub(crate) rows: Vec<RowHandle>,
    /// Rows ever put.
    pub(crate) put: usize,
    pub(crate) policy_version: u64,
    pub(crate) priority: i64,
    /// Tokens of its live rows.
    pub(crate) tokens: u64,
    /// Whether its rows came in several puts, or are to.
    pub(crate) in_parts: bool,
    /// Per task: rows that are ready.
    pub(super) ready: Vec<usize>,
    /// Number of rows that are ready or acked, over all tasks. Counted from the first drop of a group on.
    pub(super) settled: usize,
    /// Where it is put by samples: then its size counts these.
    pub(super) samples: Option<Box<GroupSamples>>,
}

impl Group {
    pub(super) fn keys(&self) -> Keys {
        Keys { policy_version: self.policy_version, priority: self.priority }
    }

    pub(super) fn view(&self) -> ReadyGroup<'_> {
        ReadyGroup {
            group: &self.key,
            rows: self.rows.len(),
            tokens: self.tokens,
            policy_version: self.policy_version,
            priority: self.priority,
        }
    }

    /// Whether no more rows will come.
    pub(super) fn is_whole(&self) -> bool {
        match &self.samples {
            Some(samples) => samples.is_closed(),
            None => self.put == self.size,
        }
    }

    /// Whether every row is there and ready for the task.
    pub(super) fn is_ready(&self, task: usize) -> bool {
        self.is_whole() && self.ready[task] == self.rows.len() && !self.rows.is_empty()
    }
}
