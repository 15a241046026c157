//! Texts in the order in which they were added. The oldest texts are forgotten first.
//!
//! The texts are stored one after another in blocks, so a text takes little more than its bytes. The memory
//! of forgotten texts is freed block by block. A clone shares the blocks. It takes no memory for each text,
//! and does not change with the original.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The size at which a block gets no more texts, in bytes.
const BLOCK_BYTES: usize = 16 << 10;

/// A value that is kept with a text.
pub(crate) trait Value: Clone {
    /// The number of bytes that the value needs on the heap. The owner of the texts adds this number to its total
    /// when it adds a text, and subtracts it when it forgets the text. In between, the block of the text may have
    /// been copied, which replaces the value by a clone. A clone must therefore return the same number, even if
    /// its allocation is larger or smaller.
    fn heap_bytes(&self) -> usize;
}

impl Value for () {
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Consecutive texts.
#[derive(Debug, Clone)]
struct Block<V> {
    /// The number of the first text.
    first: u64,
    text: String,
    /// The end of each text in `text`, and the value of the text.
    entries: Vec<(usize, V)>,
    bytes: usize,
}

impl<V: Value> Block<V> {
    fn new(first: u64) -> Self {
        Self { first, text: String::new(), entries: Vec::new(), bytes: 0 }
    }

    fn push(&mut self, text: &str, value: V) {
        self.bytes += bytes_of(text, &value);
        self.text.push_str(text);
        self.entries.push((self.text.len(), value));
    }

    fn get(&self, at: usize) -> Option<(&str, &V)> {
        let (end, value) = self.entries.get(at)?;
        let start = at.checked_sub(1).map_or(0, |before| self.entries[before].0);
        Some((self.text.get(start..*end)?, value))
    }

    fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }
}

/// The bytes that a text and its value take.
pub(super) fn bytes_of<V: Value>(text: &str, value: &V) -> usize {
    text.len() + size_of::<(usize, V)>() + value.heap_bytes()
}

/// Texts with values, oldest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Texts<V> {
    blocks: VecDeque<Arc<Block<V>>>,
    /// The number of the oldest text. Texts are numbered in their order.
    first: u64,
    /// The number of the next text.
    next: u64,
}

impl<V: Value> Texts<V> {
    pub(super) fn len(&self) -> usize {
        (self.next - self.first) as usize
    }

    /// The numbers of the texts.
    pub(super) fn numbers(&self) -> Range<u64> {
        self.first..self.next
    }

    /// Adds a text, and returns its number.
    pub(super) fn push(&mut self, text: &str, value: V) -> u64 {
        let number = self.next;
        self.next += 1;
        if self.blocks.back().is_none_or(|block| block.bytes >= BLOCK_BYTES) {
            if let Some(full) = self.blocks.back_mut() {
                let full = Arc::make_mut(full);
                full.text.shrink_to_fit();
                full.entries.shrink_to_fit();
            }
            self.blocks.push_back(Arc::new(Block::new(number)));
        }
        if let Some(block) = self.blocks.back_mut() {
            // A block that a clone shares is copied, so the clone does not change.
            Arc::make_mut(block).push(text, value);
        }
        number
    }

    pub(super) fn get(&self, number: u64) -> Option<(&str, &V)> {
        if !self.numbers().contains(&number) {
            return None;
        }
        let place = self.blocks.partition_point(|block| block.first <= number).checked_sub(1)?;
        let block = self.blocks.get(place)?;
        block.get((number - block.first) as usize)
    }

    pub(super) fn oldest(&self) -> Option<(&str, &V)> {
        self.get(self.first)
    }

    pub(super) fn forget_oldest(&mut self) {
        if self.first == self.next {
            return;
        }
        self.first += 1;
        if self.blocks.front().is_some_and(|block| block.end() <= self.first) {
            self.blocks.pop_front();
        }
    }

