//! `math_dapo`: DAPO's scorer, which reads the last 300 code points and normalises as Minerva did
//! (Lewkowycz et al. 2022, appendix D).

use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};

use super::boxed::last_boxed_content;
use super::{Score, ScoreInput, Scorer};
use crate::RewardError;
use crate::python_text::{is_digit, strip, tail};

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

/// A regular expression of ours, with what its matches become.
type Rewrite = (&'static str, &'static str);

const REWRITES: &[Rewrite] = &[
    (r"(.*?)(\$)(.*?)(\$)(.*)", "$$${3}$$"),
    (r"(\\text\{)(.*?)(\})", "${2}"),
    (r"(\\textbf\{)(.*?)(\})", "${2}"),
    (r"(\\overline\{)(.*?)(\})", "${2}"),
    (r"(\\boxed\{)(.*)(\})", "${2}"),
    (r"(frac)([^{])(.)", "frac{${2}}{${3}}"),
    (r"(sqrt)([^{])", "sqrt{${2}}"),
];

struct Patterns {
    /// `Answer\s*:\s*([^\n]+)` in any case, with Python's idea of white space.
    answer: Regex,
    rewrites: Vec<(Regex, &'static str)>,
}

#[expect(clippy::expect_used, reason = "the patterns are constants, and every test compiles them")]
static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| {
    let space =
        r"[\t-\r\x1C-\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}]";
    let compile = |pattern: &str| Regex::new(pattern).expect("a constant pattern compiles");
    Patterns {
        answer: compile(&format!(r"(?i)Answer{space}*:{space}*([^\n]+)")),
        rewrites: REWRITES.iter().map(|(pattern, into)| (compile(pattern), *into)).collect(),
    }
});

/// Which of the published versions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Variant {
    /// Without an "Answer:" there is no answer.
    #[default]
    #[serde(rename = "2025")]
    V2025,
    /// Without an "Answer:" the last `\boxed{}` counts.
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
    for (pattern, into) in &PATTERNS.rewrites {
        if let std::borrow::Cow::Owned(rewritten) = pattern.replace_all(&text, *into) {
            text = rewritten;
        }
    }
    replace(&mut text, "$", "");
    let mut digits = text.chars().filter(|c| *c != ',').peekable();
    if digits.peek().is_some() && digits.all(is_digit) {
        replace(&mut text, ",", "");
    }
    strip(&text).to_owned()
}

/// Only what is there is replaced: most of the words never are.
fn replace(text: &mut String, from: &str, to: &str) {
    if memchr::memmem::find(text.as_bytes(), from.as_bytes()).is_some() {
        *text = text.replace(from, to);
    }
}

impl MathDapo {
    fn extract<'a>(&self, end: &'a str) -> &'a str {
        let last = PATTERNS.answer.captures_iter(end).last().and_then(|captures| captures.get(1));
        if let Some(answer) = last {
            return answer.as_str();
        }
        match self.variant {
            Variant::V2025 => INVALID,
            Variant::V2026 => last_boxed_content(tail(end, BOX_TAIL)).unwrap_or(INVALID),
        }
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
            let pred = last_boxed_content(tail(end, BOX_TAIL));
            (pred == Some(input.ground_truth), pred.map(str::to_owned))
        } else {
            let pred = normalize(self.extract(end));
            (pred == normalize(input.ground_truth), Some(pred))
        };
        Ok(Score { score: if right { 1.0 } else { -1.0 }, acc: f64::from(right), pred })
    }
}
