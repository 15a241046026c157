//! Cuts: what a table was at one moment, read slice by slice while it goes on changing.
//!
//! Nothing is copied when a cut is made. It is of the groups that are there then, and is read in their order. Whoever is
//! about to change a group in what [records](super::replay) say of it calls [`Table::keep_group`] or [`Table::keep_row`]
//! before: its records as they are come into every cut that has it and has not come to it. So a table is locked for a
//! slice at a time whatever there is in it, and a cut takes memory for what changed while it was read.
//!
//! Payload is pinned with the records that speak of it: it may be freed, moved and deleted afterwards.

use std::collections::{BTreeMap, HashMap};

use super::replay::{SLICE_ROWS, Slice, declaration, rest, weight};
use super::table::{Group, Table};
use super::{Partition, RowHandle};
use crate::ChunkId;
use crate::journal::Record;
use crate::snapshot::{Pins, Source};

/// Records, and where their payload is read from.
#[derive(Debug, Default)]
struct Pinned {
    slice: Slice,
    chunks: HashMap<ChunkId, Source>,
}

impl Pinned {
    fn of(table: &Table, groups: &[&Group], pins: &mut Pins) -> Self {
        let slice = Slice::of(table, groups, &|_| (None, None));
        let mut chunks = HashMap::new();
        for payload in slice.payloads() {
            chunks.entry(payload.chunk).or_insert_with(|| pins.pin(payload.chunk));
        }
        Self { slice, chunks }
    }

    fn append(&mut self, behind: Self) {
        self.slice.append(behind.slice);
        self.chunks.extend(behind.chunks);
    }
}

/// See the module's documentation.
#[derive(Debug)]
struct Cut {
    /// The first group that has not been read.
    next: u64,
    /// The first that came later.
    end: u64,
    /// Groups from `next` on that have changed, as they were, and what they weigh.
    kept: BTreeMap<u64, (Pinned, usize)>,
    pins: Pins,
}

impl Cut {
    fn keep(&mut self, table: &Table, id: u64) {
        if !(self.next..self.end).contains(&id) || self.kept.contains_key(&id) {
            return;
        }
        if let Some(group) = table.groups.get(&id) {
            let pinned = Pinned::of(table, &[group], &mut self.pins);
            self.kept.insert(id, (pinned, weight(group)));
        }
    }

    /// The next groups; `None` at the end.
    fn read(&mut self, table: &Table) -> Option<Pinned> {
        let mut read = Pinned::default();
        let (mut unchanged, mut rows) = (Vec::new(), 0);
        let mut there = table.groups.range(self.next..self.end).peekable();
        while rows < SLICE_ROWS {
            let kept = self.kept.first_key_value().map(|(id, _)| *id);
            match there.peek().copied() {
                Some((id, group)) if kept.is_none_or(|kept| *id < kept) => {
                    self.next = id + 1;
                    rows += weight(group);
                    unchanged.push(group);
                    there.next();
                }
                _ => {
                    let Some((id, (pinned, weight))) = self.kept.pop_first() else {
                        self.next = self.end;
                        break;
                    };
                    // It may still be there, as something else.
                    there.next_if(|(there, _)| **there == id);
                    self.next = id + 1;
                    rows += weight;
                    read.append(Pinned::of(table, &std::mem::take(&mut unchanged), &mut self.pins));
                    read.append(pinned);
                }
            }
        }
        read.append(Pinned::of(table, &unchanged, &mut self.pins));
        (rows > 0).then_some(read)
    }
}

/// The cuts of a table that are being read, by number.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    open: BTreeMap<u64, Cut>,
    next: u64,
}

impl Table {
    /// To be called before a group changes.
    pub(super) fn keep_group(&mut self, id: u64) {
        if self.cuts.open.is_empty() {
            return;
        }
        let mut open = std::mem::take(&mut self.cuts.open);
        open.values_mut().for_each(|cut| cut.keep(self, id));
        self.cuts.open = open;
    }

    /// To be called before a row changes; one that is gone changes nothing.
    pub(super) fn keep_row(&mut self, handle: RowHandle) {
        if !self.cuts.open.is_empty()
            && let Ok(row) = self.row(handle)
        {
            self.keep_group(row.group);
        }
    }

    fn read_cut(&mut self, number: u64) -> Option<Pinned> {
        let mut cut = self.cuts.open.remove(&number)?;
        let read = cut.read(self);
        self.cuts.open.insert(number, cut);
        read
    }
}

/// Reads a cut, the declaration first. Whoever drops it does not hold the table.
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
        let number = table.cuts.next;
        table.cuts.next += 1;
        let pins = Pins::of(partition.shared.plane.clone());
        let cut = Cut { next: 0, end: table.next_group(), kept: BTreeMap::new(), pins };
        table.cuts.open.insert(number, cut);
        let (first, last) = (Some(declaration(table)), rest(table));
        Self { partition: partition.clone(), number, first, last }
    }

    /// The next records; none at the end. Blocks while it opens segments.
    pub(crate) fn read(&mut self) -> Option<(Vec<Record>, HashMap<ChunkId, Source>)> {
        if let Some(declaration) = self.first.take() {
            return Some((vec![declaration], HashMap::new()));
        }
        let read = self.partition.shared.table.lock().read_cut(self.number);
        if let Some(Pinned { slice, chunks }) = read {
            return Some((slice.into_records().collect(), chunks));
        }
        let last = std::mem::take(&mut self.last);
        (!last.is_empty()).then(|| (last, HashMap::new()))
    }
}

impl Drop for CutReader {
    fn drop(&mut self) {
        // What it kept goes outside the lock.
        let _kept = { self.partition.shared.table.lock().cuts.open.remove(&self.number) };
    }
}

#[cfg(test)]
mod tests;