    /// Removes the oldest texts and returns them. Stops at `texts_max` texts, or when the removed texts and their
    /// values take at least `bytes` bytes.
    pub(super) fn take_oldest(&mut self, texts_max: usize, bytes: usize) -> Vec<(String, V)> {
        let (mut taken, mut taken_bytes) = (Vec::new(), 0);
        while taken.len() < texts_max
            && taken_bytes < bytes
            && let Some((text, value)) = self.oldest()
        {
            taken_bytes += bytes_of(text, value);
            taken.push((text.to_owned(), value.clone()));
            self.forget_oldest();
        }
        taken
    }

    /// The texts and their values, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        let first = self.first;
        self.blocks.iter().flat_map(move |block| {
            let forgotten = first.saturating_sub(block.first) as usize;
            (forgotten..block.entries.len()).filter_map(move |at| block.get(at))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(texts: &Texts<()>) -> Vec<String> {
        texts.iter().map(|(text, ())| text.to_owned()).collect()
    }

    #[test]
    fn texts_are_what_a_list_would_hold_over_many_blocks() {
        let (mut texts, mut list, mut most) = (Texts::default(), VecDeque::new(), 0);
        for number in 0_u64..20_000 {
            // Texts of 0 to 36 bytes, and now and then one that is longer than a block.
            let length = if number % 5000 == 7 { BLOCK_BYTES + 1 } else { (number % 37) as usize };
            let text = number.to_string().chars().cycle().take(length).collect::<String>();
            assert_eq!(texts.push(&text, ()), number);
            list.push_back(text);
            while list.len() > 3000 - (number % 2) as usize * 20 {
                assert_eq!(texts.oldest().map(|(text, ())| text), list.front().map(String::as_str));
                texts.forget_oldest();
                list.pop_front();
            }
            assert_eq!((texts.len(), texts.numbers().end), (list.len(), number + 1));
            let at = number.wrapping_mul(7) % list.len() as u64;
            let found = texts.get(texts.numbers().start + at).map(|(text, ())| text);
            assert_eq!(found, list.get(at as usize).map(String::as_str));
            most = most.max(texts.blocks.len());
        }
        assert_eq!(all(&texts), Vec::from(list));
        assert!((2..20).contains(&most), "blocks={most}");
        assert_eq!(texts.get(texts.numbers().start - 1), None);
        assert_eq!(texts.get(texts.numbers().end), None);
        (0..3000).for_each(|_| texts.forget_oldest());
        texts.forget_oldest();
        assert_eq!((texts.len(), texts.oldest(), texts.blocks.len()), (0, None, 0));
        assert_eq!(texts.push("again", ()), 20_000);
        assert_eq!(all(&texts), ["again"]);
    }

    #[test]
    fn a_clone_stays_as_it_was_and_shares_full_blocks() {
        let mut texts = Texts::default();
        for number in 0..5000 {
            texts.push(&number.to_string(), ());
        }
        let (clone, before) = (texts.clone(), all(&texts));
        for number in 0..5000 {
            texts.push(&format!("later {number}"), ());
        }
        let shared = clone.blocks.iter().zip(&texts.blocks).filter(|(one, other)| Arc::ptr_eq(one, other));
        assert_eq!(shared.count(), clone.blocks.len() - 1, "only the block that was not full is copied");
        (0..7000).for_each(|_| texts.forget_oldest());
        assert_eq!(all(&clone), before);
        assert_eq!(texts.oldest().map(|(text, ())| text), Some("later 2000"));
    }

    #[test]
    fn texts_are_taken_in_their_order_and_up_to_a_size() {
        let mut texts = Texts::default();
        for text in ["a", "b", "c", "d"] {
            texts.push(text, ());
        }
        let mut take = |texts_max, bytes| {
            texts.take_oldest(texts_max, bytes).into_iter().map(|(text, ())| text).collect::<String>()
        };
        assert_eq!([take(2, 1 << 10), take(9, 1), take(9, 1 << 10), take(9, 1 << 10)], ["ab", "c", "d", ""]);
    }
}
