//! Reading a [cut](super::table): the state of a partition at one moment, read slice by slice while the
//! partition changes.

use std::collections::HashMap;

use super::Partition;
use super::table::{Table, declaration, rest};
use crate::record::Record;
use crate::store::{ChunkId, Source};

/// Reads a cut, starting with the declaration. Must not be dropped under the table's lock.
#[derive(Debug)]
pub(crate) struct CutReader {
    partition: Partition,
    number: u64,
    first: Option<Record>,
    last: Vec<Record>,
}

impl CutReader {
    /// Begins a cut of the partition at this moment. `table` must be the partition's table.
    pub(crate) fn begin(partition: &Partition, table: &mut Table) -> Self {
        let number = table.begin_cut(partition.shared.plane.clone());
        let (first, last) = (Some(declaration(table)), rest(table));
        Self { partition: partition.clone(), number, first, last }
    }

    /// Reads the next records. Returns `None` at the end. Blocks while it opens segments.
    pub(crate) fn read(&mut self) -> Option<(Vec<Record>, HashMap<ChunkId, Source>)> {
        if let Some(declaration) = self.first.take() {
            return Some((vec![declaration], HashMap::new()));
        }
        let read = self.partition.shared.table.lock().read_cut(self.number);
        if let Some(kept) = read {
            return Some(kept.into_parts());
        }
        let last = std::mem::take(&mut self.last);
        (!last.is_empty()).then(|| (last, HashMap::new()))
    }
}

impl Drop for CutReader {
    fn drop(&mut self) {
        // The records that the cut stored are dropped outside the lock.
        let _kept = { self.partition.shared.table.lock().end_cut(self.number) };
    }
}

#[cfg(test)]
mod tests;
