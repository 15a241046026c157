//! Reading a [cut](super::table): what a partition was at one moment, slice by slice while it goes on
//! changing.

use std::collections::HashMap;

use super::Partition;
use super::table::{Table, declaration, rest};
use crate::record::Record;
use crate::store::{ChunkId, Source};

/// Reads a cut, the declaration first. Not to be dropped under the table's lock.
#[derive(Debug)]
pub(crate) struct CutReader {
    partition: Partition,
    number: u64,
    first: Option<Record>,
    last: Vec<Record>,
}

impl CutReader {
    /// A cut at this moment of `table`, which is the partition's.
    pub(crate) fn begin(partition: &Partition, table: &mut Table) -> Self {
        let number = table.begin_cut(partition.shared.plane.clone());
        let (first, last) = (Some(declaration(table)), rest(table));
        Self { partition: partition.clone(), number, first, last }
    }

    /// The next records; none at the end. Blocks while it opens segments.
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
        // What it kept goes outside the lock.
        let _kept = { self.partition.shared.table.lock().end_cut(self.number) };
    }
}

#[cfg(test)]
mod tests;
