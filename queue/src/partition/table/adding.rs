//! Columns that are added to rows: by their put, by a later write, or as replacements of earlier values.
//!
//! A row is a list of parts, one for each write to it, oldest first. The value of a column is in the last
//! part that has the column. A write that replaces values therefore only appends a part. Readers see either
//! the old or the new values, never a mixture.
//!
//! # Invariants
//! - A current value never returns to an earlier value: a later reader of the current values never gets older
//!   parts of a row than an earlier reader.
//! - A part is dropped immediately when later parts have replaced all of its columns. If a lease began before
//!   the replacement, the part is dropped when the lease has ended. All consumers of one lease therefore read
//!   the same values.
//! - The journal, snapshots and checks do not see replaced parts. They see at most as many parts of a row as
//!   the row has columns.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::slice::from_ref;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Part, Progress, Released, Row, RowHandle, Table, has_column};
use crate::record::PayloadRecord;
use crate::store::ChunkId;

/// Columns of existing rows, as a write or a record adds them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Added<'a> {
    pub(crate) rows: &'a [RowHandle],
    pub(crate) payload: &'a PayloadRecord,
    /// The KiB of the partition's capacity in bytes that all rows use.
    pub(crate) kib: u32,
    /// Whether the values replace existing values.
    pub(crate) overwrite: bool,
    /// The new number of tokens of each row. If empty, the numbers do not change.
    pub(crate) lengths: &'a [u32],
}

/// The effect of added columns.
#[derive(Debug, Default)]
pub(crate) struct Addition {
    /// The space that was counted, in KiB. Freed rows are not counted.
    pub(crate) kib: u32,
    /// The resources that the replaced values released.
    pub(crate) released: Released,
}

/// The replaced values of a table.
#[derive(Debug, Default)]
pub(super) struct Rewrites {
    /// The number of writes that replaced values, since the queue was opened.
    count: u64,
    /// The rows with parts that only leases read.
    kept: HashSet<RowHandle>,
    /// The `kept` rows of leases that have ended.
    ended: Vec<RowHandle>,
}

impl Rewrites {
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Forgets a freed row.
    pub(super) fn forget(&mut self, row: RowHandle) {
        self.kept.remove(&row);
    }

    /// Notes that a lease of these rows has ended.
    pub(super) fn end_lease(&mut self, rows: &[RowHandle]) {
        if !self.kept.is_empty() {
            self.ended.extend(rows.iter().filter(|row| self.kept.contains(row)));
        }
    }
}

/// Divides `whole` into `parts` integers that differ by at most 1, and returns the integer at index `at`.
fn even_part(whole: u32, parts: usize, at: usize) -> u32 {
    let parts = parts as u32;
    whole / parts + u32::from((at as u32) < whole % parts)
}

/// Whether a reader of the state after `as_of` rewrites gets a column from the part at index `at`.
fn gives_any(parts: &[Part], at: usize, as_of: u64) -> bool {
    let is_there = |part: &Part| part.written <= as_of;
    let is_replaced =
        |name: &String| parts[at + 1..].iter().any(|part| is_there(part) && part.columns.contains(name));
    is_there(&parts[at]) && !parts[at].columns.iter().all(is_replaced)
}

impl Row {
    /// The KiB of the partition's capacity in bytes that the row uses.
    pub(crate) fn kib(&self) -> u32 {
        self.parts.iter().map(|part| part.kib).sum()
    }

    /// The parts that provide a column, oldest first.
    pub(super) fn current(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| !part.is_superseded)
    }

    /// The parts that a reader gets: the parts after `as_of` rewrites, or the current parts.
    pub(crate) fn view(&self, as_of: Option<u64>) -> Cow<'_, [Part]> {
        let is_seen = |part: &&Part| match as_of {
            Some(as_of) => part.written <= as_of,
            None => !part.is_superseded,
        };
        if self.parts.iter().all(|part| is_seen(&part)) {
            return Cow::Borrowed(&self.parts);
        }
        Cow::Owned(self.parts.iter().filter(is_seen).cloned().collect())
    }
}

impl Table {
    /// The number of rewrites that the holders of a lease see. `None` if the lease has ended.
    pub(crate) fn as_of(&self, lease: u64) -> Option<u64> {
        self.leases.get(lease).map(|lease| lease.as_of)
    }

