//! Sixty-four bytes of text at a time, with one bit for each byte.
//!
//! Comparing a block of text with a byte gives a mask, in which the first byte of the text is the lowest bit.
//! Arithmetic on masks then checks the form of all elements in the block at once. The time does not depend on the
//! lengths of the elements, so the processor does not have to guess them.
//!
//! The vector instructions come from `fearless_simd`, which chooses them at run time. Its functions have to be
//! inlined into the function that the choice calls, so all functions that have an argument `simd` are inlined.

use fearless_simd::prelude::*;
use fearless_simd::{Simd, u8x64};

/// Number of bytes of a [`Block`].
pub(super) const BLOCK_BYTES: usize = 64;

const ODD_BITS: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// Sixty-four bytes of text.
#[derive(Clone, Copy)]
pub(super) struct Block<S: Simd>(u8x64<S>);

impl<S: Simd> Block<S> {
    /// The bytes from `at` on; `None` if there are fewer.
    #[inline(always)]
    pub(super) fn load(simd: S, bytes: &[u8], at: usize) -> Option<Self> {
        Some(Self::of(simd, bytes.get(at..)?.first_chunk()?))
    }

    #[inline(always)]
    pub(super) fn of(simd: S, bytes: &[u8; BLOCK_BYTES]) -> Self {
        Self(u8x64::from_slice(simd, bytes))
    }

    /// The bytes that are equal to `byte`.
    #[inline(always)]
    pub(super) fn equal_to(self, byte: u8) -> u64 {
        self.0.simd_eq(byte).to_bitmask()
    }

    /// The decimal digits.
    #[inline(always)]
    pub(super) fn digits(self) -> u64 {
        (self.0 - b'0').simd_le(9).to_bitmask()
    }
}

/// A mask moved by one byte, so that a bit stands at the byte after the one that it stood at. The bit of a block's
/// last byte is carried over to the next block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Follow {
    carried: u64,
}

impl Follow {
    /// `carried` says whether the bit of the byte before the first block is set.
    pub(super) fn new(carried: bool) -> Self {
        Self { carried: u64::from(carried) }
    }

    #[inline(always)]
    pub(super) fn moved(&mut self, mask: u64) -> u64 {
        let moved = (mask << 1) | self.carried;
        self.carried = mask >> (BLOCK_BYTES - 1);
        moved
    }
}

/// Tells the bytes of strings from those between strings, from block to block.
#[derive(Debug, Default)]
pub(super) struct Strings {
    /// 1 if the last block ended with the backslash of an escape.
    escape: u64,
    /// All bits are set if the last block ended within a string.
    inside: u64,
}

/// The places of strings in a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    pub(super) opening: u64,
    pub(super) closing: u64,
    /// The bytes that are neither in a string nor one of its quotes.
    pub(super) between: u64,
}

impl Strings {
    /// Strings whose first block begins within a string.
    pub(super) fn inside() -> Self {
        Self { escape: 0, inside: u64::MAX }
    }

    /// Whether the next block begins with an escaped byte.
    pub(super) fn is_escaped(&self) -> bool {
        self.escape == 1
    }

    #[inline(always)]
    pub(super) fn places<S: Simd>(&mut self, block: Block<S>) -> Places {
        let quotes = self.quotes(block);
        let [inside] = self.insides([quotes]);
        let closing = quotes & !inside;
        Places { opening: quotes & inside, closing, between: !inside & !closing }
    }

    /// The quotes that begin and end strings.
    #[inline(always)]
    pub(super) fn quotes<S: Simd>(&mut self, block: Block<S>) -> u64 {
        block.equal_to(b'"') & !self.escaped(block.equal_to(b'\\'))
    }

    /// For the quotes of blocks in a row, the bytes from the opening quote of each string to the byte before its
    /// closing quote.
    #[inline(always)]
    pub(super) fn insides<const BLOCKS: usize>(&mut self, quotes: [u64; BLOCKS]) -> [u64; BLOCKS] {
        let mut insides = quotes;
        for inside in &mut insides {
            *inside = parity(*inside);
        }
        for inside in &mut insides {
            *inside ^= self.inside;
            self.inside = 0_u64.wrapping_sub(*inside >> (BLOCK_BYTES - 1));
        }
        insides
    }

    /// The bytes that a backslash escapes. An escaped backslash escapes nothing.
    #[inline(always)]
    fn escaped(&mut self, backslashes: u64) -> u64 {
        // In a row of backslashes, every second one begins an escape. The subtraction borrows through a row up to
        // its end, so it tells the rows that begin at an even place from the others.
        let beginnings = backslashes & !self.escape;
        let after = beginnings << 1;
        let escapes = (after | ODD_BITS).wrapping_sub(beginnings) ^ ODD_BITS;
        let escaped = escapes ^ (backslashes | self.escape);
        self.escape = (escapes & backslashes) >> (BLOCK_BYTES - 1);
        escaped
    }
}

/// Sets each bit at which the number of set bits, from the lowest up to this one, is odd.
#[inline(always)]
fn parity(mask: u64) -> u64 {
    let mut parity = mask;
    for distance in [1, 2, 4, 8, 16, 32] {
        parity ^= parity << distance;
    }
    parity
}

/// The bits below the lowest bit of `mask`; all bits if it has none.
#[inline(always)]
pub(super) fn below_first(mask: u64) -> u64 {
    mask.wrapping_sub(1) & !mask
}

#[cfg(test)]
mod tests;
