//! The order of an epoch.
//!
//! The shuffle is implemented here because old checkpoints need the same order in every release. The shuffles
//! of random-number crates change between releases.

use xxhash_rust::xxh3::xxh3_64;

/// The order of `rows` rows in epoch `epoch`. It is a Fisher-Yates shuffle from the end, driven by
/// splitmix64, whose state starts at the xxh3 hash of seed and epoch (little-endian). Every order is equally
/// likely, within the limits of a 64-bit state.
pub(super) fn shuffled(rows: u32, seed: u64, epoch: u32) -> Vec<u32> {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..].copy_from_slice(&epoch.to_le_bytes());
    let mut random = SplitMix { state: xxh3_64(&key) };
    let mut order: Vec<u32> = (0..rows).collect();
    for last in (1..order.len()).rev() {
        let other = random.below(last as u32 + 1);
        order.swap(last, other as usize);
    }
    order
}

struct SplitMix {
    state: u64,
}

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound` (> 0) without bias, after Lemire, "Fast Random Integer Generation in an
    /// Interval", 2019.
    fn below(&mut self, bound: u32) -> u32 {
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = (self.next() >> 32) * u64::from(bound);
            if product as u32 >= threshold {
                return (product >> 32) as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests;