    /// Adds columns to existing rows. Freed rows are skipped.
    pub(crate) fn add_columns(&mut self, added: Added<'_>) -> Addition {
        let Added { rows, payload, kib, overwrite, lengths } = added;
        let columns = self.columns.shared(&payload.columns);
        self.rewrites.count += u64::from(overwrite);
        let written = self.rewrites.count;
        let mut addition = Addition::default();
        let (mut without_them, mut left) = (0, BTreeSet::new());
        for (at, handle) in rows.iter().enumerate() {
            self.keep_row(*handle);
            let kib = even_part(kib, rows.len(), at);
            let Ok(row) = self.row_mut(*handle) else { continue };
            addition.kib += kib;
            let is_new = |name: &&String| !has_column(&row.parts, name);
            let new: Option<Vec<&String>> = overwrite.then(|| columns.iter().filter(is_new).collect());
            row.parts.push(Part {
                chunk: payload.chunk,
                row: payload.chunk_row(at),
                bytes: 0,
                kib,
                written,
                is_superseded: false,
                columns: Arc::clone(&columns),
            });
            self.chunks.add(payload.chunk, *handle, payload.chunk_row(at));
            match new {
                Some(new) if new.len() < columns.len() => {
                    new.into_iter().for_each(|name| self.columns.come(from_ref(name), 1));
                    self.drop_replaced(*handle, &mut left, &mut addition.released);
                }
                _ => without_them += 1,
            }
            if let Some(length) = lengths.get(at) {
                self.set_length(*handle, *length);
            }
            self.complete(*handle);
        }
        self.columns.come(&columns, without_them);
        self.kib_live += addition.kib;
        if overwrite {
            self.leave_chunks(left, &mut addition.released);
        }
        addition
    }

    fn set_length(&mut self, handle: RowHandle, length: u32) {
        let Ok(row) = self.row_mut(handle) else { return };
        let before = std::mem::replace(&mut row.length, length);
        let group = row.group;
        if let Some(group) = self.groups.get_mut(&group) {
            group.tokens = group.tokens - u64::from(before) + u64::from(length);
        }
    }

    /// Drops the parts of a row whose columns were all replaced, except the parts that a lease reads.
    fn drop_replaced(&mut self, handle: RowHandle, left: &mut BTreeSet<ChunkId>, released: &mut Released) {
        let Ok(row) = self.row(handle) else { return };
        let as_of = |progress: &Progress| match progress {
            Progress::Leased(lease) => self.as_of(*lease),
            _ => None,
        };
        let readers: SmallVec<[u64; 2]> = row.progress.iter().filter_map(as_of).collect();
        let uses = |at| {
            let is_read = readers.iter().any(|as_of| gives_any(&row.parts, at, *as_of));
            (gives_any(&row.parts, at, u64::MAX), is_read)
        };
        let uses: SmallVec<[(bool, bool); 4]> = (0..row.parts.len()).map(uses).collect();
        let Ok(row) = self.row_mut(handle) else { return };
        let (mut gone, mut at) = (SmallVec::<[Part; 1]>::new(), 0);
        row.parts.retain(|part| {
            let (is_current, is_read) = uses[at];
            at += 1;
            part.is_superseded = !is_current;
            if !is_current && !is_read {
                gone.push(part.clone());
            }
            is_current || is_read
        });
        let is_kept = row.parts.iter().any(|part| part.is_superseded);
        if is_kept {
            self.rewrites.kept.insert(handle);
        } else {
            self.rewrites.kept.remove(&handle);
        }
        gone.iter().for_each(|part| self.drop_part(handle, part, left, released));
    }

    fn drop_part(
        &mut self,
        handle: RowHandle,
        part: &Part,
        left: &mut BTreeSet<ChunkId>,
        released: &mut Released,
    ) {
        self.kib_live -= part.kib;
        released.size.kib += part.kib;
        let was_away = self.chunks.is_away(part.chunk);
        if self.chunks.leave(part.chunk, part.bytes) {
            released.chunks.push(part.chunk);
        } else {
            left.insert(part.chunk);
        }
        if was_away {
            self.count_away(handle, false);
        }
    }

    /// Whether a chunk has replaced values that are kept for leases. The new values may be in a chunk with
    /// the same columns.
    pub(crate) fn has_superseded(&self, chunk: ChunkId) -> bool {
        let is_superseded =
            |row: &Row| row.parts.iter().any(|part| part.chunk == chunk && part.is_superseded);
        !self.rewrites.kept.is_empty()
            && self.chunk_rows(chunk).iter().any(|(row, _)| self.row(*row).is_ok_and(is_superseded))
    }

    /// Drops the replaced parts that no lease reads any more. Returns `None` if there are no such parts.
    pub(crate) fn drop_read_parts(&mut self) -> Option<Released> {
        if self.rewrites.ended.is_empty() {
            return None;
        }
        let (mut released, mut left) = (Released::default(), BTreeSet::new());
        for handle in std::mem::take(&mut self.rewrites.ended) {
            self.drop_replaced(handle, &mut left, &mut released);
        }
        self.leave_chunks(left, &mut released);
        Some(released)
    }
}
