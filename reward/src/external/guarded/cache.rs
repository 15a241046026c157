//! Scores by content, bounded, each asked for once at a time.
//!
//! Two generations stand for an order of use: new and used entries live in the young one; when it is full it becomes
//! the old one, and what was old is forgotten. So an entry that was used within the last half of the capacity is
//! there, nothing is counted or sorted, and every operation takes constant time on average.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::Score;

/// An entry: empty until somebody's attempt has succeeded, and a queue for the others until then.
pub(super) type Cell = Arc<OnceCell<Score>>;

pub(super) struct Cache {
    generation_max: usize,
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashMap<u128, Cell>,
    old: HashMap<u128, Cell>,
}

impl Cache {
    /// Room for `entries`, at least 2.
    pub(super) fn new(entries: usize) -> Self {
        Self { generation_max: (entries / 2).max(1), generations: Mutex::default() }
    }

    /// The cell of a content. One that is forgotten while somebody fills it still serves those who hold it.
    pub(super) fn cell(&self, hash: u128) -> Cell {
        let mut generations = self.generations.lock();
        if let Some(cell) = generations.young.get(&hash) {
            return Arc::clone(cell);
        }
        let cell = generations.old.remove(&hash).unwrap_or_default();
        if generations.young.len() >= self.generation_max {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(hash, Arc::clone(&cell));
        debug_assert!(generations.young.len() <= self.generation_max, "the young generation has a bound");
        cell
    }
}
