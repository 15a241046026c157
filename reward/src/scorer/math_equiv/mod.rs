//! `math_equiv`: compares answers in LaTeX or plain text by their values. Every verdict has a [`Reason`],
//! which becomes the score's `reason`.
//!
//! Both answers are parsed into a common form. Rational values are compared exactly, and other values by
//! seeded numeric evaluation. An answer that cannot be parsed is compared as text. Nothing is rounded: a
//! decimal equals a fraction only if it is that fraction.
//!
//! | kind | equal | different |
//! |---|---|---|
//! | numbers | `\frac12`, `1/2`, `0.5`, `.50`, `5e-1`, `5\times10^{-1}`; `1\frac12` and `3/2`; `0.\overline{3}` and `1/3` | `1/3` and `0.33` |
//! | thousands | `1,000`, `1{,}000`, `1\,000`, `1 000`, `1000`; inside brackets and sets, a comma separates elements | `(1,000)` and `1000`; `3{,}14` and `314` |
//! | percent | `50\%`, `50 percent`, `0.5`; also `50` | `50\%` and `0.5\%`; `50\%` and `5` |
//! | units | `5\text{ cm}`, `5 cm`, `5`; `\$5`, `5 dollars`, `5`; `60 mph`, `60`; `30^\circ` and `30`; convertible units are converted exactly: `100 cm` and `1\text{ m}`, `50` cents and `\$0.50` | known units with different values: `5 cm` and `5\text{ m}`; without `\text{}` or a slash, a single letter is a variable: `5 m` |
//! | counted things | unknown words after a number are ignored: `5 apples`, `5` | a word that is a number: `5 million` and `5` |
//! | constants | `\pi`, `e`, `i`; `\sqrt{8}` and `2\sqrt2`; `\sqrt[3]{-8}` and `-2`; `\log` is `\ln`, `\lg` has base 10, `\log_2` has base 2 | `\pi` and `3.14` |
//! | expressions | the values are compared at every sample point where both are real; if there are too few such points, the points where they are complex count too; variables are real and take both signs: `(x+1)^2` and `x^2+2x+1`, `\sin^2 x` and `1-\cos^2 x` | `x` and `X`; `x+1` and `x-1`; `\sqrt{x^2}` and `x` |
//! | `\pm` | `1\pm\sqrt2` and `1+\sqrt2, 1-\sqrt2` | |
//! | lists | in any order, with each element equally often: `1, 2, 3`, `3, 2 and 1`; a list can also equal a set: `\{1,2,3\}` | `1, 2` and `1, 2, 2` |
//! | sets | in any order, with any repetitions: `\{1,2\}`, `{2,1}`, `\{1,1,2\}`; `\emptyset` and `\{\}` | `\{1,2\}` and `\{1,2,3\}`; `\{5\}` and `5` |
//! | tuples | in order: `(1,2,3)`, `[1,2,3]`, `\langle1,2,3\rangle`; a matrix with one column equals the first and the last | `(1,2)` and `(2,1)` |
//! | pairs, intervals | with the same brackets | `(1,2)` and `[1,2]` |
//! | unions | in any order, part by part | `[1,2]\cup[2,3]` and `[1,3]` |
//! | inequalities | as intervals: `x>2`, `2<x`, `(2,\infty)`; `1\le x<2` and `[1,2)`; `x\ne0` and its union; inequalities joined by "or" are unions | `x>2` and `y>2` |
//! | equations | `x=5` and `5`; `f(x)=2x` and `2x`; `\text{Area}=5` and `5`; a chain has the value of its last side; two equations are equal if the differences of their sides are multiples of each other: `y=-2x` and `2x+y=0` | `x=5` and `y=5`; `2x=10` and `5` |
//! | matrices | cell by cell; the brackets do not matter | a row and a column |
//! | bases | the same digits and base: `101_2`, `101_{\text{two}}`, `0101_{2}` | `101_2` and `5` or `101` |
//! | words | case and spaces are ignored: `\text{East}`, `east`; `(A)`, `A`, `\text{(A)}` | `yes` and `no` |
//!
//! Some spellings have two meanings, and the usual meaning is tried first. `1,234` is first a number, then a
//! list. `2e3` is first two thousand, then a product. `ab` is first a word, then a product. Only one of the
//! two answers may take its second meaning, unless both are words like `ab`. Without multiplication signs,
//! `1/2x` is half of x. In the argument of a trigonometric function, degrees are an angle; elsewhere they are
//! a unit.
//!
//! # Invariants
//! - Any two texts have a verdict, which is deterministic and symmetric; every answer equals itself.
//! - Time is linear in the length of the texts. Answers longer than [`ANSWER_BYTES_MAX`] are compared as
//!   text. For shorter answers, constants bound the depth, the nodes and the digits of an answer, the size of
//!   exact values and the work on them, and the comparisons of elements. Beyond a bound, answers are compared
//!   as text or numerically. For example, `9^{9^{9^9}}` is never computed.
//!
//! # Deliberately absent
//! The scorer does not solve or simplify, merge intervals, compare a rounded value with an exact one, or read
//! decimal commas, congruences, dates and times of day. Values that differ by less than one part in 10^10
//! count as equal unless both are rational.

