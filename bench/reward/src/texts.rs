//! Draws hostile texts from a seed: responses that a scorer in Python and one in Rust may read differently.
//!
//! A text consists of pieces, or of a real solution with a few changes, or of both. The pieces are patterns
//! that the references look for, parts of real solutions, and characters that Python and Rust could treat
//! differently.

use rand::RngExt;
use rand::SeedableRng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use rolldock_reward::python_text::{DIGITS, SPACES, tail};

/// Patterns that the scorers look for, whole or in parts.
pub(super) const PIECES: &[&str] = &[
    "Answer:",
    "answer :",
    "ANSWER\u{a0}:\u{3000}",
    "An\u{17f}wer:",
    "Answer",
    "Answers:",
    ":",
    "####",
    "#### ",
    "#### -",
    "#### $",
    "###",
    "\\boxed{",
    "\\boxed {",
    "\\boxed ",
    "\\boxed",
    "\\fbox{",
    "boxed{",
    "\\frac",
    "\\dfrac",
    "\\tfrac",
    "frac",
    "\\frac{",
    "}{",
    "\\sqrt",
    "sqrt",
    "\\sqrt{",
    "\\text{",
    "\\text{ ",
    "\\textbf{",
    "\\mbox{",
    "\\overline{",
    "\\text{and}",
    ",\\text{and}",
    "\\text{m}",
    "\\text{\n",
    "\\text{s}",
    "\\text{.}",
    "\\mathrm{th}",
    "^2",
    "^3",
    "^\\circ",
    "^{\\circ}",
    "\\left",
    "\\right",
    "\\\\",
    "\\%",
    "\\\\%",
    "\\$",
    "\\!",
    ",\\!",
    "\\;",
    "\\ ",
    "\\dots",
    "\\ldots",
    "{,}",
    "{",
    "}",
    "{}",
    "$",
    "$$",
    ".$",
    "=",
    "x=",
    "xyz = ",
    "/",
    "a ",
    "an ",
    "\"",
    ",",
    ".",
    "-",
    "+",
    "%",
    "\n",
    "\n\n",
    "\r\n",
    " ",
    "  ",
    "\t",
    "0.5",
    ".5",
    " .5",
    "{.5",
    "[INVALID]",
    "1/2",
    "-1/2",
    "01/2",
    "1,234",
    "1,,2",
    "12",
    "7",
    "0",
    "-0",
    "x",
    "é",
    "答案",
    "🙂",
    "\u{300}",
    "\u{0}",
    "\u{feff}",
    "\u{2212}",
];

/// Words that `math_dapo` removes. Some pieces insert one word into another, so that the outer word appears
/// only when the inner one is removed.
const WORDS: &[&str] = &[
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "hours",
    "km",
    "units",
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
];

/// A response and a ground truth.
pub(super) type Case = (String, String);

/// Draws texts. A case depends only on the seed, its number and the rows, so it is equal on every machine.
pub(super) struct Texts {
    seed: u64,
    solutions: Vec<String>,
    answers: Vec<String>,
}

impl Texts {
    pub(super) fn new(seed: u64, rows: impl IntoIterator<Item = (String, String)>) -> Self {
        let (solutions, answers) = rows.into_iter().unzip();
        Self { seed, solutions, answers }
    }

    pub(super) fn case(&self, number: u64) -> Case {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(number);
        let response = match random.random_range(0..4) {
            0 => self.mutated(&mut random),
            1 => format!("{}\nAnswer: {}", self.mutated(&mut random), self.pieces(&mut random, 12)),
            2 => format!("{}\\boxed{{{}}}", self.pieces(&mut random, 8), self.pieces(&mut random, 12)),
            _ => self.pieces(&mut random, 60),
        };
        let truth = self.truth(&mut random, &response);
        (response, truth)
    }

