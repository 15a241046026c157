//! Parses the numbers of a JSON body from their bytes.
//!
//! Most bytes of an answer are log-probabilities, and engines print each with all the digits of a double.
//! [`parse_f32`] returns exactly the result of `str::parse::<f32>`, several times as fast for the numbers
//! that engines print. It reads the digits as one integer and scales the integer by an exact power of ten.
//! This rounds twice. If the result is so near to the middle between two `f32` that two roundings could
//! matter, the standard library parses the number.

/// The powers of ten that are exact as doubles.
const POWERS_OF_TEN: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];

/// Maximum number of decimal digits that always fit a `u64`.
const DIGITS_MAX: usize = 19;

/// Bits of a double's fraction that an `f32` has no room for.
const DROPPED_BITS: u32 = 29;

/// The dropped bits of a double that lies in the middle between two `f32`.
const MIDDLE: u64 = 1 << (DROPPED_BITS - 1);

/// The smallest distance of a result from the middle, in units of the double's last place. The conversion of
/// the digits and the division each have an error of at most half a unit of the relative precision, together
/// at most two units.
const MARGIN: u64 = 4;

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

/// A JSON number as `str::parse::<f32>` rounds it; `None` when it breaks JSON's grammar.
///
/// Numbers beyond the range of `f32` become infinite, as they do in the standard library.
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

    /// The nearest `f32`; `None` if rounding twice may give another value than rounding once.
    fn round(&self) -> Option<f32> {
        if self.has_exponent || self.digits > DIGITS_MAX {
            return None;
        }
        let scale = POWERS_OF_TEN.get(self.digits_of_fraction)?;
        let magnitude = self.mantissa as f64 / scale;
        // Below the smallest normal number, an `f32` drops more bits than this function considers.
        let normal = magnitude >= f64::from(f32::MIN_POSITIVE) && magnitude <= f64::from(f32::MAX);
        let dropped = magnitude.to_bits() & ((1 << DROPPED_BITS) - 1);
        let clear_of_middle = dropped.abs_diff(MIDDLE) > MARGIN;
        if self.mantissa != 0 && !(normal && clear_of_middle) {
            return None;
        }
        let rounded = magnitude as f32;
        Some(if self.negative { -rounded } else { rounded })
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
