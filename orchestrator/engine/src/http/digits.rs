//! The value of sixteen decimal digits.
//!
//! Neighbouring digits are joined in vector registers until two numbers of eight digits are left. On x86 one
//! instruction multiplies and adds at once, which the portable operations of `fearless_simd` do not have. Other
//! machines, and x86 machines without SSE 4.2, join the digits in integers ([`value_of_eight`]).

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_cvtsi128_si64, _mm_madd_epi16, _mm_maddubs_epi16, _mm_packus_epi32,
    _mm_set1_epi16, _mm_set1_epi32,
};

use fearless_simd::Simd;
use fearless_simd::prelude::*;
#[cfg(target_arch = "x86_64")]
use fearless_simd::u8x16;

use super::lanes::{LANES, value_of_eight};

/// Number of digits.
pub(super) const DIGITS: usize = 2 * LANES;

/// The integer whose digits are the bytes of `text`. Each byte of `kept` is `0x0f`, or 0 for a byte of `text` that
/// counts as the digit 0.
#[inline(always)]
pub(super) fn value_of_sixteen<S: Simd>(simd: S, text: &[u8; DIGITS], kept: &[u8; DIGITS]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(sse) = simd.level().as_sse4_2() {
        let (text, kept) = (u8x16::from_slice(sse, text), u8x16::from_slice(sse, kept));
        return join(sse, text.into(), kept.into());
    }
    joined_in_integers(text, kept)
}

#[cfg(target_arch = "x86_64")]
fearless_simd::kernel!(
    #[inline]
    fn join(_sse: Sse4_2, text: __m128i, kept: __m128i) -> u64 {
        // The first of two neighbours is the lower one in memory, and the higher one in the number.
        let digits = _mm_and_si128(text, kept);
        let pairs = _mm_maddubs_epi16(digits, _mm_set1_epi16((1 << 8) | 10));
        let fours = _mm_madd_epi16(pairs, _mm_set1_epi32((1 << 16) | 100));
        let packed = _mm_packus_epi32(fours, fours);
        let eights = _mm_madd_epi16(packed, _mm_set1_epi32((1 << 16) | 10_000));
        let both = _mm_cvtsi128_si64(eights).cast_unsigned();
        (both & 0xffff_ffff) * 100_000_000 + (both >> 32)
    }
);

#[inline(always)]
fn joined_in_integers(text: &[u8; DIGITS], kept: &[u8; DIGITS]) -> u64 {
    let lanes = |bytes: &[u8; DIGITS], half: usize| {
        bytes[half * LANES..].first_chunk::<LANES>().map_or(0, |lanes| u64::from_le_bytes(*lanes))
    };
    let value = |half| value_of_eight(lanes(text, half) & lanes(kept, half));
    value(0) * 100_000_000 + value(1)
}

#[cfg(test)]
mod tests {
    use fearless_simd::{Level, dispatch};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn digits_that_are_kept_have_their_places(
            text in prop::array::uniform16(b'0'..=b'9'),
            kept in prop::array::uniform16(prop_oneof![Just(0_u8), Just(0x0f)]),
        ) {
            let places = text.iter().zip(&kept);
            let expected = places.fold(0, |value, (digit, kept)| value * 10 + u64::from((digit - b'0') & kept));
            let found = dispatch!(Level::new(), simd => value_of_sixteen(simd, &text, &kept));
            prop_assert_eq!(found, expected);
            let found = dispatch!(Level::baseline(), simd => value_of_sixteen(simd, &text, &kept));
            prop_assert_eq!(found, expected, "without instructions that a machine may lack");
            prop_assert_eq!(joined_in_integers(&text, &kept), expected);
        }
    }
}
