//! Parses the log-probabilities of an answer, which are numbers with a point and up to twenty digits.
//!
//! The digits behind the point are read at once as one integer ([`value_of_sixteen`]), and a factor from a table moves
//! the point. [`decimals`] reads the array of log-probabilities of `/v1/completions`. It leaves the rounding to `f32`
//! until it has read a few dozen numbers, so vector instructions round several of them at a time. [`leading_f32`] reads
//! one number.
//!
//! # Invariants
//! - Both return exactly the results of [`parse_f32`](super::number::parse_f32). They leave rare forms, numbers so near
//!   to the middle between two `f32` that the result is not certain, and numbers near the end of a chunk.

use fearless_simd::Simd;

use super::blocks::{BLOCK_BYTES, Block};
use super::digits::{DIGITS, value_of_sixteen};
use super::number::{RECIPROCALS, is_clear_of_middle, leading_u32, rounded};

/// Number of digits behind the point that [`leading_f32`] reads.
const FRACTION_DIGITS: usize = DIGITS;

/// For each number of digits behind the point: the bytes that keep the values of these digits, and the least mantissa.
const FRACTIONS: [([u8; FRACTION_DIGITS], u64); FRACTION_DIGITS + 2] = {
    let mut fractions = [([0; FRACTION_DIGITS], 0); FRACTION_DIGITS + 2];
    let mut digits = 1;
    while digits <= FRACTION_DIGITS {
        fractions[digits] = fractions[digits - 1];
        fractions[digits].0[digits - 1] = 0x0f;
        digits += 1;
    }
    fractions[digits] = (fractions[FRACTION_DIGITS].0, MANTISSA_MIN);
    // There has to be a digit.
    fractions[0].1 = u64::MAX;
    fractions
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

/// For each exponent, the factors that turn the mantissa into the number and into the negative number.
const FACTORS: [[f64; 2]; RECIPROCALS.len() - FRACTION_DIGITS] = {
    let mut factors = [[0.0; 2]; RECIPROCALS.len() - FRACTION_DIGITS];
    let mut exponent = 0;
    while exponent < factors.len() {
        let factor = RECIPROCALS[FRACTION_DIGITS + exponent];
        factors[exponent] = [factor, -factor];
        exponent += 1;
    }
    factors
};

/// Number of bytes of a [`Text`]. The digits of a number that begins in the block are read from the text, so the text
/// has room for them after the block.
const TEXT_BYTES: usize = BLOCK_BYTES + 20;

/// Number of numbers that are rounded at a time.
const BATCH: usize = 32;

/// Parses numbers from the beginning of `bytes`, each with the comma that follows it, as far as they have the form of
/// [`leading_f32`]. Gives several of them at a time to `take`, which returns how many it accepts. Returns the number
/// of bytes that the accepted numbers take.
#[inline(always)]
pub(super) fn decimals<S: Simd>(simd: S, bytes: &[u8], mut take: impl FnMut(&[f32]) -> usize) -> usize {
    let mut batch = Batch { magnitudes: [0.0; BATCH], ends: [0; BATCH], values: [0.0; BATCH] };
    let mut at = 0;
    loop {
        let read = batch.read(simd, bytes, at);
        let taken = take(batch.round(read));
        if let Some(end) = taken.checked_sub(1).and_then(|last| batch.ends.get(last)) {
            at = *end;
        }
        if taken < BATCH - 1 {
            return at;
        }
    }
}

/// Numbers that are rounded together, which takes a fraction of the instructions.
struct Batch {
    /// The numbers, not rounded yet.
    magnitudes: [f64; BATCH],
    /// The end of the comma after each number.
    ends: [usize; BATCH],
    values: [f32; BATCH],
}

impl Batch {
    /// Reads numbers from `at` on. Returns how many. If there are fewer than `BATCH - 1`, another form follows.
    #[inline(always)]
    fn read<S: Simd>(&mut self, simd: S, bytes: &[u8], mut at: usize) -> usize {
        let mut count = 0;
        while count < BATCH - 1
            && let Some(text) = Text::load(simd, bytes, at)
        {
            let first_end = text.commas.trailing_zeros() as usize;
            let Some(magnitude) = text.decimal(0, first_end) else { break };
            self.magnitudes[count] = magnitude;
            self.ends[count] = at + first_end + 1;
            count += 1;
            // Almost all blocks have two whole numbers. The processor would have to guess which blocks have more.
            let commas = text.commas & text.commas.wrapping_sub(1);
            if commas == 0 {
                at += first_end + 1;
                continue;
            }
            let end = commas.trailing_zeros() as usize;
            let Some(magnitude) = text.decimal(first_end + 1, end) else { break };
            at += end + 1;
            self.magnitudes[count] = magnitude;
            self.ends[count] = at;
            count += 1;
        }
        count
    }

    /// Rounds the first `count` numbers, as far as [`rounded`] does.
    #[inline(always)]
    fn round(&mut self, count: usize) -> &[f32] {
        let mut is_clear = true;
        for (value, magnitude) in self.values.iter_mut().zip(&self.magnitudes) {
            *value = *magnitude as f32;
            is_clear &= is_clear_of_middle(*magnitude);
        }
        let count = if is_clear { count } else { self.clear_of_middle().min(count) };
        self.values.get(..count).unwrap_or_default()
    }

    /// The number of numbers before the first one that [`rounded`] does not round.
    #[inline(never)]
    fn clear_of_middle(&self) -> usize {
        self.magnitudes.iter().take_while(|magnitude| is_clear_of_middle(**magnitude)).count()
    }
}

/// Returns the number that begins at `at`, and the index of the comma after it. `None` if
/// [`parse_f32`](super::number::parse_f32) has to parse the number. The caller has to check that there is a comma.
#[inline(always)]
pub(super) fn leading_f32<S: Simd>(simd: S, bytes: &[u8], at: usize) -> Option<(f32, usize)> {
    let text = Text::load(simd, bytes, at)?;
    // The place of the comma does not depend on the digits, so the processor reads several numbers at a time.
    let length = text.commas.trailing_zeros() as usize;
    Some((rounded(text.decimal(0, length)?)?, at + length))
}

/// A block, and the bytes after it.
#[derive(Clone, Copy)]
struct Text<'a, S: Simd> {
    simd: S,
    bytes: &'a [u8; TEXT_BYTES],
    /// The digits of the block.
    digits: u64,
    /// The commas of the block.
    commas: u64,
}

