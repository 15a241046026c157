//! Signatures: the first tokens of a response, which identify its sample.
//!
//! A sample that was cut off returns over HTTP as an ordinary prompt: the protocol does not mark the tokens
//! that belong to the sample. A response therefore begins with its identity and a checksum, encoded in filler
//! tokens. If a prompt ends in the beginning of a response, the server continues that sample. Any server can
//! do so, since no server has to remember the sample.
//!
//! # Deliberately absent
//! A sample is not recognised if it was cut within its signature (a dozen tokens), or if it is too short to
//! have one. The server then draws a new response.

use std::collections::HashMap;

use crate::hash::mix;

/// Numbers of bits of the two parts of a signature: the identity and its checksum.
const IDENTITY_BITS: u32 = 64;
const CHECK_BITS: u32 = 32;

/// Minimum number of bits per token. With a smaller filler vocabulary a signature would be too long.
const BITS_MIN: u32 = 6;
/// Maximum number of bits per token. If the filler vocabulary is larger, only its first ids are used.
const BITS_MAX: u32 = 16;

/// Encodes identities in filler tokens, and finds them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Signatures {
    seed: u64,
    bits: u32,
    tokens: u32,
    digits: HashMap<u32, u16>,
}

impl Signatures {
    /// `None` if the list of filler ids is too short or contains an id twice.
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

    /// Number of tokens of a signature.
    pub(crate) fn tokens(&self) -> u32 {
        self.tokens
    }

    /// The token at `position` of an identity's signature, as an index into the list of filler ids.
    pub(crate) fn digit(&self, identity: u64, position: u32) -> usize {
        let spelled = (u128::from(identity) << CHECK_BITS) | u128::from(self.check(identity));
        let below = self.bits * (self.tokens - 1).saturating_sub(position);
        // The masked value is in the range of the cast.
        ((spelled >> below) & self.mask(1)) as usize
    }

    /// The position of the last signature in these tokens, and the identity of its sample.
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
