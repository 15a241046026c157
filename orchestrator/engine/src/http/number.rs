//! Parses the numbers of a JSON body from their bytes.
//!
//! Most bytes of an answer are log-probabilities, and engines print each with all the digits of a double.
//! [`parse_f32`] returns exactly the result of `str::parse::<f32>`, several times as fast for the numbers that
//! engines print. It reads the digits as one integer and scales the integer by a power of ten. The result
//! is not exact. If it is so near to the middle between two `f32` that the exact result could lie on the other side,
//! the standard library parses the number.
//!
//! [`leading_f32`], [`leading_u32`] and [`integers`] parse numbers of unknown length, eight digits at a time. They
//! leave rare forms, and numbers near the end of a chunk.

use fearless_simd::Simd;

use super::blocks::{BLOCK_BYTES, Block, Follow, below_first};
use super::digits::{DIGITS, value_of_sixteen};
use super::lanes::{LANES, leading_digits, load, value_of_digits};

/// For each number of places, the factor that moves the point to the left by this number. A multiplication takes a
/// fraction of the time of a division. With at most 37 places, an integer of 64 bits that is not 0 becomes a number in
/// the range of normal `f32`.
const RECIPROCALS: [f64; 38] = [
    1e-0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14, 1e-15,
    1e-16, 1e-17, 1e-18, 1e-19, 1e-20, 1e-21, 1e-22, 1e-23, 1e-24, 1e-25, 1e-26, 1e-27, 1e-28, 1e-29, 1e-30,
    1e-31, 1e-32, 1e-33, 1e-34, 1e-35, 1e-36, 1e-37,
];

/// Number of digits behind the point that [`leading_f32`] reads.
const FRACTION_DIGITS: usize = DIGITS;

/// For each number of digits behind the point, the bytes that keep the values of these digits.
const FRACTION_BYTES: [[u8; FRACTION_DIGITS]; FRACTION_DIGITS + 1] = {
    let mut bytes = [[0; FRACTION_DIGITS]; FRACTION_DIGITS + 1];
    let mut digits = 1;
    while digits <= FRACTION_DIGITS {
        bytes[digits] = bytes[digits - 1];
        bytes[digits][digits - 1] = 0x0f;
        digits += 1;
    }
    bytes
};

/// The largest integer before the point in [`leading_f32`], so that it fits a `u64` with the digits behind the point.
const WHOLE_MAX: u32 = 999;

/// The least mantissa of which [`leading_f32`] drops digits. Its value is 1e-4, and engines write smaller values with
/// an exponent.
const MANTISSA_MIN: u64 = 1_000_000_000_000;

/// The exponents that [`leading_f32`] reads, by their length: the bytes that are read, and what they have to be, apart
/// from the values of the digits. Python writes an exponent with two digits. Other lengths have an impossible value.
const EXPONENTS: [(u32, u32); 5] = {
    let mut exponents = [(0, 1); 5];
    exponents[0] = (0, 0);
    exponents[4] = (u32::MAX, u32::from_le_bytes(*b"e-00"));
    exponents
};

/// Maximum number of decimal digits that always fit a `u64`.
const DIGITS_MAX: usize = 19;

/// Number of bits by which a double's fraction is longer than that of an `f32`.
const DROPPED_BITS: u32 = 29;

/// The dropped bits of a double that lies in the middle between two `f32`.
const MIDDLE: u64 = 1 << (DROPPED_BITS - 1);

/// A result is used only if its distance from the middle is larger than this, in units of the double's last
/// place. The conversion of the digits, the factor and the product each change the result by at most one
/// unit. The digits that [`leading_f32`] drops are less than 1e-16 of a value of at least 1e-4, which is at most
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
    let dropped = magnitude.to_bits() & ((1 << DROPPED_BITS) - 1);
    let clear_of_middle = dropped.wrapping_sub(MIDDLE - MARGIN) > 2 * MARGIN;
    let rounded = (magnitude as f32).to_bits() | (u32::from(negative) << 31);
    clear_of_middle.then_some(f32::from_bits(rounded))
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
/// of [`leading_u32`] and `take` accepts them. Returns the number of bytes that they take.
#[inline(always)]
pub(super) fn integers<S: Simd>(simd: S, bytes: &[u8], mut take: impl FnMut(u32) -> bool) -> usize {
    let (mut at, mut start) = (0, 0);
    let (mut after_comma, mut after_leading_zero) = (Follow::new(true), Follow::new(false));
    while let Some(block) = Block::load(simd, bytes, at) {
        let (digits, commas) = (block.digits(), block.equal_to(b','));
        let firsts = after_comma.moved(commas);
        let after_zero = after_leading_zero.moved(firsts & block.equal_to(b'0'));
        let broken = !(digits | commas) | (firsts & !digits) | (after_zero & digits);
        let mut ends = commas & below_first(broken);
        while ends != 0 {
            let end = at + ends.trailing_zeros() as usize;
            ends &= ends - 1;
            let digits = end - start;
            let Some(lanes) = load(bytes, start).filter(|_| digits < LANES) else { return start };
            if !take(value_of_digits(lanes, digits) as u32) {
                return start;
            }
            start = end + 1;
        }
        if broken != 0 {
            break;
        }
        at += BLOCK_BYTES;
    }
    start
}

