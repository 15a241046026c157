//! Eight bytes of text at a time, as one integer. The hot loops of the reader use these functions.
//!
//! Most bytes of an answer are digits, and most strings of an answer are shorter than a vector register.
//! Arithmetic on a `u64` finds the end of such a piece in a few instructions on every machine, without a call
//! and without `unsafe`. The first byte of the text is the lowest byte of the integer.
//!
//! # Deliberately absent
//! No function reads beyond a slice. Near the end of a chunk, where fewer than eight bytes are left,
//! [`load`] returns `None` and the caller continues byte by byte.

/// Number of bytes that [`load`] reads.
pub(super) const LANES: usize = 8;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
const ZEROS: u64 = 0x3030_3030_3030_3030;
/// Added to a byte from 0 to 127, this sets the high bit if the byte is larger than 9.
const ABOVE_NINE: u64 = 0x7676_7676_7676_7676;

/// The eight bytes from `at` on; `None` if there are fewer.
#[inline(always)]
pub(super) fn load(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk::<LANES>().map(|lanes| u64::from_le_bytes(*lanes))
}

/// Number of decimal digits at the beginning, from 0 to 8.
#[inline(always)]
pub(super) fn leading_digits(lanes: u64) -> usize {
    let values = lanes ^ ZEROS;
    let others = (((values & !HIGH_BITS) + ABOVE_NINE) | values) & HIGH_BITS;
    first_lane(others)
}

/// The value of each byte that is a decimal digit.
#[inline(always)]
fn digit_values(lanes: u64) -> u64 {
    lanes ^ ZEROS
}

/// The value of the first `count` bytes, which have to be decimal digits. `count` is from 1 to 8.
#[inline(always)]
pub(super) fn value_of_digits(lanes: u64, count: usize) -> u64 {
    // The digits are moved to the end, so zeros precede them and the bytes after them are dropped.
    value_of_eight(digit_values(lanes) << (8 * (LANES - count) as u32))
}

/// The integer whose eight digits have these values.
#[inline(always)]
pub(super) fn value_of_eight(digits: u64) -> u64 {
    // Neighbours are joined three times: into four numbers of two digits, two of four, and one of eight.
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let high = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let low = ((pairs >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    high.wrapping_add(low) >> 32
}

/// The index of the first quote or backslash, or 8 if there is none.
#[inline(always)]
pub(super) fn quote_or_backslash(lanes: u64) -> usize {
    first_lane(equal_to(lanes, b'"') | equal_to(lanes, b'\\'))
}

/// Sets the high bit of the first byte that is equal to `byte`, and possibly of bytes behind it.
#[inline(always)]
fn equal_to(lanes: u64, byte: u8) -> u64 {
    let differences = lanes ^ (ONES * u64::from(byte));
    differences.wrapping_sub(ONES) & !differences & HIGH_BITS
}

#[inline(always)]
fn first_lane(high_bits: u64) -> usize {
    (high_bits.trailing_zeros() / 8) as usize
}

#[cfg(test)]
mod tests;
