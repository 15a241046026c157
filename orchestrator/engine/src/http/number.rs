//! Parses the numbers of a JSON body from their bytes.
//!
//! Most bytes of an answer are log-probabilities, and engines print each with all the digits of a double.
//! [`parse_f32`] returns exactly the result of `str::parse::<f32>`, several times as fast for the numbers that
//! engines print. It reads the digits as one integer and scales the integer by a power of ten. This involves
//! at most three roundings. If the result is so near to the middle between two `f32` that these roundings
//! could change the `f32`, the standard library parses the number.
//!
//! [`leading_f32`] and [`leading_u32`] parse a number of unknown length, eight digits at a time. They return
//! `None` for rare forms, and for numbers near the end of a chunk.

use super::lanes::{LANES, leading_digits, load, value_of_digits};

/// Powers of ten. Up to 10^22 they are exact as doubles, and the others are the nearest doubles.
const POWERS_OF_TEN: [f64; 51] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22, 1e23, 1e24, 1e25, 1e26, 1e27, 1e28, 1e29, 1e30, 1e31, 1e32, 1e33, 1e34, 1e35,
    1e36, 1e37, 1e38, 1e39, 1e40, 1e41, 1e42, 1e43, 1e44, 1e45, 1e46, 1e47, 1e48, 1e49, 1e50,
];

/// The factor by which a value is multiplied before digits are appended to it, and the largest value to which
/// they can be appended in a `u64`. The index is the number of these digits, from 0 to 8.
const SHIFTS: [(u64, u64); LANES + 1] = {
    let mut shifts = [(1, u64::MAX); LANES + 1];
    let mut digits = 1;
    while digits <= LANES {
        let factor = shifts[digits - 1].0 * 10;
        shifts[digits] = (factor, u64::MAX / factor - 1);
        digits += 1;
    }
    shifts
};

/// Maximum number of decimal digits that always fit a `u64`.
const DIGITS_MAX: usize = 19;

/// Number of bits by which a double's fraction is longer than that of an `f32`.
const DROPPED_BITS: u32 = 29;

/// The dropped bits of a double that lies in the middle between two `f32`.
const MIDDLE: u64 = 1 << (DROPPED_BITS - 1);

/// A result is used only if its distance from the middle is larger than this, in units of the double's last
/// place. The conversion of the digits, the power of ten and the division each change the result by at most
/// one unit.
const MARGIN: u64 = 8;

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

/// The `f32` that is nearest to the mantissa divided by 10 to the power of `places`. `None` if rounding several
/// times may give another value than rounding once, if the value is not in the range of normal `f32`, or if
/// there are too many places.
#[inline]
fn scaled(negative: bool, mantissa: u64, places: usize) -> Option<f32> {
    let magnitude = mantissa as f64 / POWERS_OF_TEN.get(places)?;
    // Below the smallest normal number, an `f32` drops more bits than this function considers.
    let normal = magnitude >= f64::from(f32::MIN_POSITIVE) && magnitude <= f64::from(f32::MAX);
    let dropped = magnitude.to_bits() & ((1 << DROPPED_BITS) - 1);
    let clear_of_middle = dropped.abs_diff(MIDDLE) > MARGIN;
    if mantissa != 0 && !(normal && clear_of_middle) {
        return None;
    }
    let rounded = magnitude as f32;
    Some(if negative { -rounded } else { rounded })
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

/// Returns the number that begins at `at`, and the index of its end; `None` if [`parse_f32`] has to parse the
/// number. The caller has to check the byte after the number.
#[inline]
pub(super) fn leading_f32(bytes: &[u8], at: usize) -> Option<(f32, usize)> {
    let (negative, whole, mut at) = leading_whole(bytes, at)?;
    let mut mantissa = u64::from(whole);
    let mut places = 0;
    if bytes.get(at) == Some(&b'.') {
        let fraction_start = at + 1;
        (mantissa, at) = fraction(bytes, fraction_start, mantissa)?;
        places = at - fraction_start;
    }
    // Python writes small numbers with `e-`. For any other exponent, the caller's check of the next byte
    // fails.
    if bytes.get(at) == Some(&b'e') && bytes.get(at + 1) == Some(&b'-') {
        let lanes = load(bytes, at + 2)?;
        let digits = leading_digits(lanes);
        if digits == 0 || digits == LANES {
            return None;
        }
        places += value_of_digits(lanes, digits) as usize;
        at += 2 + digits;
    }
    Some((scaled(negative, mantissa, places)?, at))
}

/// Returns the sign (true for a minus), the integer before the point, and the index of its end. Most
/// log-probabilities have a minus sign and one digit. The end is then at a constant offset, so the processor can
/// read on before it has examined the digits.
#[inline]
fn leading_whole(bytes: &[u8], at: usize) -> Option<(bool, u32, usize)> {
    if let Some([b'-', digit @ b'0'..=b'9', b'.', ..]) = bytes.get(at..) {
        return Some((true, u32::from(digit - b'0'), at + 2));
    }
    let negative = bytes.get(at) == Some(&b'-');
    let (whole, end) = leading_u32(bytes, at + usize::from(negative))?;
    Some((negative, whole, end))
}

/// Appends the digits from `start` on to the mantissa. Returns the mantissa and the end of the digits; `None`
/// if there is no digit, or if the mantissa does not fit.
#[inline]
fn fraction(bytes: &[u8], start: usize, mantissa: u64) -> Option<(u64, usize)> {
    let (mut value, mut at) = (mantissa, start);
    loop {
        let lanes = load(bytes, at)?;
        let digits = leading_digits(lanes);
        let (shift, largest) = SHIFTS[digits];
        if value > largest {
            return None;
        }
        // As in `leading_whole`, the constants let the processor read on.
        if digits == LANES {
            value = value * SHIFTS[LANES].0 + value_of_digits(lanes, LANES);
            at += LANES;
            continue;
        }
        if digits > 0 {
            value = value * shift + value_of_digits(lanes, digits);
            at += digits;
        }
        return (at > start).then_some((value, at));
    }
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
