//! `math_dapo`: the scorer of DAPO, which reads the last 300 code points and normalises like Minerva
//! (Lewkowycz et al. 2022, appendix D).

mod marker;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::boxed::last_boxed_content;
use super::rewrites::{Bare, brace_bare, keep_first_formulas, replace, unwrap_longest, unwrap_shortest};
use super::{Score, ScoreInput, Scorer};
use crate::RewardError;
use crate::python_text::{is_digit, strip, tail};

/// The number of code points at the end of a response that are read.
const TAIL: usize = 300;
/// The number of code points at the end in which a box is searched.
const BOX_TAIL: usize = 100;
const INVALID: &str = "[INVALID]";

/// A word and its replacement.
struct Rule {
    from: &'static str,
    to: &'static str,
    /// The [`characters`] of `from`.
    needs: u128,
}

/// The set of a text's characters: the lower seven bits of each byte. A byte outside ASCII shares its entry
/// with an ASCII character. A character that is not in the set is not in the text.
const fn characters(text: &str) -> u128 {
    let bytes = text.as_bytes();
    let mut set = 0;
    let mut at = 0;
    while at < bytes.len() {
        set |= 1 << (bytes[at] & 127);
        at += 1;
    }
    set
}

const fn replaced(from: &'static str, to: &'static str) -> Rule {
    Rule { from, to, needs: characters(from) }
}

const fn removed(word: &'static str) -> Rule {
    replaced(word, "")
}

/// Every rule and every scanner needs one of these characters. A plain number contains none of them.
const REWRITABLE: u128 = characters("abcdefghijklmnopqrstuvwxyz \\${\"");

/// Words and their replacements, in the order in which they are replaced.
const SUBSTITUTIONS: &[Rule] = &[
    replaced("an ", ""),
    replaced("a ", ""),
    replaced(".$", "$"),
    replaced("\\$", ""),
    replaced("\\ ", ""),
    replaced(" ", ""),
    replaced("mbox", "text"),
    replaced(",\\text{and}", ","),
    replaced("\\text{and}", ","),
    replaced("\\text{m}", "\\text{}"),
];

/// Words that are removed, in the order in which they are removed.
const REMOVED: &[Rule] = &[
    removed("square"),
    removed("ways"),
    removed("integers"),
    removed("dollars"),
    removed("mph"),
    removed("inches"),
    removed("hours"),
    removed("km"),
    removed("units"),
    removed("\\ldots"),
    removed("sue"),
    removed("points"),
    removed("feet"),
    removed("minutes"),
    removed("digits"),
    removed("cents"),
    removed("degrees"),
    removed("cm"),
    removed("gm"),
    removed("pounds"),
    removed("meters"),
    removed("meals"),
    removed("edges"),
    removed("students"),
    removed("childrentickets"),
    removed("multiples"),
    removed("\\text{s}"),
    removed("\\text{.}"),
    removed("\\text{\ns}"),
    removed("\\text{}^2"),
    removed("\\text{}^3"),
    removed("\\text{\n}"),
    removed("\\text{}"),
    removed("\\mathrm{th}"),
    removed("^\\circ"),
    removed("^{\\circ}"),
    removed("\\;"),
    removed(",\\!"),
    removed("{,}"),
    removed("\""),
    removed("\\dots"),
];

/// The published versions of the scorer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Variant {
    /// A response without "Answer:" has no answer.
    #[default]
    #[serde(rename = "2025")]
    V2025,
    /// In a response without "Answer:", the last `\boxed{}` in the last 100 code points counts, compared as
    /// text.
    #[serde(rename = "2026")]
    V2026,
}

/// Scores +1 for a right answer and -1 otherwise.
#[derive(Debug, Clone, Copy, Default)]
pub struct MathDapo {
    /// The version of the scorer.
    pub variant: Variant,
    /// Whether only the last `\boxed{}` in the last 100 code points counts, compared as text.
    pub strict_box: bool,
}

/// The reference's normal form of an answer. A plain number without commas is returned without a copy.
pub fn normalize(answer: &str) -> Cow<'_, str> {
    let last = answer.rsplit('=').next().unwrap_or("");
    if characters(last) & REWRITABLE == 0 {
        return finished(last);
    }
    let rewritten = rewritten(last);
    match finished(&rewritten) {
        Cow::Borrowed(whole) if whole.len() == rewritten.len() => Cow::Owned(rewritten),
        part => Cow::Owned(part.into_owned()),
    }
}

fn rewritten(answer: &str) -> String {
    let mut text = answer.to_owned();
    let mut present = characters(&text);
    for rule in SUBSTITUTIONS.iter().chain(REMOVED) {
        if rule.needs & !present == 0 && replace(&mut text, rule.from, rule.to) {
            present = characters(&text);
        }
    }
    keep_first_formulas(&mut text);
    unwrap_shortest(&mut text, "\\text{");
    unwrap_shortest(&mut text, "\\textbf{");
    unwrap_shortest(&mut text, "\\overline{");
    unwrap_longest(&mut text, "\\boxed{");
    brace_bare(&mut text, "frac", Bare::Two);
    brace_bare(&mut text, "sqrt", Bare::One);
    replace(&mut text, "$", "");
    text
}

/// Removes the commas of a text that has only digits and commas. From other texts it removes white space at
/// both ends.
fn finished(text: &str) -> Cow<'_, str> {
    let mut digits = text.chars().filter(|c| *c != ',').peekable();
    if text.contains(',') && digits.peek().is_some() && digits.all(is_digit) {
        return Cow::Owned(text.replace(',', ""));
    }
    Cow::Borrowed(strip(text))
}

/// The text after the last "Answer:", in normal form; [`INVALID`] if there is none.
fn answer_in(end: &str) -> Cow<'_, str> {
    normalize(marker::last_answer(end).unwrap_or(INVALID))
}

fn boxed_in(end: &str) -> Option<&str> {
    last_boxed_content(tail(end, BOX_TAIL))
}

impl MathDapo {
    /// Returns whether the answer is right, and the answer.
    fn judged(&self, end: &str, truth: &str) -> (bool, Option<String>) {
        let as_text = |boxed: &str| (boxed == truth, Some(boxed.to_owned()));
        if self.strict_box {
            return boxed_in(end).map_or((false, None), as_text);
        }
        let pred = answer_in(end);
        // The reference tests for this word and not for a missing answer, so the box also counts if a model
        // answers "[INVALID]". The text of the box is compared as it is, not in normal form.
        if self.variant == Variant::V2026
            && pred == INVALID
            && let Some(boxed) = boxed_in(end)
        {
            return as_text(boxed);
        }
        (pred == normalize(truth), Some(pred.into_owned()))
    }
}

impl Scorer for MathDapo {
    fn name(&self) -> &'static str {
        "math_dapo"
    }

    fn tail_code_points(&self) -> Option<usize> {
        Some(TAIL)
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError> {
        let (right, pred) = self.judged(tail(input.response, TAIL), input.ground_truth);
        Ok(Score { score: if right { 1.0 } else { -1.0 }, ..Score::right_or_wrong(right, pred) })
    }
}

#[cfg(test)]
mod tests;
