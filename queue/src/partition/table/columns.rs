//! Columns: their types, which the declaration or the first write determines, and their addition to existing rows.
//!
//! # Invariants
//! A column keeps the type of its first put. While a put with a new column is in progress, no other put may
//! use another type for the column. If that put fails, the type is undetermined again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::{RowHandle, Table, has_column};
use crate::config::{ColumnSpec, PartitionSpec, check_column_names};
use crate::error::QueueError;
use crate::invariants::{self, Violation};
use crate::put::check_depth;
use crate::recent::Recent;
use crate::record::Record;
use crate::store::ChunkId;

/// The maximum number of columns of a partition. A declaration may exceed it, but then no write may add a column.
const COLUMNS_MAX: usize = 4096;

/// Makes the record of the types of columns. Types that are nested too deeply to be read back are omitted:
/// they are learned from the payload. Returns `None` if no type is left.
pub(in crate::partition) fn types_record(partition: &str, columns: Vec<ColumnSpec>) -> Option<Record> {
    let is_shallow = |column: &ColumnSpec| {
        serde_json::to_value(column).is_ok_and(|json| check_depth("types", &json).is_ok())
    };
    let columns: Vec<ColumnSpec> = columns.into_iter().filter(is_shallow).collect();
    (!columns.is_empty()).then(|| Record::Types { partition: partition.to_owned(), columns })
}

/// The columns of a table.
#[derive(Debug)]
pub(super) struct Columns {
    known: BTreeMap<String, ColumnSpec>,
    /// The new columns of writes in progress, with the number of these writes.
    to_come: BTreeMap<String, (ColumnSpec, usize)>,
    /// Columns that are being added to rows and are not durable yet.
    under_way: HashSet<(RowHandle, String)>,
    /// Rows whose tokens a write in progress recounts.
    counting: HashSet<RowHandle>,
    /// The lists of column names of recent writes. Rows with equal lists share one.
    sets: Recent<[String]>,
    /// For each column, the number of rows that have it.
    rows: BTreeMap<String, usize>,
}

impl Columns {
    pub(super) fn new(spec: &PartitionSpec) -> Self {
        let known = spec.columns.iter().map(|column| (column.name.clone(), column.clone())).collect();
        Self {
            known,
            to_come: BTreeMap::new(),
            under_way: HashSet::new(),
            counting: HashSet::new(),
            sets: Recent::default(),
            rows: BTreeMap::new(),
        }
    }

    fn check_types(&self, columns: &[ColumnSpec]) -> Result<(), QueueError> {
        let mut unknown = 0;
        for column in columns {
            let to_come = || self.to_come.get(&column.name).map(|(spec, _)| spec);
            match self.known.get(&column.name).or_else(to_come) {
                None => unknown += 1,
                Some(expected) if expected == column => {}
                Some(expected) => {
                    return Err(QueueError::WrongType {
                        column: column.name.clone(),
                        expected: expected.type_words(),
                        found: column.type_words(),
                    });
                }
            }
        }
        if unknown == 0 {
            return Ok(());
        }
        let reserved = self.to_come.keys().filter(|name| !self.known.contains_key(*name)).count();
        let known = self.known.len() + reserved;
        if known + unknown > COLUMNS_MAX {
            let reason = format!(
                "expected at most columns_max={COLUMNS_MAX}, found new={unknown} beside existing={known}"
            );
            return Err(QueueError::BadRequest { reason });
        }
        Ok(())
    }

    fn learn(&mut self, columns: &[ColumnSpec]) {
        for column in columns {
            if !self.known.contains_key(&column.name) {
                self.known.insert(column.name.clone(), column.clone());
            }
        }
    }

    /// Reserves the types of new columns while their write is in progress. Returns the new columns.
    pub(super) fn expect(&mut self, columns: &[ColumnSpec]) -> Vec<ColumnSpec> {
        let unknown = |column: &&ColumnSpec| !self.known.contains_key(&column.name);
        let columns: Vec<ColumnSpec> = columns.iter().filter(unknown).cloned().collect();
        for column in &columns {
            let entry = self.to_come.entry(column.name.clone());
            entry.or_insert_with(|| (column.clone(), 0)).1 += 1;
        }
        columns
    }

    fn settle(&mut self, columns: &[ColumnSpec], is_good: bool) {
        for column in columns {
            if let Some((_, puts)) = self.to_come.get_mut(&column.name) {
                *puts -= 1;
                if *puts == 0 {
                    self.to_come.remove(&column.name);
                }
            }
        }
        if is_good {
            self.learn(columns);
        }
    }

    /// Returns a shared copy of these names, for all rows with the same columns.
    pub(super) fn shared(&mut self, names: &[String]) -> Arc<[String]> {
        self.sets.share(names, || names.into())
    }

    /// Counts rows that now have these columns.
    pub(super) fn come(&mut self, columns: &[String], rows: usize) {
        for column in columns {
            match self.rows.get_mut(column) {
                Some(count) => *count += rows,
                None => {
                    self.rows.insert(column.clone(), rows);
                }
            }
        }
    }

