//! Finds the end of a run of skipped elements of an array, and of a skipped string.
//!
//! More than half of an answer is skipped: the text of each token, its offset, and the log-probabilities of
//! the alternatives. The scanner visits each quote, colon and comma of these values. [`run`] accepts only the
//! forms that engines write, and finds the end of the values with far fewer steps. It leaves all other forms
//! to the scanner.
//!
//! The three forms that fill whole arrays of an answer are checked [block](Block) by block. In these forms, the
//! bytes that may follow a byte depend on this byte alone, so masks of neighbours check them. Other elements are
//! read one by one.
//!
//! # Invariants
//! - The scanner accepts every run that [`run`] accepts, and is in the same state after it.

use fearless_simd::{Level, Simd, dispatch};

use super::blocks::{BLOCK_BYTES, Block, Follow, Strings, below_first};
use super::lanes::{LANES, leading_digits, load, quote_or_backslash};

/// After blocks that have another form, this number of elements is read one by one before blocks are tried again.
const SINGLE_ELEMENTS: usize = 16;

/// Number of blocks of a group, whose masks are calculated together.
const GROUP: usize = 8;

/// The masks of the last block before a group, and of the group's blocks.
type Masks = [u64; GROUP + 1];

/// The number of bytes that the elements at the beginning of `bytes` take, each with the comma that follows
/// it. An element is a string, a number, `null`, or an object of these.
pub(super) fn run(bytes: &[u8]) -> usize {
    let level = Level::new();
    let mut at = 0;
    loop {
        at = dispatch!(level, simd => elements_in_blocks(simd, bytes, at));
        for _ in 0..SINGLE_ELEMENTS {
            let Some(end) = element(bytes, at) else { return at };
            if bytes.get(end) != Some(&b',') {
                return at;
            }
            at = end + 1;
        }
    }
}

/// Passes over a string whose rest begins at `start`. Returns the index of its closing quote, or an index before
/// it near the end of `bytes`. The byte at that index is not escaped.
pub(super) fn string_rest(bytes: &[u8], start: usize) -> usize {
    dispatch!(Level::new(), simd => string_rest_in_blocks(simd, bytes, start))
}

#[inline(always)]
fn string_rest_in_blocks<S: Simd>(simd: S, bytes: &[u8], start: usize) -> usize {
    let mut strings = Strings::inside();
    let mut at = start;
    while let Some(block) = Block::load(simd, bytes, at) {
        let closing = strings.places(block).closing;
        if closing != 0 {
            return at + closing.trailing_zeros() as usize;
        }
        at += BLOCK_BYTES;
    }
    // The caller begins with a byte that is not escaped.
    at + usize::from(strings.is_escaped())
}

/// Skips elements of the form of the first one. Returns the index of the first element that has another form, or is
/// near the end of `bytes`.
#[inline(always)]
fn elements_in_blocks<S: Simd>(simd: S, bytes: &[u8], start: usize) -> usize {
    match bytes.get(start) {
        Some(b'0'..=b'9') => blocks(simd, bytes, start, integers()),
        Some(b'"') => blocks(simd, bytes, start, texts()),
        Some(b'{') => objects_of_a_number(simd, bytes, start),
        _ => start,
    }
}

/// Skips elements as far as a form holds. `form` returns the commas that follow elements, and the bytes that break
/// the form.
#[inline(always)]
fn blocks<S: Simd>(
    simd: S,
    bytes: &[u8],
    start: usize,
    mut form: impl FnMut(Block<S>) -> (u64, u64),
) -> usize {
    let (mut at, mut end) = (start, start);
    while let Some(block) = Block::load(simd, bytes, at) {
        let (commas, broken) = form(block);
        let sound = commas & below_first(broken);
        if sound != 0 {
            end = at + BLOCK_BYTES - sound.leading_zeros() as usize;
        }
        if broken != 0 {
            break;
        }
        at += BLOCK_BYTES;
    }
    end
}

/// Integers without a sign.
#[inline(always)]
fn integers<S: Simd>() -> impl FnMut(Block<S>) -> (u64, u64) {
    let mut after_comma = Follow::new(true);
    #[inline(always)]
    move |block| {
        let digits = block.digits();
        let commas = block.equal_to(b',');
        (commas, !(digits | commas) | (after_comma.moved(commas) & !digits))
    }
}

/// Strings.
#[inline(always)]
fn texts<S: Simd>() -> impl FnMut(Block<S>) -> (u64, u64) {
    let mut strings = Strings::default();
    let (mut after_string, mut after_comma) = (Follow::new(false), Follow::new(true));
    #[inline(always)]
    move |block| {
        let places = strings.places(block);
        let commas = block.equal_to(b',') & places.between;
        let broken =
            (after_string.moved(places.closing) & !commas) | (after_comma.moved(commas) & !places.opening);
        (commas, broken)
    }
}

