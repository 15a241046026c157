//! What is read of answers from the bytes that pass: how many tokens they have, and whether an error is the engine's own.
//! Nothing is parsed, and nothing is kept but a seam.

use memchr::memmem;

/// What engines write before the number. Inside a text the quotes would be escaped, so it stands nowhere else.
const KEY: &[u8] = b"\"completion_tokens\":";
/// A stream has an event for every token or so; the one that ends it holds no object.
const EVENT: &[u8] = b"data: {";
/// More than the key, a space and a number take.
const SEAM: usize = 48;

/// Counts as an answer goes by.
#[derive(Debug, Default)]
pub(super) struct TokenCount {
    /// As the engine says.
    said: Option<u64>,
    events: u64,
    /// The end of what went by, where the key may have been cut.
    tail: Vec<u8>,
}

impl TokenCount {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(&bytes[..bytes.len().min(SEAM)]);
        self.said = last_said(&self.tail).or(self.said);
        if bytes.len() > SEAM {
            self.said = last_said(bytes).or(self.said);
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[bytes.len() - SEAM..]);
        } else {
            self.tail.drain(..self.tail.len().saturating_sub(SEAM));
        }
        self.events += memmem::find_iter(bytes, EVENT).count() as u64;
    }

    /// What the engine said, else how many events there were.
    pub(super) fn total(&self) -> u64 {
        self.said.unwrap_or(self.events)
    }
}

/// vLLM's words where logits are not finite: a 400 for which the request is not to blame.
const NAN_WORDS: &[u8] = b"Out of range float values are not JSON compliant";

/// Looks for [`NAN_WORDS`] as an answer goes by.
#[derive(Debug, Default)]
pub(super) struct NanWords {
    is_said: bool,
    /// The end of what went by, where the words may have been cut.
    tail: Vec<u8>,
}

impl NanWords {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(&bytes[..bytes.len().min(NAN_WORDS.len())]);
        self.is_said = self.is_said || has_nan_words(&self.tail) || has_nan_words(bytes);
        if bytes.len() > NAN_WORDS.len() {
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[bytes.len() - NAN_WORDS.len()..]);
        } else {
            self.tail.drain(..self.tail.len().saturating_sub(NAN_WORDS.len()));
        }
    }

    pub(super) fn is_said(&self) -> bool {
        self.is_said
    }
}

fn has_nan_words(bytes: &[u8]) -> bool {
    memmem::find(bytes, NAN_WORDS).is_some()
}

fn last_said(bytes: &[u8]) -> Option<u64> {
    let at = memmem::find_iter(bytes, KEY).last()? + KEY.len();
    let digits: Vec<u8> = bytes[at..]
        .iter()
        .copied()
        .skip_while(|byte| *byte == b' ')
        .take_while(u8::is_ascii_digit)
        .take(SEAM / 3)
        .collect();
    std::str::from_utf8(&digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(pieces: &[&str]) -> u64 {
        let mut count = TokenCount::default();
        pieces.iter().for_each(|piece| count.feed(piece.as_bytes()));
        count.total()
    }

    #[test]
    fn the_engines_word_is_found_however_it_is_cut() {
        let answer = r#"{"choices":[{"text":"\"completion_tokens\": 7"}],"usage":{"prompt_tokens":8,"completion_tokens": 1234,"x":1}}"#;
        assert_eq!(counted(&[answer]), 1234);
        for cut in 0..answer.len() {
            let (left, right) = answer.split_at(cut);
            assert_eq!(counted(&[left, right]), 1234, "cut at {cut}");
        }
        let bytes: Vec<&str> = answer.split_inclusive(|_: char| true).collect();
        assert_eq!(counted(&bytes), 1234);
    }

    #[test]
    fn a_stream_counts_its_events_until_the_engine_says_how_many_there_were() {
        let event = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
        assert_eq!(counted(&[event, event, "data: [DONE]\n\n"]), 2);
        let usage = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":5}}\n\n";
        assert_eq!(counted(&[event, event, usage, "data: [DONE]\n\n"]), 5);
        assert_eq!(counted(&[]), 0);
    }

    #[test]
    fn words_of_numbers_that_are_none_are_found_however_they_are_cut() {
        let answer = "{\"error\":{\"message\":\"Out of range float values are not JSON compliant: nan\",\"code\":400}}";
        for cut in 0..answer.len() {
            let mut words = NanWords::default();
            words.feed(&answer.as_bytes()[..cut]);
            words.feed(&answer.as_bytes()[cut..]);
            assert!(words.is_said(), "cut at {cut}");
        }
        let mut words = NanWords::default();
        answer.bytes().for_each(|byte| words.feed(&[byte]));
        assert!(words.is_said());
        let mut others = NanWords::default();
        others.feed(b"{\"error\":{\"message\":\"temperature must be non-negative\"}}");
        assert!(!others.is_said());
    }
}
