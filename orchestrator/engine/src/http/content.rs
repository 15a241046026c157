//! A token of the generate endpoint's `logprobs.content`, in the form in which vLLM writes it.
//!
//! A token takes 140 bytes. Only its id and the 20 bytes of its log-probability are read. [`token`]
//! expects the names that vLLM writes, in vLLM's order. If no alternatives were asked for, the first
//! alternative repeats the sampled token byte by byte. One comparison of memory then skips this alternative.
//! The scanner reads tokens of any other form.
//!
//! # Invariants
//! - For every token that [`token`] reads, the scanner reads the same value and is in the same state after
//!   the token.

use fearless_simd::Simd;

use super::decimals::leading_f32;
use super::lanes::{LANES, leading_digits, load};
use super::number::leading_u32;
use super::skip::flat_object;

const TOKEN_ID: &[u8; 12] = b"{\"token_id\":";
const LOGPROB: &[u8; 11] = b",\"logprob\":";
const RANK: &[u8; 8] = b",\"rank\":";
const ALTERNATIVES: &[u8; 17] = b",\"top_logprobs\":[";
const END: &[u8; 3] = b"]},";

/// The id and the log-probability of the token that begins at `start`, and the end of the comma that follows the token;
/// `None` if the token has another form or is not complete.
#[inline(always)]
pub(super) fn token<S: Simd>(simd: S, bytes: &[u8], start: usize) -> Option<((u32, f32), usize)> {
    let (id, at) = leading_u32(bytes, after(bytes, start, TOKEN_ID)?)?;
    let (logprob, at) = leading_f32(simd, bytes, after(bytes, at, LOGPROB)?)?;
    let members_end = integer(bytes, after(bytes, at, RANK)?)?;
    let mut at = after(bytes, members_end, ALTERNATIVES)?;
    if bytes.get(at) == Some(&b'{') {
        // The compared bytes are the members between the opening and the closing brace.
        let members = bytes.get(start + 1..members_end)?;
        let repetition = at + 1..at + 1 + members.len();
        at = if bytes.get(repetition.clone()) == Some(members) && bytes.get(repetition.end) == Some(&b'}') {
            repetition.end + 1
        } else {
            flat_object(bytes, at)?
        };
        while bytes.get(at) == Some(&b',') {
            if bytes.get(at + 1) != Some(&b'{') {
                return None;
            }
            at = flat_object(bytes, at + 1)?;
        }
    }
    Some(((id, logprob), after(bytes, at, END)?))
}

/// The end of `expected`, which has to begin at `at`.
#[inline(always)]
fn after<const N: usize>(bytes: &[u8], at: usize, expected: &[u8; N]) -> Option<usize> {
    (bytes.get(at..)?.first_chunk::<N>()? == expected).then_some(at + N)
}

/// The end of the integer of one to seven digits that begins at `at`.
#[inline(always)]
fn integer(bytes: &[u8], at: usize) -> Option<usize> {
    let digits = leading_digits(load(bytes, at)?);
    (digits > 0 && digits < LANES).then_some(at + digits)
}

#[cfg(test)]
mod tests;