mod compare;
mod exact;
mod extract;
mod lexer;
mod numeric;
mod parser;
mod shape;
mod text;
mod tree;
mod units;
mod words;

use serde::{Deserialize, Serialize};

use super::{Score, ScoreInput, Scorer};
use crate::RewardError;

pub use compare::{POINTS_MIN, RELATIVE_TOLERANCE};

/// Maximum number of bytes of an answer that is parsed; longer answers are compared as text.
pub const ANSWER_BYTES_MAX: usize = 2048;

/// Why two answers are equal or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Both answers have the same text, apart from spacing and style.
    SameText,
    /// Both answers are the same rational number.
    SameExactValue,
    /// Both answers have the same value at every sample point, up to rounding.
    SameNumericValue,
    /// Both answers have the same elements.
    SameSet,
    /// Both answers have the same elements in the same order, as a tuple or an interval.
    SameTuple,
    /// Both answers have the same cells.
    SameMatrix,
    /// Both answers are equations or inequalities that hold for the same values.
    SameRelation,
    /// The words of the answers differ.
    DifferentText,
    /// The values of the answers differ.
    DifferentValue,
    /// The answers have different numbers of elements.
    DifferentSize,
    /// The units of the answers differ, even if their values are equal.
    DifferentUnit,
    /// The answers are intervals or pairs with different brackets.
    DifferentBrackets,
    /// The variables of the answers differ, even if their values are equal.
    DifferentName,
    /// The kinds of the answers differ: a value and a set, words and an interval, and so on.
    DifferentKind,
    /// Both answers were parsed but could not be compared within the bounds, and their texts differ.
    UndecidedComparedAsText,
    /// At least one answer could not be parsed, so the texts were compared.
    UnparsedComparedAsText,
    /// The response has no answer.
    NoAnswer,
}

impl Reason {
    /// The reason as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SameText => "same_text",
            Self::SameExactValue => "same_exact_value",
            Self::SameNumericValue => "same_numeric_value",
            Self::SameSet => "same_set",
            Self::SameTuple => "same_tuple",
            Self::SameMatrix => "same_matrix",
            Self::SameRelation => "same_relation",
            Self::DifferentText => "different_text",
            Self::DifferentValue => "different_value",
            Self::DifferentSize => "different_size",
            Self::DifferentUnit => "different_unit",
            Self::DifferentBrackets => "different_brackets",
            Self::DifferentName => "different_name",
            Self::DifferentKind => "different_kind",
            Self::UndecidedComparedAsText => "undecided_compared_as_text",
            Self::UnparsedComparedAsText => "unparsed_compared_as_text",
            Self::NoAnswer => "no_answer",
        }
    }
}

/// Whether two answers are equal, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// Whether the answers are equal.
    pub is_equal: bool,
    /// The reason.
    pub reason: Reason,
}

impl Verdict {
    fn equal(reason: Reason) -> Self {
        Self { is_equal: true, reason }
    }

    fn different(reason: Reason) -> Self {
        Self { is_equal: false, reason }
    }

