//! Signatures: the first tokens of a response, which identify its sample.
//!
//! A sample that was cut off comes back over HTTP as an ordinary prompt: the protocol does not mark the
//! tokens that belong to the sample. So a response begins with its identity and a check sum, spelled in
//! filler. If a prompt ends in such a beginning, the server continues that sample. Any server can do so,
//! since none has to remember the sample.
//!
//! # Deliberately absent
//! Samples that were cut within their signature (a dozen tokens), or too short to have one, are not
//! recognised: they are drawn as new responses.

use std::collections::HashMap;

use crate::hash::mix;

/// Bits of a signature: an identity and its check sum.
const IDENTITY_BITS: u32 = 64;
const CHECK_BITS: u32 = 32;

/// Fewest bits per token. With a smaller filler vocabulary a signature would be too long.
const BITS_MIN: u32 = 6;
/// Maximum number of bits per token. Of a larger filler vocabulary only the first ids are used.
const BITS_MAX: u32 = 16;

/// Spells identities in filler.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Signatures {
    seed: u64,
    bits: u32,
    tokens: u32,
    digits: HashMap<u32, u16>,
}

impl Signatures {
    /// `None` if the filler is too small, or has an id twice.
    pub(crate) fn new(seed: u64, filler_ids: &[u32]) -> Option<Self> {
        let bits = filler_ids.len().checked_ilog2()?.min(BITS_MAX);
        let digits: HashMap<u32, u16> =
            filler_ids.iter().copied().zip(0..=u16::MAX).take(1 << bits).collect();
        if bits < BITS_MIN || digits.len() < 1 << bits {
            return None;
        }
        let tokens = (IDENTITY_BITS + CHECK_BITS).div_ceil(bits);
        Some(Self { seed, bits, tokens, digits })
    }

    /// Tokens of a signature.
    pub(crate) fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Index in the filler of token `position` of an identity's signature.
    pub(crate) fn digit(&self, identity: u64, position: u32) -> usize {
        let spelled = (u128::from(identity) << CHECK_BITS) | u128::from(self.check(identity));
        let below = self.bits * (self.tokens - 1).saturating_sub(position);
        // Masked, so that the cast cannot cut.
        ((spelled >> below) & self.mask(1)) as usize
    }

    /// The last signature in these tokens: where it begins, and its sample's identity.
    pub(crate) fn find(&self, token_ids: &[u32]) -> Option<(usize, u64)> {
        let (mut spelled, mut run, mut found) = (0_u128, 0, None);
        for (position, token) in token_ids.iter().enumerate() {
            let Some(digit) = self.digits.get(token) else {
                run = 0;
                continue;
            };
            spelled = ((spelled << self.bits) | u128::from(*digit)) & self.mask(self.tokens);
            run += 1;
            let Ok(identity) = u64::try_from(spelled >> CHECK_BITS) else { continue };
            let check = spelled & u128::from(u32::MAX);
            if run >= self.tokens && check == u128::from(self.check(identity)) {
                found = Some((position + 1 - self.tokens as usize, identity));
            }
        }
        found
    }

    fn mask(&self, digits: u32) -> u128 {
        (1 << (self.bits * digits)) - 1
    }

    fn check(&self, identity: u64) -> u32 {
        (mix(mix(self.seed ^ 0x516) ^ identity) >> 32) as u32
    }
}
