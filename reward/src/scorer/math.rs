//! `math`: the scorer of the MATH data set (Hendrycks et al. 2021), which compares normal forms of LaTeX.

use super::boxed::balanced_from;
use super::rewrites::replace;
use super::{Score, ScoreInput, Scorer};
use crate::RewardError;

/// Scores 1 when the last `\boxed{}` equals the ground truth in normal form, and otherwise 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct Math;

/// The reference would raise an exception here; both sides are then compared as they are.
struct Exception;

/// The content of the last box. A `\boxed ` with a space after it takes precedence and ends at a dollar sign.
fn extract(response: &str) -> Option<&str> {
    if let Some((_, rest)) = response.rsplit_once("\\boxed ") {
        return Some(rest.split('$').next().unwrap_or(rest));
    }
    let whole = balanced_from(response, response.rfind("\\boxed")?)?;
    whole.strip_prefix("\\boxed{")?.strip_suffix('}')
}

fn first_char(text: &str) -> Result<(char, &str), Exception> {
    let first = text.chars().next().ok_or(Exception)?;
    Ok((first, &text[first.len_utf8()..]))
}

/// Rewrites `\frac12` as `\frac{1}{2}`.
fn brace_fractions(text: &str) -> Result<String, Exception> {
    let mut parts = text.split("\\frac");
    let mut result = parts.next().unwrap_or("").to_owned();
    for part in parts {
        result.push_str("\\frac");
        let (numerator, rest) = first_char(part)?;
        if numerator == '{' {
            result.push_str(part);
            continue;
        }
        // If only one character follows, the reference returns the whole text unchanged.
        let Ok((denominator, rest)) = first_char(rest) else { return Ok(text.to_owned()) };
        result.extend(['{', numerator, '}']);
        if denominator == '{' {
            result.push('{');
        } else {
            result.extend(['{', denominator, '}']);
        }
        result.push_str(rest);
    }
    Ok(result)
}

/// Rewrites `\sqrt2` as `\sqrt{2}`.
fn brace_roots(text: &str) -> Result<String, Exception> {
    let mut parts = text.split("\\sqrt");
    let mut result = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let (radicand, rest) = first_char(part)?;
        result.push_str("\\sqrt");
        if radicand == '{' {
            result.push_str(part);
        } else {
            result.extend(['{', radicand, '}']);
            result.push_str(rest);
        }
    }
    Ok(result)
}

/// Maximum number of digits that Python's `int` reads by default; longer texts raise an exception.
const INTEGER_DIGITS_MAX: usize = 4300;

/// Whether the text is an integer as Python prints it.
fn is_canonical_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.len() > INTEGER_DIGITS_MAX {
        return false;
    }
    match digits.as_bytes() {
        [b'0'] => text == "0",
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// Rewrites `1/2` as `\frac{1}{2}`, for integers.
fn slash_to_fraction(text: String) -> String {
    match text.split_once('/') {
        Some((a, b)) if is_canonical_integer(a) && is_canonical_integer(b) => format!("\\frac{{{a}}}{{{b}}}"),
        _ => text,
    }
}

fn normalize(answer: &str) -> Result<String, Exception> {
    let mut text = answer.to_owned();
    for (from, to) in [
        ("\n", ""),
        ("\\!", ""),
        ("\\\\", "\\"),
        ("tfrac", "frac"),
        ("dfrac", "frac"),
        ("\\left", ""),
        ("\\right", ""),
        ("^{\\circ}", ""),
        ("^\\circ", ""),
        ("\\$", ""),
    ] {
        replace(&mut text, from, to);
    }
    if let Some((value, unit)) = text.split_once("\\text{ ") {
        if unit.contains("\\text{ ") {
            return Err(Exception);
        }
        text = value.to_owned();
    }
    for (from, to) in [("\\\\%", ""), ("\\%", ""), (" .", " 0."), ("{.", "{0.")] {
        replace(&mut text, from, to);
    }
    if text.is_empty() {
        return Ok(text);
    }
    if text.starts_with('.') {
        text.insert(0, '0');
    }
    if let Some((left, right)) = text.split_once('=')
        && !right.contains('=')
        && left.chars().count() <= 2
    {
        text = right.to_owned();
    }
    text = brace_roots(&text)?;
    text.retain(|c| c != ' ');
    text = brace_fractions(&text)?;
    if text == "0.5" {
        text = "\\frac{1}{2}".to_owned();
    }
    Ok(slash_to_fraction(text))
}

fn equivalent(a: &str, b: &str) -> bool {
    match (normalize(a), normalize(b)) {
        (Ok(normal_a), Ok(normal_b)) => normal_a == normal_b,
        _ => a == b,
    }
}

impl Scorer for Math {
    fn name(&self) -> &'static str {
        "math"
    }

    fn tail_code_points(&self) -> Option<usize> {
        None
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError> {
        let pred = extract(input.response);
        let right = pred.is_some_and(|pred| equivalent(pred, input.ground_truth));
        Ok(Score::right_or_wrong(right, pred.map(str::to_owned)))
    }
}
