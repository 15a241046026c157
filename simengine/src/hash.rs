//! Pseudo-random numbers from hashes, equal on every machine.

/// A bijection of 64-bit words with good avalanche (the finaliser of SplitMix64).
pub(crate) fn mix(word: u64) -> u64 {
    let mut mixed = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// A number in [0, 1) from a hash.
pub(crate) fn unit(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}
