//! A small cache that shares equal values.

use std::collections::VecDeque;
use std::sync::Arc;

/// The number of values that are remembered. It suffices for a few kinds of puts that alternate.
const REMEMBERED: usize = 8;

/// The most recent values. Equal values share one allocation, however many owners they have.
#[derive(Debug)]
pub(crate) struct Recent<T: ?Sized>(VecDeque<Arc<T>>);

impl<T: ?Sized> Default for Recent<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: ?Sized + PartialEq> Recent<T> {
    /// Returns the recent value that equals `value`, or remembers `new`.
    pub(crate) fn share(&mut self, value: &T, new: impl FnOnce() -> Arc<T>) -> Arc<T> {
        if let Some(at) = self.0.iter().position(|known| **known == *value) {
            // The next search starts with this value.
            self.0.swap(0, at);
            return Arc::clone(&self.0[0]);
        }
        let new = new();
        self.0.truncate(REMEMBERED - 1);
        self.0.push_front(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_while_few_others_come_between() {
        let mut recent = Recent::<str>::default();
        let first = recent.share("first", || "first".into());
        for number in 0..REMEMBERED - 1 {
            recent.share(&number.to_string(), || number.to_string().into());
            assert!(Arc::ptr_eq(&first, &recent.share("first", || "another".into())));
        }
        (0..REMEMBERED).for_each(|number| drop(recent.share(&format!("later {number}"), || "later".into())));
        assert!(!Arc::ptr_eq(&first, &recent.share("first", || "first".into())));
        assert!(recent.0.len() <= REMEMBERED);
    }
}
