//! Replaying the records of a damaged journal.
//!
//! Records may be missing anywhere, so a record may contradict earlier records. In that case the later record
//! counts: a put into a slot proves that the earlier row of the slot was freed. A partition whose declaration
//! is missing is declared anew.

use std::collections::{BTreeMap, BTreeSet};

use super::{Replay, Table};
use crate::config::PartitionSpec;
use crate::error::QueueError;
use crate::partition::table::SLOTS_AT_REST;
use crate::plane::Plane;
use crate::record::{Freed, PutRecord, Record};
use crate::row::RowHandle;

/// The capacity of a partition whose declaration is missing, in rows. It grows with the rows that are found.
const CAPACITY_ROWS: usize = 65_536;
/// The task of a partition whose declaration is missing, if no record names another task.
const TASK: &str = "train";

/// The tasks that records name, by partition.
#[derive(Debug, Clone, Default)]
pub(crate) struct NamedTasks(BTreeMap<String, BTreeSet<String>>);

impl NamedTasks {
    pub(crate) fn see(&mut self, record: &Record) {
        if let Record::Ack { partition, task, .. } | Record::Reset { partition, task } = record {
            self.0.entry(partition.clone()).or_default().insert(task.clone());
        }
    }

    fn of(&self, partition: &str) -> Vec<String> {
        let named = self.0.get(partition).map(|tasks| tasks.iter().cloned().collect());
        named.unwrap_or_else(|| vec![TASK.to_owned()])
    }
}

/// Records of a partition that contradict earlier records.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unusable {
    pub(crate) records: u64,
    /// The rows of the puts among them.
    pub(crate) rows: usize,
    /// The error of the first record.
    pub(crate) reason: QueueError,
}

/// A replay of a journal in which records are missing.
pub(crate) struct Mend {
    replay: Replay,
    tasks: NamedTasks,
    /// The partitions that were declared anew.
    pub(crate) declared: BTreeSet<String>,
    pub(crate) unusable: BTreeMap<String, Unusable>,
}

impl Mend {
    pub(crate) fn new(plane: Plane, tasks: NamedTasks) -> Self {
        Self { replay: Replay::new(plane), tasks, declared: BTreeSet::new(), unusable: BTreeMap::new() }
    }

    /// Applies the next record, as far as it can be used.
    pub(crate) fn apply(&mut self, record: Record) {
        let partition = record.partition().unwrap_or_default().to_owned();
        let rows = if let Record::Put(put) = &record { put.rows.len() } else { 0 };
        let prepared = self.prepare(&record);
        let Err(reason) = prepared.and_then(|()| self.replay.apply(record)) else { return };
        let unusable = self.unusable.entry(partition).or_insert(Unusable { records: 0, rows: 0, reason });
        unusable.records += 1;
        unusable.rows += rows;
    }

    /// Prepares the tables so that the record can be applied to them.
    fn prepare(&mut self, record: &Record) -> Result<(), QueueError> {
        match record {
            Record::Types { partition, .. } => {
                self.declare_if_unknown(partition);
                Ok(())
            }
            Record::Put(put) if !put.rows.is_empty() => {
                self.declare_if_unknown(&put.partition);
                let table = self.replay.table(&put.partition)?;
                let gone = table.gone_before(put);
                table.raise_capacity(&put.rows);
                self.remove(&put.partition, &gone)?;
                self.replay.table(&put.partition)?.check_put(put)
            }
            Record::Moved { partition, from, rows, .. } => {
                let table = self.replay.table(partition)?;
                let left = table.chunk_rows(*from).into_iter().map(|(row, _)| row);
                let gone: Vec<RowHandle> = left.filter(|row| !rows.contains(row)).collect();
                self.remove(partition, &gone)
            }
            _ => Ok(()),
        }
    }

    fn declare_if_unknown(&mut self, partition: &str) {
        if self.replay.table(partition).is_ok() {
            return;
        }
        let spec = PartitionSpec::new(partition, self.tasks.of(partition), CAPACITY_ROWS);
        self.replay.tables.insert(partition.to_owned(), (Table::new(spec), 0));
        self.declared.insert(partition.to_owned());
    }

    /// Removes rows whose removal record is missing.
    fn remove(&mut self, partition: &str, rows: &[RowHandle]) -> Result<(), QueueError> {
        if !rows.is_empty() {
            let released = self.replay.table(partition)?.remove(rows, Freed::Cleared);
            self.replay.free(&released.chunks);
        }
        Ok(())
    }

    /// All tables, by name.
    pub(crate) fn tables(&mut self) -> impl Iterator<Item = (&String, &mut Table)> {
        self.replay.tables.iter_mut().map(|(name, (table, _))| (name, table))
    }

    pub(crate) fn into_replay(self) -> Replay {
        self.replay
    }
}

impl Table {
    /// The rows that must have been freed before `put` was made: the rows in its slots, and the rows with its
    /// keys.
    fn gone_before(&self, put: &PutRecord) -> Vec<RowHandle> {
        let in_slot =
            |row: &RowHandle| self.row_in(row.slot).filter(|there| there.generation < row.generation);
        let with_key =
            put.labels.iter().filter_map(|label| self.find(label.key.as_deref()?)).map(|row| row.row);
        let gone: BTreeSet<RowHandle> = put.rows.iter().filter_map(in_slot).chain(with_key).collect();
        gone.into_iter().collect()
    }

    /// Makes room for more rows and their slots. Rows whose acks are missing use room too.
    fn raise_capacity(&mut self, rows: &[RowHandle]) {
        let slots = rows.iter().map(|row| row.slot as usize + 1).max().unwrap_or(0);
        let needed = (self.rows_live + rows.len()).max(slots.saturating_sub(SLOTS_AT_REST));
        self.spec.capacity_rows = self.spec.capacity_rows.max(needed);
    }
}

#[cfg(test)]
mod tests;
