//! The contents of a queue at one moment. They can be read while the queue changes.

use std::collections::BTreeMap;

use super::TransferQueue;
use crate::config::ColumnSpec;
use crate::error::QueueError;
use crate::partition::{CutReader, Partition, Table, Totals};

/// The contents of one partition.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) name: String,
    /// The records that restore the partition, starting with its declaration.
    pub(crate) records: CutReader,
    pub(crate) columns: BTreeMap<String, ColumnSpec>,
    /// The counts that the partition's table maintains.
    pub(crate) totals: Totals,
    pub(crate) partition: Partition,
}

impl TransferQueue {
    /// Captures `partition`, or all partitions, at one moment.
    pub(crate) fn capture(&self, partition: Option<&str>) -> Result<Vec<Captured>, QueueError> {
        let partitions = self.inner.partitions.lock();
        let chosen: Vec<&Partition> = match partition {
            None => partitions.values().collect(),
            Some(name) => {
                let unknown = || QueueError::UnknownPartition { name: name.to_owned() };
                vec![partitions.get(name).ok_or_else(unknown)?]
            }
        };
        // All tables are locked together, in the order of their names, so that the contents are of one
        // moment.
        let tables: Vec<_> = chosen.iter().map(|one| (one, one.shared.table.lock())).collect();
        Ok(tables.into_iter().map(|(one, mut table)| Captured::of(one, &mut table)).collect())
    }
}

impl Captured {
    fn of(partition: &Partition, table: &mut Table) -> Self {
        Self {
            name: table.spec.name.clone(),
            columns: table.columns().clone(),
            totals: table.totals(),
            partition: partition.clone(),
            records: CutReader::begin(partition, table),
        }
    }
}
