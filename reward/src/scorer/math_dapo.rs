//! `math_dapo`: DAPO's scorer, which reads the last 300 code points and normalises as Minerva did
//! (Lewkowycz et al. 2022, appendix D).

use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};

use super::boxed::last_boxed_content;
use super::rewrites::{Bare, brace_bare, keep_first_formulas, replace, unwrap_longest, unwrap_shortest};
use super::{Score, ScoreInput, Scorer};
use crate::RewardError;
use crate::python_text::{SPACES, is_digit, strip, tail};

/// Code points of a response's end that are looked at.
const TAIL: usize = 300;
/// Of these, where a box is looked for.
const BOX_TAIL: usize = 100;
const INVALID: &str = "[INVALID]";

/// Replaced in this order.
const SUBSTITUTIONS: &[(&str, &str)] = &[
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
];

/// Removed in this order.
const REMOVED: &[&str] = &[
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "hours",
    "km",
    "units",
    "\\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
    "\\text{s}",
    "\\text{.}",
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
    "\"",
    "\\dots",
];

/// `Answer\s*:\s*([^\n]+)` in any case, with Python's idea of white space.
#[expect(clippy::expect_used, reason = "the pattern is a constant, and every test compiles it")]
static ANSWER: LazyLock<Regex> = LazyLock::new(|| {
    let ranges = SPACES.iter().map(|(first, last)| format!(r"\x{{{first:X}}}-\x{{{last:X}}}"));
    let space = ranges.collect::<String>();
    let pattern = format!(r"(?i)Answer[{space}]*:[{space}]*([^\n]+)");
    Regex::new(&pattern).expect("a constant pattern compiles")
});

/// Which of the published versions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Variant {
    /// Without an "Answer:" there is no answer.
    #[default]
    #[serde(rename = "2025")]
    V2025,
    /// Without an "Answer:" the last `\boxed{}` of the last 100 code points counts.
    #[serde(rename = "2026")]
    V2026,
}

/// +1 for a right answer, -1 otherwise.
#[derive(Debug, Clone, Copy, Default)]
pub struct MathDapo {
    /// See [`Variant`].
    pub variant: Variant,
    /// Compares the last `\boxed{}` of the last 100 code points, as text.
    pub strict_box: bool,
}

/// The reference's normal form of an answer.
pub fn normalize(answer: &str) -> String {
    let mut text = answer.rsplit('=').next().unwrap_or("").to_owned();
    for (from, to) in SUBSTITUTIONS {
        replace(&mut text, from, to);
    }
    for removed in REMOVED {
        replace(&mut text, removed, "");
    }
    keep_first_formulas(&mut text);
    unwrap_shortest(&mut text, "\\text{");
    unwrap_shortest(&mut text, "\\textbf{");
    unwrap_shortest(&mut text, "\\overline{");
    unwrap_longest(&mut text, "\\boxed{");
    brace_bare(&mut text, "frac", Bare::Two);
    brace_bare(&mut text, "sqrt", Bare::One);
    replace(&mut text, "$", "");
    let mut digits = text.chars().filter(|c| *c != ',').peekable();
    if digits.peek().is_some() && digits.all(is_digit) {
        replace(&mut text, ",", "");
    }
    strip(&text).to_owned()
}

/// What stands behind the last "Answer:", in normal form; [`INVALID`] without one.
fn answer_in(end: &str) -> String {
    let last = ANSWER.captures_iter(end).last().and_then(|captures| captures.get(1));
    normalize(last.map_or(INVALID, |answer| answer.as_str()))
}

fn boxed_in(end: &str) -> Option<&str> {
    last_boxed_content(tail(end, BOX_TAIL))
}

impl MathDapo {
    /// The answer in normal form.
    fn extract(&self, end: &str) -> String {
        let answer = answer_in(end);
        // The reference decides by the word, not by whether there was an answer: a model that answers "[INVALID]"
        // falls back as well.
        if self.variant == Variant::V2025 || answer != INVALID {
            return answer;
        }
        boxed_in(end).map_or(answer, normalize)
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
        let end = tail(input.response, TAIL);
        let (right, pred) = if self.strict_box {
            let pred = boxed_in(end);
            (pred == Some(input.ground_truth), pred.map(str::to_owned))
        } else {
            let pred = self.extract(end);
            (pred == normalize(input.ground_truth), Some(pred))
        };
        Ok(Score { score: if right { 1.0 } else { -1.0 }, ..Score::right_or_wrong(right, pred) })
    }
}