    fn of(is_equal: bool, same: Reason, different: Reason) -> Self {
        Self { is_equal, reason: if is_equal { same } else { different } }
    }
}

/// Compares two answers as the table of this module describes. The answers may have dollar signs or a box
/// around them.
pub fn equivalent(prediction: &str, truth: &str) -> Verdict {
    // The answers are sorted, so their order does not matter even where a budget ends a comparison.
    let mut answers = [extract::unwrapped(prediction), extract::unwrapped(truth)];
    answers.sort_unstable();
    let [left, right] = answers;
    let (normal_left, normal_right) = (text::normal(left), text::normal(right));
    if normal_left == normal_right {
        return Verdict::equal(Reason::SameText);
    }
    if left.len().max(right.len()) > ANSWER_BYTES_MAX {
        return Verdict::different(Reason::UnparsedComparedAsText);
    }
    let as_text = || {
        let is_same = text::folded_words(&normal_left) == text::folded_words(&normal_right);
        let reason = Reason::UnparsedComparedAsText;
        Verdict::of(is_same, reason, reason)
    };
    let read = |answer: &str, mode: lexer::Mode| shape::read(answer, mode).ok();
    let (usual_left, usual_right) = (read(left, lexer::Mode::Usual), read(right, lexer::Mode::Usual));
    let usual = match (&usual_left, &usual_right) {
        (Some(a), Some(b)) => compare::compare(a, b),
        _ => as_text(),
    };
    if usual.is_equal {
        return usual;
    }
    let is_ambiguous = |reading: &Option<shape::Reading>| reading.as_ref().is_none_or(|it| it.is_ambiguous);
    let second = |answer: &str, first: &Option<shape::Reading>, other: &Option<shape::Reading>| {
        let reading = if is_ambiguous(first) { read(answer, lexer::Mode::Literal) } else { None };
        reading.zip(other.as_ref()).map(|(a, b)| compare::compare(&a, b)).filter(|verdict| verdict.is_equal)
    };
    // Two short words may be equal as products: `xy` and `yx`.
    let products = || {
        let is_word = |reading: &Option<shape::Reading>| {
            reading.as_ref().is_some_and(|it| it.is_ambiguous && matches!(it.shape, tree::Shape::Text(_)))
        };
        let are_words = is_word(&usual_left) && is_word(&usual_right);
        let literal_right = if are_words { read(right, lexer::Mode::Literal) } else { None };
        second(left, &usual_left, &literal_right)
    };
    second(left, &usual_left, &usual_right)
        .or_else(|| second(right, &usual_right, &usual_left))
        .or_else(products)
        .unwrap_or(usual)
}

/// Scores 1 when the answer has the value of the ground truth, and otherwise 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct MathEquiv;

impl MathEquiv {
    /// The answer in a response. It is the first of these that exists: the content of the last `\boxed{..}`;
    /// the text after the last "Answer:", "answer is" or "####"; the last formula in `$..$`; the last number
    /// on the last line with text.
    pub fn extract(response: &str) -> Option<&str> {
        extract::extract(response)
    }

    /// The verdict that decides the score.
    pub fn explain(&self, input: &ScoreInput<'_>) -> Verdict {
        Self::verdict(extract::extract(input.response), input.ground_truth)
    }

    fn verdict(answer: Option<&str>, ground_truth: &str) -> Verdict {
        match answer {
            Some(answer) => equivalent(answer, extract::truth_of(ground_truth)),
            None => Verdict::different(Reason::NoAnswer),
        }
    }
}

impl Scorer for MathEquiv {
    fn name(&self) -> &'static str {
        "math_equiv"
    }

    fn tail_code_points(&self) -> Option<usize> {
        None
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError> {
        let answer = extract::extract(input.response);
        let verdict = Self::verdict(answer, input.ground_truth);
        let pred = answer.map(|answer| extract::unwrapped(answer).to_owned());
        Ok(Score { reason: Some(verdict.reason), ..Score::right_or_wrong(verdict.is_equal, pred) })
    }
}

#[cfg(test)]
mod tests;
