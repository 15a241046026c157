//! The groups of a table.

use tokio::time::Instant;

use super::RowHandle;
use super::index::Keys;
use super::samples::GroupSamples;
use crate::take::ReadyGroup;

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) key: String,
    /// The time when the group got its first row, or when the queue was opened if that was later.
    pub(crate) since: Instant,
    pub(crate) size: usize,
    /// The live rows, in the order of their puts.
    pub(crate) rows: Vec<RowHandle>,
    /// The number of rows that were ever put.
    pub(crate) put: usize,
    pub(crate) policy_version: u64,
    pub(crate) priority: i64,
    /// The tokens of the live rows.
    pub(crate) tokens: u64,
    /// Whether the group counts rows, and a put brought only a part of them.
    pub(crate) in_parts: bool,
    /// The number of ready rows for each task.
    pub(super) ready: Vec<usize>,
    /// The number of ready or acked rows, summed over all tasks. It stays 0 until the first search for groups to drop.
    pub(super) settled: usize,
    /// The samples, if the group counts samples instead of rows. `size` is then a number of samples.
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

    /// Whether the group is complete: all its rows have been put, or, if it counts samples, it is closed.
    pub(super) fn is_whole(&self) -> bool {
        match &self.samples {
            Some(samples) => samples.is_closed(),
            None => self.put == self.size,
        }
    }

    /// Whether the group is complete and has rows, and all of them are ready for the task.
    pub(super) fn is_ready(&self, task: usize) -> bool {
        self.is_whole() && self.ready[task] == self.rows.len() && !self.rows.is_empty()
    }
}
