//! Cuts: what a table was at one moment, read slice by slice while it goes on changing.
//!
//! Nothing is copied when a cut is made. A cut has the groups of that moment, and is read in their order.
//! Code that is about to change what [records](super::live) say about a group calls [`Table::keep_group`] or
//! [`Table::keep_row`] first: each cut that has the group and has not read it yet gets its present records.
//! So a table is locked for one slice at a time, whatever its size, and a cut takes memory only for what
//! changes while it is read.
//!
//! Payload is pinned with the records that speak of it: it may be freed, moved and deleted afterwards.

use std::collections::{BTreeMap, HashMap};

use super::live::{SLICE_ROWS, Slice, weight};
use super::{Group, Table};
use crate::plane::Plane;
use crate::record::Record;
use crate::row::RowHandle;
use crate::store::{ChunkId, Source};

/// Records, and where their payload is read from.
#[derive(Debug, Default)]
pub(in crate::partition) struct Kept {
    slice: Slice,
    chunks: HashMap<ChunkId, Source>,
}

impl Kept {
    fn of(table: &Table, groups: &[&Group], plane: &Plane) -> Self {
        let slice = Slice::of(table, groups, &|_| None);
        let mut chunks = HashMap::new();
        for payload in slice.payloads() {
            chunks.entry(payload.chunk).or_insert_with(|| plane.pin(payload.chunk, &payload.columns));
        }
        Self { slice, chunks }
    }

    /// Records, and where their payload is read from.
    pub(in crate::partition) fn into_parts(self) -> (Vec<Record>, HashMap<ChunkId, Source>) {
        (self.slice.into_records().collect(), self.chunks)
    }

    fn append(&mut self, behind: Self) {
        self.slice.append(behind.slice);
        self.chunks.extend(behind.chunks);
    }
}

/// The groups of a moment that have not been read yet.
pub(in crate::partition) struct Cut {
    /// The first group that has not been read.
    next: u64,
    /// The first that came later.
    end: u64,
    /// Groups from `next` on that have changed, as they were, and what they weigh.
    kept: BTreeMap<u64, (Kept, usize)>,
    plane: Plane,
}

impl std::fmt::Debug for Cut {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Cut")
            .field("next", &self.next)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl Cut {
    fn keep(&mut self, table: &Table, id: u64) {
        if !(self.next..self.end).contains(&id) || self.kept.contains_key(&id) {
            return;
        }
        if let Some(group) = table.groups.get(&id) {
            let pinned = Kept::of(table, &[group], &self.plane);
            self.kept.insert(id, (pinned, weight(group)));
        }
    }

    /// The next groups; `None` at the end.
    fn read(&mut self, table: &Table) -> Option<Kept> {
        let mut read = Kept::default();
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
                    read.append(Kept::of(table, &std::mem::take(&mut unchanged), &self.plane));
                    read.append(pinned);
                }
            }
        }
        read.append(Kept::of(table, &unchanged, &self.plane));
        (rows > 0).then_some(read)
    }
}

/// The cuts of a table that are being read, by number.
#[derive(Debug, Default)]
pub(in crate::partition) struct Cuts {
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

    /// A cut at this moment; its number.
    pub(in crate::partition) fn begin_cut(&mut self, plane: Plane) -> u64 {
        let number = self.cuts.next;
        self.cuts.next += 1;
        let cut = Cut { next: 0, end: self.next_group(), kept: BTreeMap::new(), plane };
        self.cuts.open.insert(number, cut);
        number
    }

    /// The next groups of a cut; `None` at its end.
    pub(in crate::partition) fn read_cut(&mut self, number: u64) -> Option<Kept> {
        let mut cut = self.cuts.open.remove(&number)?;
        let read = cut.read(self);
        self.cuts.open.insert(number, cut);
        read
    }

    /// Ends a cut that is not read any more. The caller drops what it kept outside the lock.
    pub(in crate::partition) fn end_cut(&mut self, number: u64) -> Option<Cut> {
        self.cuts.open.remove(&number)
    }

    /// Groups that open cuts keep.
    #[cfg(test)]
    pub(in crate::partition) fn kept_groups(&self) -> Vec<usize> {
        self.cuts.open.values().map(|cut| cut.kept.len()).collect()
    }
}
