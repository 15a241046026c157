//! Owner records: opaque texts that puts contain. They are stored oldest first, until their owner forgets
//! them.
//!
//! # Invariants
//! The bytes of the records are counted. A put is refused if its record would exceed the limit. A record
//! counts once its put is published, so puts that are in progress at the same time can exceed the limit
//! together.

use super::Table;
use super::texts::Texts;
use crate::error::QueueError;
use crate::invariants::{self, Violation};

/// The maximum size of the records of a partition, in bytes.
const RECORDS_BYTES_MAX: usize = 256 << 20;

/// The records of a table.
#[derive(Debug, Default)]
pub(super) struct OwnerRecords {
    kept: Texts<()>,
    bytes: usize,
}

impl OwnerRecords {
    fn has_room(&self, bytes: usize) -> bool {
        bytes == 0 || self.bytes + bytes <= RECORDS_BYTES_MAX
    }

    fn push(&mut self, record: &str) {
        self.bytes += record.len();
        self.kept.push(record, ());
    }

    fn forget(&mut self, count: usize) {
        for _ in 0..count.min(self.kept.len()) {
            self.bytes -= self.kept.oldest().map_or(0, |(record, ())| record.len());
            self.kept.forget_oldest();
        }
    }

    /// Checks the count of bytes, in O(records).
    pub(super) fn check(&self) -> Result<(), Violation> {
        let bytes = self.kept.iter().map(|(record, ())| record.len()).sum();
        invariants::counts_agree("bytes of records", bytes, self.bytes)
    }
}

impl Table {
    /// Returns an error if a record of this many bytes would exceed the limit.
    pub(super) fn check_record(&self, bytes: usize) -> Result<(), QueueError> {
        if self.records.has_room(bytes) {
            return Ok(());
        }
        Err(QueueError::RecordsFull {
            partition: self.spec.name.clone(),
            bytes: self.records.bytes,
            bytes_max: RECORDS_BYTES_MAX,
        })
    }

    pub(crate) fn keep_record(&mut self, record: &str) {
        self.records.push(record);
    }

    /// The records, oldest first. A clone of them costs little, and does not change.
    pub(crate) fn records(&self) -> &Texts<()> {
        &self.records.kept
    }

    /// Forgets the oldest `count` records.
    pub(crate) fn forget_records(&mut self, count: usize) {
        self.records.forget(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_records_are_forgotten_first_and_their_bytes_are_free_again() {
        let mut records = OwnerRecords::default();
        for record in ["one", "three", "five"] {
            records.push(record);
        }
        assert_eq!((records.bytes, records.check()), (12, Ok(())));
        records.forget(2);
        assert_eq!((records.bytes, records.kept.oldest()), (4, Some(("five", &()))));
        records.forget(9);
        assert_eq!((records.bytes, records.kept.len(), records.check()), (0, 0, Ok(())));
    }

    #[test]
    fn records_fit_up_to_the_limit_and_a_put_without_a_record_always_fits() {
        let records = OwnerRecords { kept: Texts::default(), bytes: RECORDS_BYTES_MAX - 1 };
        assert!(records.has_room(1) && !records.has_room(2) && records.check().is_err());
        let full = OwnerRecords { bytes: RECORDS_BYTES_MAX + 1, ..records };
        assert!(full.has_room(0) && !full.has_room(1));
    }
}