/// Returns the number that begins at `at`, and the index of the comma after it. `None` if [`parse_f32`] has to parse
/// the number. The caller has to check that there is a comma.
#[inline(always)]
pub(super) fn leading_f32<S: Simd>(simd: S, bytes: &[u8], at: usize) -> Option<(f32, usize)> {
    let text = bytes.get(at..)?.first_chunk()?;
    let block = Block::of(simd, text);
    // The place of the comma does not depend on the digits, so the processor reads several numbers at a time.
    let length = block.equal_to(b',').trailing_zeros() as usize;
    Some((Decimal { simd, text, digits: block.digits(), length }.value()?, at + length))
}

/// A number with a point, at the beginning of a block.
#[derive(Clone, Copy)]
struct Decimal<'a, S: Simd> {
    simd: S,
    text: &'a [u8; BLOCK_BYTES],
    /// The digits of `text`, one bit for each byte.
    digits: u64,
    /// The length of the number.
    length: usize,
}

/// The part of a number before its point.
struct Whole {
    negative: bool,
    value: u32,
    /// The place of the point.
    point: usize,
}

impl<S: Simd> Decimal<'_, S> {
    /// The value, if the number has a usual form.
    #[inline(always)]
    fn value(self) -> Option<f32> {
        let negative = self.text[0] == b'-';
        let start = usize::from(negative);
        let has_one_digit_before_point = (self.digits >> start) & 0b11 == 0b01;
        if !has_one_digit_before_point {
            return self.value_from_ten(negative);
        }
        // The compiler knows that the point is at most at 2, so it leaves out the checks of most places.
        let value = u32::from(self.text[start] - b'0');
        self.with_fraction(Whole { negative, value, point: start + 1 })
    }

    /// The value of a number with several digits before the point. Such a log-probability is rare.
    #[inline(never)]
    fn value_from_ten(self, negative: bool) -> Option<f32> {
        let whole = leading_u32(self.text, usize::from(negative));
        let (value, point) = whole.filter(|(value, _)| *value <= WHOLE_MAX)?;
        self.with_fraction(Whole { negative, value, point })
    }

    #[inline(always)]
    fn with_fraction(self, whole: Whole) -> Option<f32> {
        let Whole { negative, value, point } = whole;
        if self.text.get(point) != Some(&b'.') {
            return None;
        }
        let fraction_digits = (!(self.digits >> (point + 1))).trailing_zeros() as usize;
        let fraction = self.fraction(point + 1, fraction_digits)?;
        let mantissa = u64::from(value) * 10_u64.pow(FRACTION_DIGITS as u32) + fraction;
        let places = self.exponent(point + 1 + fraction_digits)?;
        scaled(negative, mantissa, FRACTION_DIGITS + places)
            .filter(|_| (fraction_digits <= FRACTION_DIGITS) | (mantissa >= MANTISSA_MIN))
    }

    /// The first of the `digits` digits from `start` on, as an integer of [`FRACTION_DIGITS`] digits; `None` if there
    /// is no digit.
    #[inline(always)]
    fn fraction(self, start: usize, digits: usize) -> Option<u64> {
        // A digit that is not there counts as zero, so the places of the others are fixed.
        let kept = FRACTION_BYTES.get(digits.min(FRACTION_DIGITS)).filter(|_| digits > 0)?;
        Some(value_of_sixteen(self.simd, self.text.get(start..)?.first_chunk()?, kept))
    }

    /// The digits of the exponent from `start` to the end of the number, which is nothing or, as Python writes it, `e-`
    /// and two digits. `None` if there is anything else.
    #[inline(always)]
    fn exponent(self, start: usize) -> Option<usize> {
        let (read, expected) = EXPONENTS.get(self.length.wrapping_sub(start))?;
        // Without an exponent the bytes count as zeros, so the processor does not have to guess which numbers have one.
        let bytes = u32::from_le_bytes(*self.text.get(start..)?.first_chunk()?) & read;
        let [.., tens, ones] = (bytes ^ expected).to_le_bytes();
        let is_known = ((bytes ^ expected) & 0xffff == 0) & (tens <= 9) & (ones <= 9);
        is_known.then_some(usize::from(tens) * 10 + usize::from(ones))
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
