//! Puts in progress: the reservations of puts that are not durable yet.
//!
//! # Invariants
//! The total number of rows is the sum over all groups. A group is present only while puts of its rows are in
//! progress.

use std::collections::{BTreeMap, HashMap};

use crate::invariants::{self, Violation};
use crate::put::Put;

/// The puts in progress of one group.
#[derive(Debug)]
pub(super) struct GroupUnderWay {
    /// The size of the group as the puts declare it.
    pub(super) size: usize,
    pub(super) rows: usize,
    /// The number of puts of each sample.
    pub(super) samples: BTreeMap<String, usize>,
}

/// All puts of a table that are in progress.
#[derive(Debug, Default)]
pub(super) struct PutsUnderWay {
    groups: HashMap<String, GroupUnderWay>,
    rows: usize,
    kib: u32,
}

impl PutsUnderWay {
    /// The number of rows in progress. They count against the capacity.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn group(&self, group: &str) -> Option<&GroupUnderWay> {
        self.groups.get(group)
    }

    pub(super) fn begin(&mut self, put: &Put, rows: usize, kib: u32) {
        self.rows += rows;
        self.kib += kib;
        let fresh = || GroupUnderWay { size: put.group_size, rows: 0, samples: BTreeMap::new() };
        let group = self.groups.entry(put.group.clone()).or_insert_with(fresh);
        group.rows += rows;
        if let Some(part) = &put.sample {
            *group.samples.entry(part.uid.clone()).or_default() += 1;
        }
    }

    /// Counts the rows of a journal record until they are published.
    pub(super) fn reserve_for_replay(&mut self, rows: usize, kib: u32) {
        self.rows += rows;
        self.kib += kib;
    }

    /// Ends a put, whether it succeeded or failed.
    pub(super) fn end(&mut self, group: &str, rows: usize, kib: u32, sample: Option<&str>) {
        self.rows -= rows;
        self.kib -= kib;
        let Some(under_way) = self.groups.get_mut(group) else { return };
        under_way.rows -= rows;
        if let Some(puts) = sample.and_then(|uid| under_way.samples.get_mut(uid)) {
            *puts -= 1;
        }
        under_way.samples.retain(|_, puts| *puts > 0);
        if under_way.rows == 0 {
            self.groups.remove(group);
        }
    }

    /// Checks that the counts agree, in O(groups in progress).
    pub(super) fn check(&self) -> Result<(), Violation> {
        if let Some(group) = self.groups.iter().find(|(_, group)| group.rows == 0).map(|(name, _)| name) {
            return Err(Violation(format!("group={group} has no rows under way")));
        }
        let rows = self.groups.values().map(|group| group.rows).sum();
        invariants::counts_agree("rows under way", rows, self.rows)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Int64Array, RecordBatch};

    use super::*;
    use crate::SamplePart;

    fn put(sample: &str) -> Put {
        let ids = Arc::new(Int64Array::from(vec![1]));
        let batch = RecordBatch::try_from_iter([("id", ids as _)]);
        let sample = Some(SamplePart { uid: sample.to_owned(), is_last: false });
        Put { group_size: 4, sample, ..Put::group("g", batch.unwrap_or_else(|error| panic!("{error}"))) }
    }

    #[test]
    fn a_group_is_remembered_while_rows_of_it_are_under_way() {
        let mut puts = PutsUnderWay::default();
        puts.begin(&put("a"), 2, 8);
        puts.begin(&put("b"), 1, 4);
        let Some(group) = puts.group("g") else { panic!("it is not remembered") };
        assert_eq!((group.size, group.rows, group.samples.len()), (4, 3, 2));
        assert_eq!((puts.rows(), puts.kib, puts.check()), (3, 12, Ok(())));
        puts.end("g", 2, 8, Some("a"));
        assert_eq!(puts.group("g").map(|group| group.samples.contains_key("a")), Some(false));
        assert_eq!((puts.rows(), puts.check()), (1, Ok(())));
        puts.end("g", 1, 4, Some("b"));
        assert!(puts.group("g").is_none());
        assert_eq!((puts.rows(), puts.kib, puts.check()), (0, 0, Ok(())));
    }

    #[test]
    fn rows_of_a_journal_belong_to_no_put() {
        let mut puts = PutsUnderWay::default();
        puts.reserve_for_replay(5, 3);
        assert!(puts.check().is_err(), "they are counted, and no put has them");
        puts.end("g", 5, 3, None);
        assert_eq!((puts.rows(), puts.check()), (0, Ok(())));
    }
}
