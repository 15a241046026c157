//! Parses the numbers of a JSON body from their bytes.
//!
//! Most bytes of an answer are log-probabilities, and engines print each with all the digits of a double.
//! [`parse_f32`] returns exactly the result of `str::parse::<f32>`, several times as fast for the numbers that
//! engines print. It reads the digits as one integer and scales the integer by a power of ten. The result
//! is not exact. If it is so near to the middle between two `f32` that the exact result could lie on the other side,
//! the standard library parses the number.
//!
//! [`leading_u32`] and [`integers`] parse integers of unknown length, eight digits at a time. They leave rare forms, and
//! numbers near the end of a chunk. The module `decimals` does the same for log-probabilities.

use fearless_simd::Simd;

use super::blocks::{BLOCK_BYTES, Block, below_first};
use super::lanes::{LANES, leading_digits, load, value_of_digits};

/// For each number of places, the factor that moves the point to the left by this number. A multiplication takes a
/// fraction of the time of a division. With at most 37 places, an integer of 64 bits that is not 0 becomes a number in
/// the range of normal `f32`.
pub(super) const RECIPROCALS: [f64; 38] = [
    1e-0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14, 1e-15,
    1e-16, 1e-17, 1e-18, 1e-19, 1e-20, 1e-21, 1e-22, 1e-23, 1e-24, 1e-25, 1e-26, 1e-27, 1e-28, 1e-29, 1e-30,
    1e-31, 1e-32, 1e-33, 1e-34, 1e-35, 1e-36, 1e-37,
];

/// Maximum number of decimal digits that always fit a `u64`.
const DIGITS_MAX: usize = 19;

/// Number of bits by which a double's fraction is longer than that of an `f32`.
const DROPPED_BITS: u32 = 29;

/// The dropped bits of a double that lies in the middle between two `f32`.
const MIDDLE: u64 = 1 << (DROPPED_BITS - 1);

/// A result is used only if its distance from the middle is larger than this, in units of the double's last
/// place. The conversion of the digits, the factor and the product each change the result by at most one
/// unit. The digits that the module `decimals` drops are less than 1e-16 of a value of at least 1e-4, which is at most
/// 9008 units.
const MARGIN: u64 = 1 << 14;

/// A token id or position: a JSON integer without sign, fraction or exponent.
pub(super) fn parse_u32(text: &[u8]) -> Option<u32> {
    let leading_zero = text.len() > 1 && text.first() == Some(&b'0');
    if text.is_empty() || text.len() > 10 || leading_zero {
        return None;
    }
    let mut value: u64 = 0;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    u32::try_from(value).ok()
}

