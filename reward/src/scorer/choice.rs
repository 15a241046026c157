//! `choice`: compares the letter of a multiple-choice answer.
//!
//! Three forms count: a letter in a box (`\boxed{C}`, `\boxed{\text{C}}`, `\boxed{(C)}`), a letter after
//! "answer:" or "answer is" ("Answer: C", "the answer is (C)", "**Answer:** option C"), and a letter alone on
//! the last line that is not empty ("C", "(C)", "**C**."). The last letter in any of these forms counts,
//! because a model that corrects itself does so later in the response. Letters are A to J in either case;
//! other contents such as `\boxed{42}` are skipped.
//!
//! A lower-case letter before a word ("the answer is a prime") is not a choice but an article. An I before a
//! word ("my answer is: I chose B") is a pronoun. A letter with a bracket or another mark after it ("the
//! answer is a) a prime"), or with "option" or "choice" before it, is a choice.
//!
//! # Deliberately absent
//! The text of an option is not accepted in place of its letter, because the row does not map texts to
//! letters.

use std::sync::LazyLock;

use regex::Regex;

use super::{Score, ScoreInput, Scorer};
use crate::RewardError;
use crate::python_text::{is_space, strip};

/// Scores 1 when the last letter in the response is that of the ground truth, and otherwise 0. The ground
/// truth must be a letter, with or without brackets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Choice;

/// The upper-case letter that is also a word.
const PRONOUN: char = 'I';

/// Characters that may surround a letter.
const WRAPPING: &[char] = &['(', ')', '[', ']', '{', '}', '*', '_', '$', '"', '\'', '.', ',', ':'];

// Every repetition is bounded, so each attempt at a match reads little, and all attempts together take linear
// time.
#[expect(clippy::expect_used, reason = "a constant pattern compiles, and the tests run it")]
static BOXED: LazyLock<Regex> = LazyLock::new(|| {
    let pattern =
        r"(?i)\\boxed\{\s{0,4}(?:\\(?:text|textbf|mathrm|mathbf)\{\s{0,4})?\(?([A-J])\)?\.?\s{0,4}\}";
    Regex::new(pattern).expect("a constant pattern compiles")
});

#[expect(clippy::expect_used, reason = "a constant pattern compiles, and the tests run it")]
static STATED: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = concat!(
        r"(?i)answer[*_]{0,2}(?:[ \t]{0,4}:|[ \t]{1,4}is[ \t]{0,4}:?)[*_\s]{0,6}",
        r#"((?:option|choice)[ \t]{1,4})?[(\[{$*"']{0,4}([A-J])(?-u:\b)"#,
    );
    Regex::new(pattern).expect("a constant pattern compiles")
});

/// The letter in upper case, if `text` is one letter from A to J.
fn letter_of(text: &str) -> Option<char> {
    let mut chars = text.chars();
    let letter = chars.next()?.to_ascii_uppercase();
    (chars.next().is_none() && letter.is_ascii_uppercase() && letter <= 'J').then_some(letter)
}

fn unwrapped(text: &str) -> &str {
    text.trim_matches(|c| is_space(c) || WRAPPING.contains(&c))
}

fn last_boxed(response: &str) -> Option<(usize, char)> {
    let captures = BOXED.captures_iter(response).last()?;
    let letter = captures.get(1)?;
    Some((letter.start(), letter_of(letter.as_str())?))
}

/// Whether the sentence continues in `rest`, which makes the letter before `rest` an article or a pronoun.
fn goes_on(rest: &str) -> bool {
    rest.trim_start_matches([' ', '\t']).starts_with(char::is_alphanumeric)
}

fn last_stated(response: &str) -> Option<(usize, char)> {
    let stated = STATED.captures_iter(response).filter_map(|captures| {
        let letter = captures.get(2)?;
        let rest = &response[letter.end()..];
        let may_be_word = captures.get(1).is_none()
            && letter.as_str().starts_with(|c: char| c.is_ascii_lowercase() || c == PRONOUN);
        // The word boundary of the pattern is ASCII only; this check also finds words such as "AÉ".
        let is_word = rest.starts_with(char::is_alphanumeric);
        let is_article = may_be_word && goes_on(rest);
        (!is_word && !is_article).then(|| letter_of(letter.as_str()).map(|found| (letter.start(), found)))?
    });
    stated.last()
}

/// The letter that a response chooses.
fn chosen(response: &str) -> Option<char> {
    let last_line = strip(response).rsplit('\n').next().unwrap_or("");
    if let Some(alone) = letter_of(unwrapped(last_line)) {
        return Some(alone);
    }
    let last = last_boxed(response).into_iter().chain(last_stated(response)).max();
    last.map(|(_, letter)| letter)
}

impl Scorer for Choice {
    fn name(&self) -> &'static str {
        "choice"
    }

    fn tail_code_points(&self) -> Option<usize> {
        None
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError> {
        let truth = letter_of(unwrapped(input.ground_truth)).ok_or_else(|| {
            RewardError::invalid("ground_truth", input.ground_truth, "expected one letter, A to J")
        })?;
        let pred = chosen(input.response);
        Ok(Score::right_or_wrong(pred == Some(truth), pred.map(String::from)))
    }
}

#[cfg(test)]
mod tests;
