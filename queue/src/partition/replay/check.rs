//! Checks whether an untrusted record can be applied.
//!
//! The journal's own records were valid when they were written. The records of a snapshot come from
//! elsewhere.

use std::collections::HashSet;

use super::Replay;
use crate::config::{ColumnSpec, check_depths};
use crate::error::QueueError;
use crate::partition::table::{GENERATION_MAX, SLOTS_AT_REST, SLOTS_MAX, Table};
use crate::record::{PutRecord, Record};
use crate::row::RowHandle;

impl Replay {
    /// Checks that `record` may be in a snapshot and fits the records before it. Its payload is not checked
    /// here.
    pub(crate) fn check(&mut self, record: &Record) -> Result<(), QueueError> {
        match record {
            Record::Declare { spec, generation_floor, .. } => {
                if spec.check().is_err()
                    || *generation_floor > GENERATION_MAX
                    || self.tables.contains_key(&spec.name)
                {
                    return Err(unsound(format!("a declaration of partition={}", spec.name)));
                }
                Ok(())
            }
            Record::Types { partition, columns } => {
                check_depths(columns)?;
                self.table(partition)?.check_columns(columns)
            }
            Record::Put(put) => self.table(&put.partition)?.check_put(put),
            Record::Columns { partition, rows, payload, overwrite, lengths, .. } => {
                let table = self.table(partition)?;
                are_distinct(rows)?;
                if !lengths.is_empty() && lengths.len() != rows.len() {
                    return Err(unsound(format!("lengths={} for rows={}", lengths.len(), rows.len())));
                }
                for handle in rows {
                    let row = table.row(*handle)?;
                    let present = row
                        .parts
                        .iter()
                        .flat_map(|part| part.columns.iter())
                        .find(|name| !overwrite && payload.columns.contains(name));
                    if let Some(column) = present {
                        return Err(QueueError::ColumnExists { column: column.clone() });
                    }
                }
                Ok(())
            }
            Record::Ack { partition, task, rows, .. } => {
                let table = self.table(partition)?;
                table.task(task)?;
                rows.iter().try_for_each(|row| table.row(*row).map(drop))
            }
            Record::Records { partition, .. }
            | Record::Version { partition, .. }
            | Record::Samples { partition, .. }
            | Record::Closed { partition, .. }
            | Record::End { partition } => self.table(partition).map(drop),
            Record::Tokens { partition, tokens } => {
                let rows: u64 = tokens.iter().map(|(_, rows)| rows.count()).sum();
                if rows > SLOTS_MAX as u64 {
                    return Err(unsound(format!("tokens of rows={rows}")));
                }
                self.table(partition).map(drop)
            }
            Record::Clear { .. }
            | Record::Forget { .. }
            | Record::Remove { .. }
            | Record::Floor { .. }
            | Record::Moved { .. }
            | Record::Tags { .. }
            | Record::EndSample { .. }
            | Record::Close { .. }
            | Record::Reset { .. }
            | Record::Lease { .. }
            | Record::LeasesEnd { .. }
            | Record::Acked { .. } => Err(unsound("a record that no snapshot has".to_owned())),
        }
    }

    /// Checks that the payload of a checked record has its columns, and enough rows. `rows_left` is the
    /// number of rows that no other record uses. Learns the types of new columns.
    pub(crate) fn check_payload(
        &mut self,
        record: &Record,
        columns: &[ColumnSpec],
        rows_left: usize,
    ) -> Result<(), QueueError> {
        let (partition, rows) = match record {
            Record::Put(put) => (&put.partition, &put.rows),
            Record::Columns { partition, rows, .. } => (partition, rows),
            _ => return Ok(()),
        };
        let names_agree = record.payload().is_some_and(|payload| {
            payload.chunk_rows.is_empty()
                && payload.columns.iter().eq(columns.iter().map(|column| &column.name))
        });
        if rows.len() > rows_left || !names_agree {
            let expected = rows.len();
            return Err(unsound(format!("payload of rows={rows_left} or other columns for rows={expected}")));
        }
        let table = self.table(partition)?;
        table.check_columns(columns)?;
        table.learn_columns(columns);
        Ok(())
    }
}

impl Table {
    pub(super) fn check_put(&self, put: &PutRecord) -> Result<(), QueueError> {
        let rows = put.rows.len();
        let capacity = self.spec.capacity_rows;
        if rows == 0 && !(1..put.group_size).contains(&put.group_gone) {
            return Err(QueueError::Empty);
        }
        if rows > capacity.saturating_sub(self.rows_live) {
            return Err(QueueError::TooLarge { rows: self.rows_live.saturating_add(rows), capacity });
        }
        are_distinct(&put.rows)?;
        let is_free = |row: &RowHandle| {
            (row.slot as usize) < capacity.min(SLOTS_MAX) + SLOTS_AT_REST
                && row.generation < GENERATION_MAX
                && !self.has_row(row.slot)
        };
        let keys: Vec<String> = put.labels.iter().filter_map(|label| label.key.clone()).collect();
        self.check_keys(&keys)?;
        let labels_fit = put.labels.is_empty() || put.labels.len() == rows;
        let keys_differ = keys.iter().collect::<HashSet<_>>().len() == keys.len();
        if !labels_fit || !keys_differ {
            return Err(unsound(format!("the labels of a put of group={}", put.group)));
        }
        if !put.rows.iter().all(is_free) || !(put.lengths.is_empty() || put.lengths.len() == rows) {
            return Err(unsound(format!("a put of group={}", put.group)));
        }
        let begins_by_samples = put.sample.is_some() && !self.has_group(&put.group);
        if self.is_by_samples(&put.group) || begins_by_samples {
            // The size of the group counts samples.
            return Ok(());
        }
        self.check_group_of_record(&put.group, put.group_size, rows.saturating_add(put.group_gone))
    }
}

fn are_distinct(rows: &[RowHandle]) -> Result<(), QueueError> {
    let slots: HashSet<u32> = rows.iter().map(|row| row.slot).collect();
    if slots.len() == rows.len() { Ok(()) } else { Err(unsound("a row twice in one record".to_owned())) }
}

fn unsound(reason: String) -> QueueError {
    QueueError::BadRequest { reason }
}