impl<'a, S: Simd> Text<'a, S> {
    #[inline(always)]
    fn load(simd: S, bytes: &'a [u8], at: usize) -> Option<Self> {
        let bytes: &[u8; TEXT_BYTES] = bytes.get(at..)?.first_chunk()?;
        let block = Block::of(simd, bytes.first_chunk()?);
        Some(Self { simd, bytes, digits: block.digits(), commas: block.equal_to(b',') })
    }

    /// The number from `start` to `end`, if it has a usual form.
    #[inline(always)]
    fn decimal(self, start: usize, end: usize) -> Option<f64> {
        let negative = *self.bytes.get(start)? == b'-';
        let whole = start + usize::from(negative);
        let digits = self.digits.wrapping_shr(whole as u32);
        // One digit, another byte, and a digit.
        if digits & 0b111 != 0b101 {
            return from_ten(self.simd, self.bytes, self.digits, (start, end));
        }
        let value = u64::from(*self.bytes.get(whole)? - b'0');
        if *self.bytes.get(whole + 1)? != b'.' {
            return None;
        }
        let fraction_digits = (!(digits >> 2)).trailing_zeros() as usize;
        with_fraction(self.simd, self.bytes, (negative, value), (whole + 2, fraction_digits), end)
    }
}

/// The number from `start` to `end`, which may have several digits before the point. Such a log-probability is rare.
#[inline(never)]
fn from_ten<S: Simd>(
    simd: S,
    bytes: &[u8; TEXT_BYTES],
    digits: u64,
    (start, end): (usize, usize),
) -> Option<f64> {
    let negative = bytes.get(start) == Some(&b'-');
    let (value, point) = leading_u32(bytes, start + usize::from(negative))?;
    if value > WHOLE_MAX || bytes.get(point) != Some(&b'.') {
        return None;
    }
    let fraction_digits = (!digits.checked_shr(point as u32 + 1)?).trailing_zeros() as usize;
    with_fraction(simd, bytes, (negative, value.into()), (point + 1, fraction_digits), end)
}

/// The number whose fraction begins at `start` and has this number of digits.
#[inline(always)]
fn with_fraction<S: Simd>(
    simd: S,
    bytes: &[u8; TEXT_BYTES],
    (negative, value): (bool, u64),
    (start, digits): (usize, usize),
    end: usize,
) -> Option<f64> {
    let (kept, mantissa_min) = FRACTIONS.get(digits.min(FRACTION_DIGITS + 1))?;
    // A digit that is not there counts as zero, so the places of the others are fixed.
    let fraction = value_of_sixteen(simd, bytes.get(start..)?.first_chunk()?, kept);
    let mantissa = value * 10_u64.pow(FRACTION_DIGITS as u32) + fraction;
    let factor = FACTORS.get(exponent(bytes, start + digits, end)?)?[usize::from(negative)];
    (mantissa >= *mantissa_min).then_some(mantissa as f64 * factor)
}

/// The digits of the exponent from `start` to `end`, which is nothing or, as Python writes it, `e-` and two digits.
/// `None` if there is anything else.
#[inline(always)]
fn exponent(bytes: &[u8; TEXT_BYTES], start: usize, end: usize) -> Option<usize> {
    let (read, expected) = EXPONENTS.get(end.wrapping_sub(start))?;
    // Without an exponent the bytes count as zeros, so the processor does not have to guess which numbers have one.
    let exponent = (u32::from_le_bytes(*bytes.get(start..)?.first_chunk()?) & read) ^ expected;
    // The two digits are less than 10 if they have no high bits, neither before nor after 6 is added.
    if (exponent.wrapping_add(0x0606_0000) | exponent) & 0xf0f0_ffff != 0 {
        return None;
    }
    let [.., tens, ones] = exponent.to_le_bytes();
    Some(usize::from(tens) * 10 + usize::from(ones))
}

#[cfg(test)]
mod tests;