    /// Draws a truth, often the response's own answer, so that both verdicts occur.
    fn truth(&self, random: &mut ChaCha8Rng, response: &str) -> String {
        let behind = |mark: &str| response.rsplit_once(mark).map(|(_, behind)| behind.to_owned());
        let said = match random.random_range(0..6) {
            0 => return self.pieces(random, 6),
            1 => return chosen(&self.answers, random),
            2 => behind("####").map(|number| number.trim().replace(',', "")),
            3 | 4 => behind(":").map(|line| line.lines().next().unwrap_or("").to_owned()),
            _ => behind("\\boxed{").map(|boxed| boxed.trim_end_matches('}').to_owned()),
        };
        said.map_or_else(|| chosen(&self.answers, random), |said| tail(&said, 400).to_owned())
    }

    fn pieces(&self, random: &mut ChaCha8Rng, count_max: usize) -> String {
        let count = random.random_range(0..=count_max);
        (0..count).map(|_| self.piece(random)).collect()
    }

    fn piece(&self, random: &mut ChaCha8Rng) -> String {
        match random.random_range(0..10) {
            0..5 => (*PIECES.choose(random).unwrap_or(&"")).to_owned(),
            5 => random.random_range(0..2000_u32).to_string(),
            6 => {
                let (outer, inner) =
                    (WORDS.choose(random).unwrap_or(&""), WORDS.choose(random).unwrap_or(&""));
                let at = random.random_range(0..=outer.len());
                format!("{}{inner}{}", &outer[..at], &outer[at..])
            }
            7 => character(random).to_string(),
            8 => chosen(&self.answers, random),
            _ => {
                let solution: Vec<char> = chosen(&self.solutions, random).chars().collect();
                let start = random.random_range(0..=solution.len());
                let length = random.random_range(0..=40);
                solution[start..].iter().take(length).collect()
            }
        }
    }

    /// The end of a real solution in which some parts are removed or doubled and some pieces are inserted.
    fn mutated(&self, random: &mut ChaCha8Rng) -> String {
        let solution = chosen(&self.solutions, random);
        let mut text: Vec<char> = tail(&solution, random.random_range(1..=400)).chars().collect();
        for _ in 0..random.random_range(0..6) {
            let at = random.random_range(0..=text.len());
            let end = text.len().min(at + random.random_range(0..=8));
            let piece: Vec<char> = match random.random_range(0..4) {
                0 => Vec::new(),
                1 => text[at..end].repeat(2),
                _ => self.piece(random).chars().chain(text[at..end].iter().copied()).collect(),
            };
            text.splice(at..end, piece);
        }
        text.into_iter().collect()
    }
}

fn chosen(all: &[String], random: &mut ChaCha8Rng) -> String {
    all.choose(random).cloned().unwrap_or_default()
}

/// A character in or next to a range that Python counts as white space or digits, or any character at all.
fn character(random: &mut ChaCha8Rng) -> char {
    let ranges = if random.random_bool(0.5) { SPACES } else { DIGITS };
    let (first, last) = ranges.choose(random).copied().unwrap_or((0, 0));
    let code = match random.random_range(0..6) {
        0 => first.saturating_sub(1),
        1 => last + 1,
        2 => first,
        3 => random.random_range(first..=last),
        4 => random.random_range(0..0x3000),
        _ => random.random_range(0..0x11_0000),
    };
    // A surrogate is not a `char`, so a response, which is a Rust string, cannot contain one.
    char::from_u32(code).unwrap_or('\u{fffd}')
}

#[cfg(test)]
mod tests {
    use super::Texts;

    #[test]
    fn a_case_depends_only_on_seed_and_number() {
        let rows = || [("so it is 5. #### 5".to_owned(), "5".to_owned())];
        let (texts, again, other) = (Texts::new(1, rows()), Texts::new(1, rows()), Texts::new(2, rows()));
        let drawn = |texts: &Texts| (0..200).map(|number| texts.case(number)).collect::<Vec<_>>();
        assert_eq!(drawn(&texts), drawn(&again));
        assert_ne!(drawn(&texts), drawn(&other));
        let responses: std::collections::BTreeSet<_> = drawn(&texts).into_iter().collect();
        assert!(responses.len() > 150, "{} of 200 differ", responses.len());
    }
}
