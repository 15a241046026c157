//! Reading a [cut](super::table): the state of a partition at one moment, read slice by slice while the
//! partition changes.

use std::collections::HashMap;

use super::Partition;
use super::table::{Rest, Table, declaration, rest};
use crate::record::Record;
use crate::store::{ChunkId, Source};

/// Records, and the sources of their payload.
type Read = (Vec<Record>, HashMap<ChunkId, Source>);

/// Reads a cut, starting with the declaration. Must not be dropped under the table's lock.
#[derive(Debug)]
pub(crate) struct CutReader {
    partition: Partition,
    number: u64,
    first: Option<Record>,
    rest: Rest,
}

impl CutReader {
    /// Begins a cut of the partition at this moment. `table` must be the partition's table.
    pub(crate) fn begin(partition: &Partition, table: &mut Table) -> Self {
        let number = table.begin_cut(partition.shared.plane.clone());
        let (first, rest) = (Some(declaration(table)), rest(table));
        Self { partition: partition.clone(), number, first, rest }
    }

    /// Reads the next records. Returns `None` at the end. Blocks while it opens segments.
    pub(crate) fn read(&mut self) -> Option<Read> {
        self.read_rows().or_else(|| Some((vec![self.rest.next()?], HashMap::new())))
    }

    /// Reads the next records that describe rows. Returns `None` if no more rows follow.
    pub(crate) fn read_rows(&mut self) -> Option<Read> {
        if let Some(declaration) = self.first.take() {
            return Some((vec![declaration], HashMap::new()));
        }
        let read = self.partition.shared.table.lock().read_cut(self.number);
        Some(read?.into_parts())
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
