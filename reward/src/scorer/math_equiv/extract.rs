//! Finds the answers in a response and in a ground truth.

use memchr::memmem;

use crate::python_text::is_space;
use crate::scorer::boxed::{balanced_from, last_boxed_content};

/// Maximum number of layers such as `$..$` and `\boxed{..}` that are removed from an answer.
const LAYERS_MAX: usize = 8;

/// The answer of a response, which is the first of these that exists:
///
/// 1. The content of the last `\boxed{..}`, if its brace closes.
/// 2. The text after the last "Answer:", "answer is" or "####": its formula, or without a formula the text up
///    to the end of the sentence or line.
/// 3. The last formula in `$..$`, if all dollar signs are in pairs.
/// 4. The last number on the last line that has any text.
pub(super) fn extract(response: &str) -> Option<&str> {
    last_boxed_content(response)
        .or_else(|| after_marker(response))
        .or_else(|| last_formula(response))
        .or_else(|| last_number(response))
}

/// The answer that a ground truth states: the text after the last "####", or the content of the last box, or
/// the whole text.
pub(super) fn truth_of(ground_truth: &str) -> &str {
    match ground_truth.rsplit_once("####") {
        Some((_, answer)) => answer,
        None => last_boxed_content(ground_truth).unwrap_or(ground_truth),
    }
}

/// An answer without its wrapping: white space, dollar signs, other delimiters of formulas, boxes, bold type
/// and the full stop.
pub(super) fn unwrapped(answer: &str) -> &str {
    let mut inside = answer;
    for _ in 0..LAYERS_MAX {
        let before = inside.len();
        inside = inside.trim_matches(is_space);
        inside = inside.strip_suffix('.').unwrap_or(inside);
        inside = inside.strip_prefix("**").and_then(|rest| rest.strip_suffix("**")).unwrap_or(inside);
        for (open, close) in [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")] {
            let fenced = inside.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
            inside = fenced.filter(|formula| !formula.contains(close)).unwrap_or(inside);
        }
        if inside.starts_with("\\boxed{") && balanced_from(inside, 0) == Some(inside) {
            inside = &inside["\\boxed{".len()..inside.len() - 1];
        }
        if inside.len() == before {
            break;
        }
    }
    inside
}

/// The answer behind the last marker, on the line of the marker or on the next line with text.
fn after_marker(response: &str) -> Option<&str> {
    let behind = &response[last_marker(response)?..];
    let line = behind.trim_start_matches(is_space).lines().next()?;
    let answer = line.trim_start_matches("**").trim_start();
    let formula =
        answer.split('$').filter(|part| !part.is_empty()).nth(usize::from(!answer.starts_with('$')));
    if answer.matches('$').count() >= 2 && formula.is_some() {
        return formula;
    }
    let sentence = answer.split(". ").next().unwrap_or(answer);
    let plain = sentence.trim_matches(is_space).trim_end_matches("**");
    (!plain.is_empty()).then_some(plain)
}

/// The byte offset of the text behind the last "Answer:", "answer is" or "####".
fn last_marker(response: &str) -> Option<usize> {
    let lower = response.to_ascii_lowercase();
    let hashes = memmem::rfind(lower.as_bytes(), b"####").map(|at| at + 4);
    let mut last = hashes.unwrap_or(0);
    let mut is_found = hashes.is_some();
    // Each occurrence reads only the white space behind it, so all of them together read the text once.
    for at in memmem::find_iter(lower.as_bytes(), "answer") {
        let behind = lower[at + "answer".len()..].trim_start_matches(|c: char| is_space(c) || c == '*');
        let start = match behind.strip_prefix(':') {
            Some(rest) => Some(rest),
            None => behind
                .strip_prefix("is")
                .filter(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
                .map(|rest| rest.trim_start().strip_prefix(':').unwrap_or(rest)),
        };
        if let Some(rest) = start {
            last = last.max(lower.len() - rest.len());
            is_found = true;
        }
    }
    is_found.then_some(last)
}

/// The last formula between dollar signs; `None` for an odd number of dollar signs, because at least one of
/// them is then a currency sign.
fn last_formula(response: &str) -> Option<&str> {
    let mut fences: Vec<(usize, usize)> = Vec::new();
    for at in memchr::memchr_iter(b'$', response.as_bytes()) {
        let is_escaped = at > 0 && response.as_bytes()[at - 1] == b'\\';
        match fences.last_mut() {
            _ if is_escaped => {}
            Some((start, end)) if *end == at && at - *start == 1 => *end = at + 1,
            _ => fences.push((at, at + 1)),
        }
    }
    let ([.., (_, start), (end, _)], 0) = (fences.as_slice(), fences.len() % 2) else { return None };
    Some(&response[*start..*end])
}

/// The last number on the last line with text, with its sign, separators, decimals, fraction and percent
/// sign.
fn last_number(response: &str) -> Option<&str> {
    let line = response.trim_end_matches(is_space).lines().next_back()?;
    let bytes = line.as_bytes();
    let last_digit = bytes.iter().rposition(u8::is_ascii_digit)?;
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let is_inside = |at: usize| match bytes[at] {
        b',' | b'/' => at > 0 && is_digit(at - 1) && is_digit(at + 1),
        b'.' => is_digit(at + 1),
        _ => is_digit(at),
    };
    let mut start = last_digit;
    while start > 0 && is_inside(start - 1) {
        start -= 1;
    }
    // The dash of `3-5` is not a sign.
    if start > 0 && bytes[start - 1] == b'-' && !(start > 1 && is_digit(start - 2)) {
        start -= 1;
    }
    let behind = &line[last_digit + 1..];
    let percent = ["\\%", "%"].into_iter().find(|sign| behind.starts_with(sign)).map_or(0, str::len);
    Some(&line[start..=last_digit + percent])
}
