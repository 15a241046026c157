//! The strings of a JSON body: their end, and their text.

use memchr::{memchr, memchr2};

use super::lanes::{LANES, load, quote_or_backslash};

/// Number of bytes at the start of a string that are searched without the set-up cost of `memchr`.
const SHORT_STRING_BYTES: usize = 32;

/// Finds the first quote or backslash. Most names and strings are too short for the set-up cost of `memchr`,
/// so the first bytes are searched eight by eight.
#[inline]
pub(super) fn find_quote_or_backslash(rest: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < SHORT_STRING_BYTES
        && let Some(lanes) = load(rest, at)
    {
        let offset = quote_or_backslash(lanes);
        if offset < LANES {
            return Some(at + offset);
        }
        at += LANES;
    }
    memchr2(b'"', b'\\', &rest[at..]).map(|offset| at + offset)
}

/// The text of a raw string; `None` if its escapes, its bytes or its UTF-8 are not valid JSON.
pub(super) fn unescape(raw: &[u8]) -> Option<String> {
    let plain = memchr(b'\\', raw).is_none() && raw.iter().all(|byte| *byte >= 0x20);
    if plain {
        return std::str::from_utf8(raw).ok().map(str::to_owned);
    }
    // Escapes are rare, so the text is quoted again and passed to a full JSON parser.
    let quoted = [b"\"", raw, b"\""].concat();
    serde_json::from_slice(&quoted).ok()
}
