//! Pseudo-random numbers that are functions of a seed and a key. A decision that is drawn with such a number is the same
//! whenever it is made again.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A pseudo-random number in [0, 1). It depends only on the seed and the key.
pub fn uniform(seed: u64, key: &[u8; 16]) -> f64 {
    (xxh3_64_with_seed(key, seed) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_numbers_are_uniform_and_differ_by_seed_and_key() {
        let key = |number: u64| (u128::from(number) << 64).to_le_bytes();
        for seed in 0..4 {
            let below =
                |limit: f64| (0..10_000).filter(|number| uniform(seed, &key(*number)) < limit).count();
            assert_eq!((below(0.0), below(1.0)), (0, 10_000));
            assert!((900..1100).contains(&below(0.1)), "seed={seed}: {}", below(0.1));
        }
        assert_ne!(uniform(1, &key(7)), uniform(2, &key(7)));
    }
}
