//! The check of a partition's table, in slices if the partition is in use.

use std::ops::Range;

use super::Partition;
use crate::invariants::Violation;
use crate::row::RowHandle;

impl Partition {
    /// Returns the violated invariants of the table, in O(rows). If the partition is in use, the table is
    /// locked for about a thousand rows at a time. Invariants over all rows are not checked in that case. The
    /// caller can compare counts of the rows with [totals](super::Totals) that were captured with the rows.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        if self.shared.log.is_read_only() {
            return self.shared.table.lock().violations();
        }
        let (mut found, mut groups) = {
            let table = self.shared.table.lock();
            (table.violations_beside_rows(), 0..table.next_group())
        };
        while !groups.is_empty() {
            found.extend(self.shared.table.lock().violations_of_groups(&mut groups));
        }
        found
    }

    /// The range of all groups that exist now.
    pub(crate) fn all_groups(&self) -> Range<u64> {
        0..self.shared.table.lock().next_group()
    }

    /// Returns the rows of the next groups of a range, about a thousand rows in all, and shortens the range
    /// to the rest.
    pub(crate) fn next_rows(&self, groups: &mut Range<u64>) -> Vec<Vec<RowHandle>> {
        let table = self.shared.table.lock();
        table.next_groups(groups).into_iter().map(|(_, group)| group.rows.clone()).collect()
    }
}