/// The value of a JSON number, rounded as in `str::parse::<f32>`; `None` if the text breaks JSON's grammar.
///
/// Numbers beyond the range of `f32` become infinite, as in the standard library.
pub(super) fn parse_f32(text: &[u8]) -> Option<f32> {
    let shape = Shape::read(text)?;
    if let Some(value) = shape.round() {
        return Some(value);
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The parts of a number that obeys JSON's grammar.
struct Shape {
    negative: bool,
    /// All digits before the exponent as one integer. It is meaningless if `digits` exceeds [`DIGITS_MAX`].
    mantissa: u64,
    digits: usize,
    digits_of_fraction: usize,
    has_exponent: bool,
}

impl Shape {
    fn read(text: &[u8]) -> Option<Self> {
        let negative = text.first() == Some(&b'-');
        let mut at = usize::from(negative);
        let mut mantissa: u64 = 0;

        let whole_start = at;
        at = take_digits(text, at, &mut mantissa);
        let digits_of_whole = at - whole_start;
        if digits_of_whole == 0 || (digits_of_whole > 1 && text.get(whole_start) == Some(&b'0')) {
            return None;
        }

        let mut digits_of_fraction = 0;
        if text.get(at) == Some(&b'.') {
            let fraction_start = at + 1;
            at = take_digits(text, fraction_start, &mut mantissa);
            digits_of_fraction = at - fraction_start;
            if digits_of_fraction == 0 {
                return None;
            }
        }

        let has_exponent = matches!(text.get(at), Some(b'e' | b'E'));
        if has_exponent {
            at += 1;
            at += usize::from(matches!(text.get(at), Some(b'+' | b'-')));
            let exponent_start = at;
            let mut exponent = 0;
            at = take_digits(text, exponent_start, &mut exponent);
            if at == exponent_start {
                return None;
            }
        }
        let digits = digits_of_whole + digits_of_fraction;
        (at == text.len()).then_some(Self { negative, mantissa, digits, digits_of_fraction, has_exponent })
    }

    /// The nearest `f32`; `None` if the standard library has to parse the number.
    fn round(&self) -> Option<f32> {
        if self.has_exponent || self.digits > DIGITS_MAX {
            return None;
        }
        scaled(self.negative, self.mantissa, self.digits_of_fraction)
    }
}

/// The `f32` that is nearest to the mantissa divided by 10 to the power of `places`. `None` if the roundings may
/// give another value than rounding once, or if there are too many places.
#[inline(always)]
fn scaled(negative: bool, mantissa: u64, places: usize) -> Option<f32> {
    let magnitude = mantissa as f64 * RECIPROCALS.get(places)?;
    rounded(if negative { -magnitude } else { magnitude })
}

/// The `f32` that is nearest to an exact value. `magnitude` has an error of at most [`MARGIN`] in comparison with this
/// value. `None` if the error may change the result.
#[inline(always)]
pub(super) fn rounded(magnitude: f64) -> Option<f32> {
    is_clear_of_middle(magnitude).then_some(magnitude as f32)
}

/// Whether a double is so far from the middle between two `f32` that its small error does not change its rounding.
#[inline(always)]
pub(super) fn is_clear_of_middle(magnitude: f64) -> bool {
    let dropped = magnitude.to_bits() & ((1 << DROPPED_BITS) - 1);
    dropped.wrapping_sub(MIDDLE - MARGIN) > 2 * MARGIN
}

/// Returns the integer that begins at `at`, and the index of its end; `None` if [`parse_u32`] has to parse the
/// integer. The caller has to check the byte after the integer. Only integers of one to seven digits are
/// parsed, since token ids have no more.
#[inline]
pub(super) fn leading_u32(bytes: &[u8], at: usize) -> Option<(u32, usize)> {
    let lanes = load(bytes, at)?;
    let digits = leading_digits(lanes);
    let leading_zero = digits > 1 && bytes.get(at) == Some(&b'0');
    if digits == 0 || digits == LANES || leading_zero {
        return None;
    }
    Some((value_of_digits(lanes, digits) as u32, at + digits))
}

/// Parses integers from the beginning of `bytes`, each with the comma that follows it, as far as they have the form
/// of [`leading_u32`]. Gives several of them at a time to `take`, which returns how many it accepts. Returns the number
/// of bytes that the accepted integers take.
#[inline(always)]
pub(super) fn integers<S: Simd>(simd: S, bytes: &[u8], mut take: impl FnMut(&[u32]) -> usize) -> usize {
    let mut values = [0; BLOCK_BYTES];
    let mut at = 0;
    while let Some(text) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        let ends = ends_of_integers(simd, text);
        let (mut start, mut count, mut left) = (0, 0, ends);
        for value in &mut values {
            let end = left.trailing_zeros() as usize;
            let Some(lanes) = load(text, start).filter(|_| left != 0) else { break };
            *value = value_of_digits(lanes, end - start) as u32;
            start = end + 1;
            left &= left - 1;
            count += 1;
        }
        let taken = take(values.get(..count).unwrap_or_default());
        if taken < count {
            let commas = text.iter().enumerate().filter(|(_, byte)| **byte == b',');
            let last = commas.take(taken).last();
            return last.map_or(at, |(comma, _)| at + comma + 1);
        }
        if count == 0 {
            break;
        }
        at += start;
    }
    at
}

/// The commas after the integers at the beginning of `text`, as far as these have the form of [`leading_u32`].
#[inline(always)]
fn ends_of_integers<S: Simd>(simd: S, text: &[u8; BLOCK_BYTES + LANES]) -> u64 {
    let Some(block) = Block::load(simd, text, 0) else { return 0 };
    let (digits, commas) = (block.digits(), block.equal_to(b','));
    let firsts = (commas << 1) | 1;
    let after_leading_zero = (firsts & block.equal_to(b'0')) << 1;
    // The digits that begin a row of eight digits.
    let twos = digits & (digits >> 1);
    let fours = twos & (twos >> 2);
    let eights = fours & (fours >> 4);
    let broken = !(digits | commas) | (firsts & !digits) | (after_leading_zero & digits) | eights;
    commas & below_first(broken)
}

/// Appends the digits from `at` on to `value`. Returns the index of their end. Overflow wraps, so callers
/// check the number of digits.
fn take_digits(text: &[u8], at: usize, value: &mut u64) -> usize {
    let mut end = at;
    while let Some(byte) = text.get(end) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        *value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        end += 1;
    }
    end
}

/// Appends a decimal integer.
pub(super) fn push_u64(buffer: &mut Vec<u8>, value: u64) {
    let mut digits = [0_u8; 20];
    let mut rest = value;
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    buffer.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests;
