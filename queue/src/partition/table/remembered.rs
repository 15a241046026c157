//! The latest texts of one kind: tokens, or names of groups that accept no more rows. A text is looked up by
//! its bytes. The number and the size of the texts are limited, and the oldest texts are forgotten first.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use super::texts::{Texts, Value, bytes_of};
use crate::invariants::{self, Violation};

/// The maximum number of texts.
const TEXTS_MAX: usize = 65_536;
/// The maximum size of the texts and their values, in bytes.
pub(super) const BYTES_MAX: usize = 16 << 20;
/// The approximate bytes that a text takes in the index.
const INDEX_BYTES: usize = 32;

/// The latest texts, with a value each.
#[derive(Debug, Default)]
pub(super) struct Remembered<V> {
    texts: Texts<V>,
    /// The number of each text, by its hash. The hash has a random key, so no client can choose texts with
    /// equal hashes. If two hashes are equal by chance, which is less likely than a memory fault, the older
    /// text is no longer found.
    numbers: BTreeMap<u64, u64>,
    key: RandomState,
    bytes: usize,
}

impl<V: Value> Remembered<V> {
    fn bytes_of(text: &str, value: &V) -> usize {
        INDEX_BYTES + bytes_of(text, value)
    }

    /// The value of a text, if the text is remembered.
    pub(super) fn get(&self, text: &str) -> Option<&V> {
        let number = self.numbers.get(&self.key.hash_one(text))?;
        let (found, value) = self.texts.get(*number)?;
        (found == text).then_some(value)
    }

    pub(super) fn contains(&self, text: &str) -> bool {
        self.get(text).is_some()
    }

    /// Remembers a text, unless it is remembered already.
    pub(super) fn insert(&mut self, text: &str, value: V) {
        if self.contains(text) {
            return;
        }
        self.bytes += Self::bytes_of(text, &value);
        let number = self.texts.push(text, value);
        self.numbers.insert(self.key.hash_one(text), number);
        while (self.texts.len() > TEXTS_MAX || self.bytes > BYTES_MAX) && self.texts.len() > 1 {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((text, value)) = self.texts.oldest() else { return };
        self.bytes -= Self::bytes_of(text, value);
        let (hash, number) = (self.key.hash_one(text), self.texts.numbers().start);
        if self.numbers.get(&hash) == Some(&number) {
            self.numbers.remove(&hash);
        }
        self.texts.forget_oldest();
    }

    /// The texts, oldest first. A clone of them costs little, and does not change.
    pub(super) fn texts(&self) -> &Texts<V> {
        &self.texts
    }

    /// Checks the index and the size, in O(texts). `what` names the texts.
    pub(super) fn check(&self, what: &str) -> Result<(), Violation> {
        let known = self.texts.numbers();
        if let Some(number) = self.numbers.values().find(|number| !known.contains(*number)) {
            return Err(Violation(format!("{what}: number={number} is not among {known:?}")));
        }
        invariants::counts_agree(what, self.texts.iter().count(), self.texts.len())?;
        let bytes = self.texts.iter().map(|(text, value)| Self::bytes_of(text, value)).sum();
        invariants::counts_agree(&format!("bytes of {what}"), bytes, self.bytes)
    }

    /// The approximate size in memory, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{RowHandle, Runs};

    fn remembered(texts: impl IntoIterator<Item = String>) -> Remembered<()> {
        let mut remembered = Remembered::default();
        texts.into_iter().for_each(|text| remembered.insert(&text, ()));
        remembered
    }

    #[test]
    fn the_latest_texts_are_remembered() {
        let names = (0..=TEXTS_MAX).map(|number| number.to_string());
        let mut remembered = remembered(names);
        remembered.insert("1", ());
        assert_eq!((remembered.contains("0"), remembered.texts.len()), (false, TEXTS_MAX));
        let is_found = |number: usize| remembered.contains(&number.to_string());
        assert!((1..=TEXTS_MAX).all(is_found), "all that were not forgotten are found");
        assert_eq!((remembered.numbers.len(), remembered.check("names")), (TEXTS_MAX, Ok(())));
        remembered.numbers.insert(7, 0);
        assert!(remembered.check("names").is_err(), "the first text is forgotten");
    }

    /// A snapshot shares the blocks of texts, so the next text copies the last block, and a copied value may
    /// have another capacity.
    #[test]
    fn the_size_is_right_although_blocks_are_copied_and_forgotten() {
        let slots = |first: u32| (0..3).map(move |row| RowHandle { slot: first + 2 * row, generation: 1 });
        let mut remembered = Remembered::default();
        for number in 0..TEXTS_MAX as u32 + 2000 {
            let shared = remembered.texts().clone();
            remembered.insert(&number.to_string(), Runs::of(&slots(number).collect::<Vec<_>>()));
            drop(shared);
            if number % 10_000 == 0 {
                assert_eq!(remembered.check("tokens"), Ok(()), "after {number} texts");
            }
        }
        assert_eq!(remembered.check("tokens"), Ok(()));
        while remembered.texts().len() > 0 {
            remembered.forget_oldest();
        }
        assert_eq!(remembered.bytes(), 0);
    }

    #[test]
    fn long_texts_are_limited_in_bytes_and_one_is_always_remembered() {
        let long = |number: usize| number.to_string().repeat(1000);
        let mut remembered = remembered((10_000..20_000).map(long));
        assert!(remembered.bytes <= BYTES_MAX && remembered.bytes > BYTES_MAX - (6 << 10));
        assert!(!remembered.contains(&long(10_000)) && remembered.contains(&long(19_999)));
        let longest = "x".repeat(BYTES_MAX + 1);
        remembered.insert(&longest, ());
        assert_eq!((remembered.contains(&longest), remembered.texts.len()), (true, 1));
        assert_eq!((remembered.numbers.len(), remembered.check("names")), (1, Ok(())));
    }
}
