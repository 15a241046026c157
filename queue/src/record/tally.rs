//! Counts of the records of a journal and of its rewrites.

use super::Record;

/// Counts the records of a journal, in their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// The number of records.
    pub(crate) records: u64,
    /// How often the journal was rewritten.
    pub(crate) rewrites: u64,
}

impl Tally {
    pub(crate) fn count(&mut self, record: &Record) {
        self.records += 1;
        if let Record::Floor { rewrites, .. } = record {
            self.rewrites = self.rewrites.max(*rewrites);
        }
    }
}
