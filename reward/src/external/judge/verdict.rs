//! Reads the score in a judge's answer.

use std::collections::BTreeMap;

use regex::Regex;

use super::JudgeConfig;
use crate::external::answer::{QUOTE_CHARS_MAX, acc_of, first_chars};
use crate::invariants::is_finite_in_32_bits;
use crate::python_text::tail;
use crate::{RewardError, Score};

/// The number of code points at the end of an answer in which the verdict is searched. The text is bounded,
/// because finding all matches can take quadratic time.
const TAIL: usize = 8192;

/// Finds the verdict in an answer, and its score.
#[derive(Debug, Clone)]
pub(crate) struct Verdict {
    pattern: Regex,
    worth: Worth,
}

#[derive(Debug, Clone)]
enum Worth {
    /// The scores of words in lower case.
    Words(BTreeMap<String, f64>),
    /// The smallest and the largest number of a verdict. Scores are scaled from this range to 0..1.
    Range(f64, f64),
}

impl Verdict {
    /// Builds a verdict reader from the keys `pattern`, `words` and `range`.
    pub(crate) fn new(config: &JudgeConfig) -> Result<Self, RewardError> {
        let wrong = |key, expected, found: String| RewardError::Misconfigured { key, expected, found };
        let expected = "a regular expression with one group";
        let pattern = Regex::new(&config.pattern)
            .map_err(|error| wrong("judge.pattern", expected, format!("{:?} ({error})", config.pattern)))?;
        let groups = pattern.captures_len() - 1;
        if groups != 1 {
            let found = format!("{:?} with groups={groups}", config.pattern);
            return Err(wrong("judge.pattern", expected, found));
        }
        let worth = match (&config.words, config.range) {
            (Some(words), None) if words.is_empty() => {
                return Err(wrong("judge.words", "at least one word with its score", "none".into()));
            }
            (Some(words), None) => {
                if let Some((word, score)) = words.iter().find(|(_, score)| !is_finite_in_32_bits(**score)) {
                    return Err(wrong(
                        "judge.words",
                        "scores that are finite in 32 bits",
                        format!("{word:?} = {score}"),
                    ));
                }
                Worth::Words(words.iter().map(|(word, score)| (word.to_lowercase(), *score)).collect())
            }
            (None, Some([least, most])) if least < most && (most - least).is_finite() => {
                Worth::Range(least, most)
            }
            (None, Some([least, most])) => {
                return Err(wrong(
                    "judge.range",
                    "[least, most] with least below most and a finite difference",
                    format!("[{least}, {most}]"),
                ));
            }
            (None, None) => return Err(wrong("judge", "one of words and range", "neither".into())),
            (Some(_), Some(_)) => return Err(wrong("judge", "one of words and range", "both".into())),
        };
        Ok(Self { pattern, worth })
    }

    /// Reads the score of an answer. An error quotes the end of the answer, where the verdict should be.
    pub(crate) fn read(&self, what: &str, text: &str) -> Result<Score, RewardError> {
        let nonsense = |reason: String| RewardError::Nonsense {
            what: what.to_owned(),
            reason,
            quote: tail(text, QUOTE_CHARS_MAX).to_owned(),
        };
        let found = self.pattern.captures_iter(tail(text, TAIL)).filter_map(|groups| groups.get(1)).last();
        let Some(found) = found else {
            return Err(nonsense("expected a verdict that the pattern matches".into()));
        };
        let word = first_chars(found.as_str().trim(), QUOTE_CHARS_MAX);
        let score = match &self.worth {
            Worth::Words(words) => {
                let score = words.get(&word.to_lowercase()).copied();
                score.ok_or_else(|| {
                    nonsense(format!("expected one of the configured words, found verdict={word:?}"))
                })?
            }
            Worth::Range(least, most) => {
                let number = word.parse::<f64>().ok().filter(|number| (*least..=*most).contains(number));
                let number = number.ok_or_else(|| {
                    nonsense(format!("expected a number from {least} to {most}, found verdict={word:?}"))
                })?;
                (number - least) / (most - least)
            }
        };
        Ok(Score { score, acc: acc_of(score), pred: Some(word), ..Score::default() })
    }
}
