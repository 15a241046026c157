//! Finds the text after the last "Answer:", with a scanner that is equivalent to
//! `re.findall(r"(?i)Answer\s*:\s*([^\n]+)", text)[-1]`.
//!
//! A text has few colons. The scanner goes from colon to colon, and reads the text once. A property test
//! compares it with the expression.

use memchr::memchr_iter;

use crate::python_text::is_space;

/// The long s, which equals "s" when case is ignored, in Python as in Unicode.
const LONG_S: &str = "\u{17f}";

/// The text after the last "Answer:", up to the end of its line.
pub(super) fn last_answer(text: &str) -> Option<&str> {
    let mut last = None;
    // Matches do not overlap: the next one starts no earlier than the last one ended.
    let mut resume = 0;
    for colon in memchr_iter(b':', text.as_bytes()) {
        if colon < resume || !ends_in_answer(&text[resume..colon]) {
            continue;
        }
        let Some(answer) = line_in(&text[colon + 1..]) else { continue };
        resume = colon + 1 + answer.end;
        last = Some(&text[colon + 1 + answer.start..resume]);
    }
    last
}

fn ends_in_answer(before: &str) -> bool {
    let word = before.trim_end_matches(is_space).as_bytes();
    let Some((front, end)) = word.split_last_chunk::<3>() else { return false };
    let front = [LONG_S, "s", "S"].iter().find_map(|s| front.strip_suffix(s.as_bytes()));
    let start = front.and_then(|front| front.last_chunk::<2>());
    end.eq_ignore_ascii_case(b"wer") && start.is_some_and(|start| start.eq_ignore_ascii_case(b"an"))
}

/// The range of the first line with text. If only white space follows, the expression backtracks to the last
/// character that is not a line break.
fn line_in(behind: &str) -> Option<std::ops::Range<usize>> {
    let line = behind.trim_start_matches(is_space);
    if line.is_empty() {
        let (start, space) = behind.char_indices().rev().find(|(_, c)| *c != '\n')?;
        return Some(start..start + space.len_utf8());
    }
    let start = behind.len() - line.len();
    let length = memchr::memchr(b'\n', line.as_bytes()).unwrap_or(line.len());
    Some(start..start + length)
}

#[cfg(test)]
mod tests;
