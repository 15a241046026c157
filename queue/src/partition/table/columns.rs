//! Columns: their types, which are known from their first put on, and their writing to existing rows.
//!
//! # Invariants
//! A column has the type that it was first put with. While a put with a new column is under way, no put may
//! bring the column with another type; if that put fails, the type is free again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::{RowHandle, Table};
use crate::config::{ColumnSpec, PartitionSpec};
use crate::error::QueueError;
use crate::invariants::{self, Violation};
use crate::recent::Recent;
use crate::store::ChunkId;

/// Columns of a partition.
const COLUMNS_MAX: usize = 4096;

/// The columns of a table.
#[derive(Debug)]
pub(super) struct Columns {
    known: BTreeMap<String, ColumnSpec>,
    /// Columns that only puts have which are not durable yet, and how many of these.
    to_come: BTreeMap<String, (ColumnSpec, usize)>,
    /// Columns of rows whose writing is not durable yet.
    under_way: HashSet<(RowHandle, String)>,
    /// Names of columns that were put together.
    sets: Recent<[String]>,
    /// Rows that have each column.
    rows: BTreeMap<String, usize>,
}

impl Columns {
    pub(super) fn new(spec: &PartitionSpec) -> Self {
        let known = spec.columns.iter().map(|column| (column.name.clone(), column.clone())).collect();
        Self {
            known,
            to_come: BTreeMap::new(),
            under_way: HashSet::new(),
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
        let known = self.known.len() + self.to_come.len();
        if unknown > 0 && known + unknown > COLUMNS_MAX {
            let reason =
                format!("expected at most columns_max={COLUMNS_MAX}, found {unknown} beside {known}");
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

    /// Keeps the types of columns that are new as long as what brings them is on its way; says which they
    /// are.
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

    /// One copy of these names for all rows that are put alike.
    pub(super) fn shared(&mut self, names: &[String]) -> Arc<[String]> {
        self.sets.share(names, || names.into())
    }

    /// This many rows have these columns now.
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

    /// This many rows with these columns are gone.
    pub(super) fn leave(&mut self, columns: &[String], rows: usize) {
        for column in columns {
            if let Some(count) = self.rows.get_mut(column) {
                *count -= rows;
            }
        }
    }

    /// `counted` are the rows that have each column, where there are any.
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
    /// Columns whose types are known, by name.
    pub(crate) fn columns(&self) -> &BTreeMap<String, ColumnSpec> {
        &self.columns.known
    }

    /// Rows that have each column.
    pub(crate) fn column_rows(&self) -> BTreeMap<String, usize> {
        self.columns.rows.clone()
    }

    /// Types are what they were at first; nothing is cast.
    pub(crate) fn check_columns(&self, columns: &[ColumnSpec]) -> Result<(), QueueError> {
        self.columns.check_types(columns)
    }

    /// Keeps the types of columns that are new.
    pub(crate) fn learn_columns(&mut self, columns: &[ColumnSpec]) {
        self.columns.learn(columns);
    }

    /// What brought these columns has come to an end, a good one or not.
    pub(crate) fn settle_columns(&mut self, columns: &[ColumnSpec], is_good: bool) {
        self.columns.settle(columns, is_good);
    }

    /// After replay: a chunk for every set of columns whose types are not known yet, but none of those that
    /// were `tried`.
    pub(crate) fn chunks_of_unknown_columns(&self, tried: &HashSet<ChunkId>) -> Vec<ChunkId> {
        let mut seen: BTreeSet<&str> = self.columns.known.keys().map(String::as_str).collect();
        let mut chunks = Vec::new();
        for part in self.slots.rows().flat_map(|(_, row)| &row.parts) {
            // One look at the first name is enough for rows that were put alike, which nearly all are.
            if part.columns.iter().any(|column| !seen.contains(column.as_str()))
                && !tried.contains(&part.chunk)
            {
                seen.extend(part.columns.iter().map(String::as_str));
                chunks.push(part.chunk);
            }
        }
        chunks
    }

    /// Sets columns of rows aside that are about to be written, and says which are new; nothing is changed on
    /// an error.
    pub(crate) fn begin_columns(
        &mut self,
        rows: &[RowHandle],
        columns: &[ColumnSpec],
    ) -> Result<Vec<ColumnSpec>, QueueError> {
        self.check_columns(columns)?;
        let mut claimed = HashSet::with_capacity(rows.len() * columns.len());
        for handle in rows {
            let row = self.row(*handle)?;
            for ColumnSpec { name, .. } in columns {
                let present = row.parts.iter().any(|part| part.columns.contains(name));
                let key = (*handle, name.clone());
                if present || self.columns.under_way.contains(&key) || !claimed.insert(key) {
                    return Err(QueueError::ColumnExists { column: name.clone() });
                }
            }
        }
        self.columns.under_way.extend(claimed);
        Ok(self.columns.expect(columns))
    }

    /// The end of a writing of columns, whatever came of it.
    pub(crate) fn end_columns(&mut self, rows: &[RowHandle], columns: &[String]) {
        for handle in rows {
            for column in columns {
                self.columns.under_way.remove(&(*handle, column.clone()));
            }
        }
    }
}