/// Skips objects with one member, whose value is a number. They are the longest skipped array, so a group of blocks is
/// checked at a time: arithmetic on the masks of all its blocks takes a fraction of the instructions.
#[inline(always)]
fn objects_of_a_number<S: Simd>(simd: S, bytes: &[u8], start: usize) -> usize {
    let (mut at, mut end) = (start, start);
    let mut strings = Strings::default();
    let (mut names, mut numbers, mut ends) = ([0; GROUP + 1], [0; GROUP + 1], [0; GROUP + 1]);
    // Between two members there are always the same bytes. The first block begins in the middle of them.
    ends[0] = 1 << (BLOCK_BYTES - 2);
    while let Some(group) = bytes.get(at..).and_then(|rest| rest.first_chunk::<{ GROUP * BLOCK_BYTES }>()) {
        let mut masks = [[0; GROUP]; 8];
        let [quotes, number_starts, number_bytes, braces, colons, beginnings, openings, commas] = &mut masks;
        for index in 0..GROUP {
            let Some(block) = Block::load(simd, group, index * BLOCK_BYTES) else { return end };
            quotes[index] = strings.quotes(block);
            number_starts[index] = block.digits() | block.equal_to(b'-');
            number_bytes[index] = number_starts[index] | block.equal_to(b'.') | block.equal_to(b'e');
            braces[index] = block.equal_to(b'}');
            colons[index] = block.equal_to(b':');
            beginnings[index] = block.equal_to(b'{');
            commas[index] = block.equal_to(b',');
        }
        let insides = strings.insides(*quotes);
        for index in 0..GROUP {
            openings[index] = quotes[index] & insides[index];
            names[index + 1] = quotes[index] & !insides[index];
            numbers[index + 1] = number_bytes[index] & !insides[index];
            ends[index + 1] = braces[index] & !insides[index];
        }
        let mut broken = [0; GROUP];
        for index in 0..GROUP {
            let after = |masks: &Masks, distance: usize| {
                (masks[index + 1] << distance) | (masks[index] >> (BLOCK_BYTES - distance))
            };
            broken[index] = (after(&names, 1) & !colons[index])
                | (after(&names, 2) & !number_starts[index])
                | (after(&numbers, 1) & !(number_bytes[index] | braces[index]))
                | (after(&ends, 1) & !commas[index])
                | (after(&ends, 2) & !beginnings[index])
                | (after(&ends, 3) & !openings[index]);
            commas[index] &= after(&ends, 1);
        }
        if let Some(last) = last_sound(commas, &broken) {
            end = at + last + 1;
        }
        if broken != [0; GROUP] {
            return end;
        }
        at += GROUP * BLOCK_BYTES;
        (names[0], numbers[0], ends[0]) = (names[GROUP], numbers[GROUP], ends[GROUP]);
    }
    end
}

/// The place of the last comma before the first broken byte.
#[inline(always)]
fn last_sound(commas: &[u64; GROUP], broken: &[u64; GROUP]) -> Option<usize> {
    let first_broken = broken.iter().position(|mask| *mask != 0).unwrap_or(GROUP - 1);
    let sound = commas[first_broken] & below_first(broken[first_broken]);
    let last = |index: usize, mask: u64| (index + 1) * BLOCK_BYTES - 1 - mask.leading_zeros() as usize;
    if sound != 0 {
        return Some(last(first_broken, sound));
    }
    let index = commas[..first_broken].iter().rposition(|mask| *mask != 0)?;
    Some(last(index, commas[index]))
}

/// The end of the flat object that begins at `at`; `None` if no flat object begins there, or if the object is
/// not complete.
pub(super) fn flat_object(bytes: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    if bytes.get(at) == Some(&b'}') {
        return Some(at + 1);
    }
    loop {
        if bytes.get(at) != Some(&b'"') {
            return None;
        }
        at = string(bytes, at)?;
        if bytes.get(at) != Some(&b':') {
            return None;
        }
        at = scalar(bytes, at + 1)?;
        match bytes.get(at) {
            Some(b',') => at += 1,
            Some(b'}') => return Some(at + 1),
            _ => return None,
        }
    }
}

#[inline]
fn element(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at) {
        Some(b'{') => flat_object(bytes, at),
        _ => scalar(bytes, at),
    }
}

#[inline]
fn scalar(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'"' => string(bytes, at),
        b'-' | b'0'..=b'9' => number(bytes, at),
        _ => bytes.get(at..)?.starts_with(b"null").then_some(at + 4),
    }
}

#[inline]
fn string(bytes: &[u8], quote_at: usize) -> Option<usize> {
    let mut at = quote_at + 1;
    loop {
        let offset = quote_or_backslash(load(bytes, at)?);
        if offset == LANES {
            at += LANES;
            continue;
        }
        at += offset;
        if bytes.get(at) == Some(&b'"') {
            return Some(at + 1);
        }
        // The backslash and the byte that it escapes.
        at += 2;
    }
}

#[inline]
fn number(bytes: &[u8], at: usize) -> Option<usize> {
    // Most log-probabilities have a minus sign and one digit before the point. The fraction is then at a
    // constant offset, so the processor can read on before it has examined the digits.
    let mut at = if let Some([b'-', b'0'..=b'9', b'.', ..]) = bytes.get(at..) {
        digits(bytes, at + 3)?
    } else {
        let whole_end = digits(bytes, at + usize::from(bytes.get(at) == Some(&b'-')))?;
        let has_fraction = bytes.get(whole_end) == Some(&b'.');
        if has_fraction { digits(bytes, whole_end + 1)? } else { whole_end }
    };
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        at += 1;
        at = digits(bytes, at + usize::from(matches!(bytes.get(at), Some(b'-' | b'+'))))?;
    }
    Some(at)
}

/// The end of the digits from `start` on; `None` if there is no digit, or if too few bytes are left to find
/// the end.
#[inline]
fn digits(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        let count = leading_digits(load(bytes, at)?);
        if count == LANES {
            at += LANES;
            continue;
        }
        at += count;
        return (at > start).then_some(at);
    }
}

#[cfg(test)]
mod tests;
