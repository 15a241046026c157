//! Reads the number of tokens from forwarded answers, and finds errors that the engine has caused. The bytes
//! are searched, not parsed. Only the end of the last piece is kept, for matches that span two pieces.

use memchr::memmem;

/// The key before the number of tokens. It cannot occur inside a text, where quotes are escaped.
const KEY: &[u8] = b"\"completion_tokens\":";
/// The beginning of an event of a stream. A stream has about one event for each token. Its last event has no
/// object and does not match.
const EVENT: &[u8] = b"data: {";
/// Number of bytes that are kept of a piece. The key, a space and a number together are shorter.
const SEAM: usize = 48;

/// Counts the tokens of an answer that the proxy forwards.
#[derive(Debug, Default)]
pub(super) struct TokenCount {
    /// The number that the engine reports.
    reported: Option<u64>,
    events: u64,
    /// The end of the last piece, in which the key may have been cut.
    tail: Vec<u8>,
}

impl TokenCount {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(&bytes[..bytes.len().min(SEAM)]);
        self.reported = last_reported(&self.tail).or(self.reported);
        if bytes.len() > SEAM {
            self.reported = last_reported(bytes).or(self.reported);
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[bytes.len() - SEAM..]);
        } else {
            self.tail.drain(..self.tail.len().saturating_sub(SEAM));
        }
        self.events += memmem::find_iter(bytes, EVENT).count() as u64;
    }

    /// The number that the engine reports, or the number of events if it reports none.
    pub(super) fn total(&self) -> u64 {
        self.reported.unwrap_or(self.events)
    }
}

/// vLLM's message if logits are not finite. The engine has caused this error, although its status is 400.
const NAN_MESSAGE: &[u8] = b"Out of range float values are not JSON compliant";

/// Looks for [`NAN_MESSAGE`] in an answer that the proxy forwards.
#[derive(Debug, Default)]
pub(super) struct NanMessage {
    is_found: bool,
    /// The end of the last piece, in which the message may have been cut.
    tail: Vec<u8>,
}

impl NanMessage {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(&bytes[..bytes.len().min(NAN_MESSAGE.len())]);
        self.is_found = self.is_found || has_nan_message(&self.tail) || has_nan_message(bytes);
        if bytes.len() > NAN_MESSAGE.len() {
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[bytes.len() - NAN_MESSAGE.len()..]);
        } else {
            self.tail.drain(..self.tail.len().saturating_sub(NAN_MESSAGE.len()));
        }
    }

    pub(super) fn is_found(&self) -> bool {
        self.is_found
    }
}

fn has_nan_message(bytes: &[u8]) -> bool {
    memmem::find(bytes, NAN_MESSAGE).is_some()
}

fn last_reported(bytes: &[u8]) -> Option<u64> {
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
    fn the_reported_count_is_found_in_any_division_into_chunks() {
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
    fn a_stream_counts_its_events_until_the_engine_reports_the_tokens() {
        let event = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
        assert_eq!(counted(&[event, event, "data: [DONE]\n\n"]), 2);
        let usage = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":5}}\n\n";
        assert_eq!(counted(&[event, event, usage, "data: [DONE]\n\n"]), 5);
        assert_eq!(counted(&[]), 0);
    }

    #[test]
    fn the_message_of_nan_values_is_found_in_any_division_into_chunks() {
        let answer = "{\"error\":{\"message\":\"Out of range float values are not JSON compliant: nan\",\"code\":400}}";
        for cut in 0..answer.len() {
            let mut words = NanMessage::default();
            words.feed(&answer.as_bytes()[..cut]);
            words.feed(&answer.as_bytes()[cut..]);
            assert!(words.is_found(), "cut at {cut}");
        }
        let mut words = NanMessage::default();
        answer.bytes().for_each(|byte| words.feed(&[byte]));
        assert!(words.is_found());
        let mut others = NanMessage::default();
        others.feed(b"{\"error\":{\"message\":\"temperature must be non-negative\"}}");
        assert!(!others.is_found());
    }
}
