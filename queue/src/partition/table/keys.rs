//! Keys: names that an owner gives to rows.
//!
//! # Invariants
//! A key belongs to one existing row, or is reserved for a row whose put is not durable yet. A key is never
//! both.

use std::collections::{HashMap, HashSet};

use super::RowHandle;
use super::leaving::shrink_map;
use crate::error::QueueError;
use crate::invariants::{self, Violation};

/// The keys of a table.
#[derive(Debug, Default)]
pub(super) struct Keys {
    rows: HashMap<String, RowHandle>,
    under_way: HashSet<String>,
}

impl Keys {
    /// Returns an error if any of these keys belongs to a row or is reserved.
    pub(super) fn check_free(&self, keys: &[String]) -> Result<(), QueueError> {
        let taken = |key: &&String| self.rows.contains_key(*key) || self.under_way.contains(*key);
        match keys.iter().find(taken) {
            Some(key) => Err(QueueError::KeyExists { key: key.clone() }),
            None => Ok(()),
        }
    }

    /// Reserves keys for rows whose put is not durable yet.
    pub(super) fn reserve(&mut self, keys: &[String]) {
        self.under_way.extend(keys.iter().cloned());
    }

    /// Ends the reservation of a key, whether its put succeeded or failed.
    pub(super) fn settle(&mut self, key: &str) {
        self.under_way.remove(key);
    }

    pub(super) fn insert(&mut self, key: String, row: RowHandle) {
        self.rows.insert(key, row);
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.rows.remove(key);
    }

    pub(super) fn get(&self, key: &str) -> Option<RowHandle> {
        self.rows.get(key).copied()
    }

    /// The keys of existing rows, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, RowHandle)> {
        self.rows.iter().map(|(key, row)| (key, *row))
    }

    pub(super) fn shrink(&mut self) {
        shrink_map(&mut self.rows);
    }

    /// Checks the index against `labelled`, the existing rows and their keys, in O(keys).
    pub(super) fn check<'a>(
        &self,
        labelled: impl Iterator<Item = (&'a String, RowHandle)>,
    ) -> Result<(), Violation> {
        if let Some(key) = self.under_way.iter().find(|key| self.rows.contains_key(*key)) {
            return Err(Violation(format!("key={key} has a row and is reserved for another")));
        }
        let mut count = 0;
        for (key, row) in labelled {
            count += 1;
            if self.rows.get(key) != Some(&row) {
                return Err(Violation(format!("key={key} does not lead to its row slot={}", row.slot)));
            }
        }
        invariants::counts_agree("rows with keys", count, self.rows.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(slot: u32) -> RowHandle {
        RowHandle { slot, generation: 0 }
    }

    #[test]
    fn a_key_is_free_reserved_or_a_rows() {
        let (mut keys, names) = (Keys::default(), ["a".to_owned()]);
        let taken = Err(QueueError::KeyExists { key: "a".to_owned() });
        assert_eq!(keys.check_free(&names), Ok(()));
        keys.reserve(&names);
        assert_eq!((keys.check_free(&names), keys.get("a")), (taken.clone(), None));
        keys.settle("a");
        assert_eq!(keys.check_free(&names), Ok(()));
        keys.insert("a".to_owned(), row(3));
        assert_eq!((keys.check_free(&names), keys.get("a")), (taken, Some(row(3))));
        keys.remove("a");
        assert_eq!((keys.check_free(&names), keys.get("a")), (Ok(()), None));
    }

    #[test]
    fn the_check_finds_keys_without_rows_and_rows_without_keys() {
        let (mut keys, name) = (Keys::default(), "a".to_owned());
        keys.insert(name.clone(), row(3));
        assert_eq!(keys.check([(&name, row(3))].into_iter()), Ok(()));
        assert!(keys.check(std::iter::empty()).is_err());
        assert!(keys.check([(&name, row(4))].into_iter()).is_err());
        keys.reserve(std::slice::from_ref(&name));
        assert!(keys.check([(&name, row(3))].into_iter()).is_err());
    }
}
