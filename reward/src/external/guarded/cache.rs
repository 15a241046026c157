//! A bounded cache of scores, keyed by a hash of the content of their jobs.
//!
//! Two generations approximate the order of use. New entries, and old ones that are used again, go into the
//! young generation. When the young generation is full, it becomes the old generation, and the previous old
//! generation is dropped. A cache of n entries therefore keeps at least the n/2 entries that were used last,
//! and each operation takes constant time on average.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::Score;

/// An entry. It is empty until a job has a score. Until then, equal jobs wait for the score.
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
    /// Makes a cache of at most `entries` entries. If `entries` is below 2, the cache has 2.
    pub(super) fn new(entries: usize) -> Self {
        Self { generation_max: (entries / 2).max(1), generations: Mutex::default() }
    }

    /// The cell for a content hash. If the cache drops a cell while a job fills it, jobs that hold the cell
    /// still get the score.
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
        debug_assert!(
            generations.young.len() <= self.generation_max,
            "the young generation is larger than its bound"
        );
        cell
    }
}
