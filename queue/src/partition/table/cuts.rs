//! Cuts: the state of a table at one moment, read slice by slice while the table changes.
//!
//! Nothing is copied when a cut begins. A cut covers the groups that exist when it begins, and is read in the
//! order of these groups. Code that is about to change the [records](super::live) of a group first calls
//! [`Table::keep_group`] or [`Table::keep_row`]. Each cut that covers the group and has not read it yet then
//! stores the current records of the group. The table is therefore locked for one slice at a time, and a cut
//! uses memory only for groups that change while the cut is read.
//!
//! The payload is pinned together with its records, so it can still be read if it is freed, moved or deleted
//! afterwards.

use std::collections::{BTreeMap, HashMap};

use super::live::{SLICE_ROWS, Slice, weight};
use super::{Group, Table};
use crate::plane::Plane;
use crate::record::Record;
use crate::row::RowHandle;
use crate::store::{ChunkId, Source};

/// Records, and the sources of their payload.
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

    /// Returns the records, and the sources of their payload.
    pub(in crate::partition) fn into_parts(self) -> (Vec<Record>, HashMap<ChunkId, Source>) {
        (self.slice.into_records().collect(), self.chunks)
    }

    fn append(&mut self, behind: Self) {
        self.slice.append(behind.slice);
        self.chunks.extend(behind.chunks);
    }
}

/// A cut: the groups of one moment that have not been read yet.
pub(in crate::partition) struct Cut {
    /// The first group that has not been read.
    next: u64,
    /// The first group that was created after the cut began.
    end: u64,
    /// Changed groups that have not been read: their records before the change, and their weights.
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

    /// Reads the next groups. Returns `None` at the end.
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
                    // The group may still exist, in a changed state.
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

/// The open cuts of a table, by number.
#[derive(Debug, Default)]
pub(in crate::partition) struct Cuts {
    open: BTreeMap<u64, Cut>,
    next: u64,
}

impl Table {
    /// Must be called before a group changes.
    pub(super) fn keep_group(&mut self, id: u64) {
        if self.cuts.open.is_empty() {
            return;
        }
        let mut open = std::mem::take(&mut self.cuts.open);
        open.values_mut().for_each(|cut| cut.keep(self, id));
        self.cuts.open = open;
    }

    /// Must be called before a row changes. Has no effect if the row was freed.
    pub(super) fn keep_row(&mut self, handle: RowHandle) {
        if !self.cuts.open.is_empty()
            && let Ok(row) = self.row(handle)
        {
            self.keep_group(row.group);
        }
    }

    /// Begins a cut at this moment, and returns its number.
    pub(in crate::partition) fn begin_cut(&mut self, plane: Plane) -> u64 {
        let number = self.cuts.next;
        self.cuts.next += 1;
        let cut = Cut { next: 0, end: self.next_group(), kept: BTreeMap::new(), plane };
        self.cuts.open.insert(number, cut);
        number
    }

    /// Reads the next groups of a cut. Returns `None` at its end.
    pub(in crate::partition) fn read_cut(&mut self, number: u64) -> Option<Kept> {
        let mut cut = self.cuts.open.remove(&number)?;
        let read = cut.read(self);
        self.cuts.open.insert(number, cut);
        read
    }

    /// Ends a cut. The caller drops the result outside the lock.
    pub(in crate::partition) fn end_cut(&mut self, number: u64) -> Option<Cut> {
        self.cuts.open.remove(&number)
    }

    /// The number of groups that each open cut stores.
    #[cfg(test)]
    pub(in crate::partition) fn kept_groups(&self) -> Vec<usize> {
        self.cuts.open.values().map(|cut| cut.kept.len()).collect()
    }
}