    /// Subtracts freed rows with these columns from the counts.
    pub(super) fn leave(&mut self, columns: &[String], rows: usize) {
        for column in columns {
            if let Some(count) = self.rows.get_mut(column) {
                *count -= rows;
            }
        }
    }

    /// Checks the counts. `counted` has, for each column of at least one row, the number of rows with the column.
    pub(super) fn check(&self, counted: &BTreeMap<&String, usize>) -> Result<(), Violation> {
        for (column, kept) in &self.rows {
            let counted = counted.get(column).copied().unwrap_or(0);
            invariants::counts_agree(&format!("rows with column={column}"), counted, *kept)?;
        }
        match counted.keys().find(|column| !self.rows.contains_key(**column)) {
            Some(column) => Err(Violation(format!("rows have column={column}, which is not counted"))),
            None => Ok(()),
        }
    }
}

impl Table {
    /// The columns with known types, by name.
    pub(crate) fn columns(&self) -> &BTreeMap<String, ColumnSpec> {
        &self.columns.known
    }

    /// The columns that the declaration does not name.
    pub(crate) fn undeclared_columns(&self) -> Vec<ColumnSpec> {
        let declared: HashSet<&String> = self.spec.columns.iter().map(|column| &column.name).collect();
        self.columns.known.values().filter(|column| !declared.contains(&column.name)).cloned().collect()
    }

    /// For each column, the number of rows that have it.
    pub(crate) fn column_rows(&self) -> BTreeMap<String, usize> {
        self.columns.rows.clone()
    }

    /// Checks that no column differs from its known or reserved type, and that there are not too many columns. Values
    /// are never cast.
    pub(crate) fn check_columns(&self, columns: &[ColumnSpec]) -> Result<(), QueueError> {
        self.columns.check_types(columns)
    }

    /// Learns the types of new columns.
    pub(crate) fn learn_columns(&mut self, columns: &[ColumnSpec]) {
        self.columns.learn(columns);
    }

    /// Ends the reservation of new columns. If `is_good`, the columns become known.
    pub(crate) fn settle_columns(&mut self, columns: &[ColumnSpec], is_good: bool) {
        self.columns.settle(columns, is_good);
    }

    /// Runs after replay: returns a chunk for every set of columns with unknown types. Chunks in `tried` are
    /// skipped.
    pub(crate) fn chunks_of_unknown_columns(&self, tried: &HashSet<ChunkId>) -> Vec<ChunkId> {
        let mut seen: BTreeSet<&str> = self.columns.known.keys().map(String::as_str).collect();
        let mut chunks = Vec::new();
        for part in self.slots.rows().flat_map(|(_, row)| &row.parts) {
            if part.columns.iter().any(|column| !seen.contains(column.as_str()))
                && !tried.contains(&part.chunk)
            {
                seen.extend(part.columns.iter().map(String::as_str));
                chunks.push(part.chunk);
            }
        }
        chunks
    }

    /// Reserves columns of rows for a write, and returns the new columns. Returns `None` if the write must
    /// wait, because another write of the same values or tokens is in progress. In that case, and after an
    /// error, nothing is reserved.
    pub(crate) fn begin_columns(
        &mut self,
        rows: &[RowHandle],
        columns: &[ColumnSpec],
        overwrite: bool,
    ) -> Result<Option<Vec<ColumnSpec>>, QueueError> {
        check_column_names(columns)?;
        self.check_columns(columns)?;
        let mut claimed = HashSet::with_capacity(rows.len() * columns.len());
        let counts =
            overwrite && columns.iter().any(|column| self.spec.length_columns.contains(&column.name));
        let mut must_wait = counts && rows.iter().any(|row| self.columns.counting.contains(row));
        for handle in rows {
            let row = self.row(*handle)?;
            for ColumnSpec { name, .. } in columns {
                let key = (*handle, name.clone());
                let is_under_way = self.columns.under_way.contains(&key);
                must_wait |= is_under_way;
                if !overwrite && (is_under_way || has_column(&row.parts, name)) {
                    return Err(QueueError::ColumnExists { column: name.clone() });
                }
                if !claimed.insert(key) {
                    let reason = format!("expected each row once, found slot={} twice", handle.slot);
                    return Err(QueueError::BadRequest { reason });
                }
            }
        }
        if must_wait {
            return Ok(None);
        }
        self.columns.under_way.extend(claimed);
        if counts {
            self.columns.counting.extend(rows);
        }
        Ok(Some(self.columns.expect(columns)))
    }

    /// The indices of the rows that have a column.
    pub(crate) fn places_with(&self, rows: &[RowHandle], column: &str) -> Vec<usize> {
        let has = |at: &usize| self.row(rows[*at]).is_ok_and(|row| has_column(&row.parts, column));
        (0..rows.len()).filter(has).collect()
    }

    /// Ends a write of columns, whether it succeeded or failed.
    pub(crate) fn end_columns(&mut self, rows: &[RowHandle], columns: &[String], overwrite: bool) {
        let counts = overwrite && columns.iter().any(|name| self.spec.length_columns.contains(name));
        for handle in rows {
            if counts {
                self.columns.counting.remove(handle);
            }
            for column in columns {
                self.columns.under_way.remove(&(*handle, column.clone()));
            }
        }
    }
}
