//! Labels: the key and the tags of a row.

use serde_json::Value;

use super::{Progress, Table};
use crate::error::QueueError;
use crate::record::Label;
use crate::row::RowHandle;
use crate::stats::KeyedRow;

impl Table {
    /// Returns an error if one of the keys is in use. A key names one row at a time.
    pub(crate) fn check_keys(&self, keys: &[String]) -> Result<(), QueueError> {
        self.keys.check_free(keys)
    }

    pub(super) fn set_label(&mut self, handle: RowHandle, label: Label) {
        if let Some(key) = &label.key {
            self.keys.insert(key.clone(), handle);
        }
        if let Ok(row) = self.row_mut(handle)
            && label != Label::default()
        {
            row.label = Some(Box::new(label));
        }
    }

    /// The name of a row's group, or an empty string if the row was freed.
    pub(crate) fn group_of(&self, handle: RowHandle) -> String {
        let group = self.row(handle).ok().and_then(|row| self.groups.get(&row.group));
        group.map(|group| group.key.clone()).unwrap_or_default()
    }

    /// Returns the row of a key, if a row has the key.
    pub(crate) fn find(&self, key: &str) -> Option<KeyedRow> {
        self.keyed(key, self.keys.get(key)?)
    }

    fn keyed(&self, key: &str, handle: RowHandle) -> Option<KeyedRow> {
        let row = self.row(handle).ok()?;
        Some(KeyedRow {
            key: key.to_owned(),
            row: handle,
            group: self.groups.get(&row.group).map(|group| group.key.clone()).unwrap_or_default(),
            tags: row.label.as_ref().map(|label| label.tags.clone()).unwrap_or_default(),
        })
    }

    /// Returns all rows that have keys, sorted by key. The cost depends on the number of keys, not on the
    /// number of rows.
    pub(crate) fn keyed_rows(&self) -> Vec<KeyedRow> {
        let mut rows: Vec<KeyedRow> =
            self.keys.iter().filter_map(|(key, handle)| self.keyed(key, handle)).collect();
        rows.sort_by(|left, right| left.key.cmp(&right.key));
        rows
    }

    /// Replaces the tags of rows. Freed rows are skipped.
    pub(crate) fn set_tags(&mut self, tags: Vec<(RowHandle, Value)>) {
        for (handle, tags) in tags {
            self.keep_row(handle);
            if let Ok(row) = self.row_mut(handle) {
                row.label.get_or_insert_default().tags = tags;
            }
        }
    }

    /// Makes the existing rows that a task has acked ready for it again. Returns their number.
    pub(crate) fn reset(&mut self, task: usize) -> usize {
        let acked = self.slots.rows().filter(|(_, row)| row.progress[task] == Progress::Acked);
        // The search ends at the last acked row.
        let handles: Vec<RowHandle> = acked.map(|(handle, _)| handle).take(self.ready[task].acked).collect();
        handles.iter().for_each(|handle| self.set(*handle, task, Progress::Ready));
        handles.len()
    }
}
