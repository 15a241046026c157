//! The groups of a table.

use std::ops::Range;

use super::index::Keys;
use super::live::{SLICE_ROWS, weight};
use super::samples::GroupSamples;
use super::{RowHandle, Table};
use crate::take::ReadyGroup;

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) key: String,
    pub(crate) size: usize,
    /// The live rows, in the order of their puts.
    pub(crate) rows: Vec<RowHandle>,
    /// The number of rows that were ever put.
    pub(crate) put: usize,
    pub(crate) policy_version: u64,
    pub(crate) priority: i64,
    /// The tokens of the live rows.
    pub(crate) tokens: u64,
    /// Whether the rows come in several puts.
    pub(crate) in_parts: bool,
    /// The number of ready rows for each task.
    pub(super) ready: Vec<usize>,
    /// The number of ready or acked rows, summed over all tasks. It is counted from the first drop on.
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

    /// Whether the group gets no more rows.
    pub(super) fn is_whole(&self) -> bool {
        match &self.samples {
            Some(samples) => samples.is_closed(),
            None => self.put == self.size,
        }
    }

    /// Whether the group is complete and every row is ready for the task.
    pub(super) fn is_ready(&self, task: usize) -> bool {
        self.is_whole() && self.ready[task] == self.rows.len() && !self.rows.is_empty()
    }
}

impl Table {
    /// Returns the next groups of a range, with about [`SLICE_ROWS`] rows in all, and shortens the range to the
    /// rest. Code that needs many groups locks the table for each of these slices, so that takes and puts get
    /// their turns.
    pub(in crate::partition) fn next_groups(&self, range: &mut Range<u64>) -> Vec<(u64, &Group)> {
        let (mut groups, mut rows) = (Vec::new(), 0);
        for (id, group) in self.groups.range(range.clone()) {
            if rows >= SLICE_ROWS {
                range.start = *id;
                return groups;
            }
            rows += weight(group);
            groups.push((*id, group));
        }
        range.start = range.end;
        groups
    }
}
