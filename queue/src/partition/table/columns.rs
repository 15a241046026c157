//! Columns: their types, which are known from their first put on, and their writing to rows that are there.

use std::collections::{BTreeSet, HashSet};

use super::{RowHandle, Table};
use crate::{ChunkId, ColumnSpec, QueueError};

/// Columns of a partition.
const COLUMNS_MAX: usize = 4096;

impl Table {
    /// Types are what they were at first; nothing is cast.
    pub(crate) fn check_columns(&self, columns: &[ColumnSpec]) -> Result<(), QueueError> {
        let mut unknown = 0;
        for column in columns {
            let to_come = || self.columns_to_come.get(&column.name).map(|(spec, _)| spec);
            match self.columns.get(&column.name).or_else(to_come) {
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
        let known = self.columns.len() + self.columns_to_come.len();
        if unknown > 0 && known + unknown > COLUMNS_MAX {
            let reason =
                format!("expected at most columns_max={COLUMNS_MAX}, found {unknown} beside {known}");
            return Err(QueueError::BadRequest { reason });
        }
        Ok(())
    }

    /// Keeps the types of columns that are new.
    pub(crate) fn learn_columns(&mut self, columns: &[ColumnSpec]) {
        for column in columns {
            if !self.columns.contains_key(&column.name) {
                self.columns.insert(column.name.clone(), column.clone());
            }
        }
    }

    /// Keeps the types of columns that are new as long as what brings them is on its way; says which they are.
    pub(crate) fn expect_columns(&mut self, columns: &[ColumnSpec]) -> Vec<ColumnSpec> {
        let unknown = |column: &&ColumnSpec| !self.columns.contains_key(&column.name);
        let columns: Vec<ColumnSpec> = columns.iter().filter(unknown).cloned().collect();
        for column in &columns {
            let entry = self.columns_to_come.entry(column.name.clone());
            entry.or_insert_with(|| (column.clone(), 0)).1 += 1;
        }
        columns
    }

    /// What brought these columns has come to an end, a good one or not.
    pub(crate) fn settle_columns(&mut self, columns: &[ColumnSpec], is_good: bool) {
        for column in columns {
            if let Some((_, puts)) = self.columns_to_come.get_mut(&column.name) {
                *puts -= 1;
                if *puts == 0 {
                    self.columns_to_come.remove(&column.name);
                }
            }
        }
        if is_good {
            self.learn_columns(columns);
        }
    }

    /// After replay: a chunk for every set of columns whose types are not known yet, but none of those that were `tried`.
    pub(crate) fn chunks_of_unknown_columns(&self, tried: &HashSet<ChunkId>) -> Vec<ChunkId> {
        let mut seen: BTreeSet<&str> = self.columns.keys().map(String::as_str).collect();
        let mut chunks = Vec::new();
        for part in self.slots.iter().filter_map(|slot| slot.row.as_ref()).flat_map(|row| &row.parts) {
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

    /// Sets columns of rows aside that are about to be written, and says which are new; nothing is changed on an error.
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
                if present || self.columns_under_way.contains(&key) || !claimed.insert(key) {
                    return Err(QueueError::ColumnExists { column: name.clone() });
                }
            }
        }
        self.columns_under_way.extend(claimed);
        Ok(self.expect_columns(columns))
    }

    /// The end of a writing of columns, whatever came of it.
    pub(crate) fn end_columns(&mut self, rows: &[RowHandle], columns: &[String]) {
        for handle in rows {
            for column in columns {
                self.columns_under_way.remove(&(*handle, column.clone()));
            }
        }
    }
}
