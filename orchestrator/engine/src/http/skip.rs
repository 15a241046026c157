//! Finds the end of a run of skipped elements of an array.
//!
//! More than half of an answer is skipped: the text of each token, its offset, and the log-probabilities of
//! the alternatives. The scanner visits each quote, colon and comma of these values. [`run`] accepts only the
//! forms that engines write, and finds the end of the values with far fewer steps. It leaves all other forms
//! to the scanner.
//!
//! # Invariants
//! - The scanner accepts every run that [`run`] accepts, and is in the same state after it.

use super::lanes::{LANES, leading_digits, load, quote_or_backslash};

/// The number of bytes that the elements at the beginning of `bytes` take, each with the comma that follows
/// it. An element is a string, a number, `null`, or an object of these.
pub(super) fn run(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(end) = element(bytes, at)
        && bytes.get(end) == Some(&b',')
    {
        at = end + 1;
    }
    at
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
