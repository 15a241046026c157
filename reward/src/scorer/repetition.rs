//! `repetition`: a penalty for repeated n-grams
//! (in the manner of Yeo et al. 2025, "Demystifying Long Chain-of-Thought Reasoning").
//!
//! The share of repeated n-grams is `1 - distinct / all`, and the penalty is this share times the factor. The
//! result is exact, because n-grams are compared as a whole and not by hashes, which may collide.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::{Score, ScoreInput, Scorer, WEIGHT_MAX};
use crate::RewardError;
use crate::python_text::is_space;

/// The largest n; scoring reads each unit n times.
pub const NGRAM_MAX: usize = 64;

/// The unit of an n-gram.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepetitionUnit {
    /// Words between white space; upper and lower case differ.
    #[default]
    Words,
    /// Code points, for languages that are written without spaces.
    CodePoints,
}

/// Scores 0 when no n-gram occurs twice, and down to almost `-factor` for more repetitions; `acc` is the
/// share of distinct n-grams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Repetition {
    /// Units per n-gram, from 1 to [`NGRAM_MAX`]; values outside are clamped.
    pub n: usize,
    /// The unit of an n-gram.
    pub unit: RepetitionUnit,
    /// The factor, from 0 to [`WEIGHT_MAX`]. It is the penalty that a text approaches when all of its n-grams
    /// are equal.
    pub factor: f64,
}

impl Default for Repetition {
    fn default() -> Self {
        Self { n: 3, unit: RepetitionUnit::Words, factor: 1.0 }
    }
}

/// Numbers the words of a text: equal words get equal numbers.
fn numbered_words(text: &str) -> Vec<u32> {
    let mut numbers: HashMap<&str, u32> = HashMap::new();
    let words = text.split(is_space).filter(|word| !word.is_empty());
    words
        .map(|word| {
            let next = numbers.len() as u32;
            *numbers.entry(word).or_insert(next)
        })
        .collect()
}

impl Repetition {
    /// Checks the options.
    pub(super) fn checked(self) -> Result<Self, RewardError> {
        if !(1..=NGRAM_MAX).contains(&self.n) {
            return Err(RewardError::invalid("repetition.n", self.n, format!("expected 1 to {NGRAM_MAX}")));
        }
        if !(0.0..=WEIGHT_MAX).contains(&self.factor) {
            let expected = format!("expected 0 to {WEIGHT_MAX}");
            return Err(RewardError::invalid("repetition.factor", self.factor, expected));
        }
        Ok(self)
    }

    /// The share of n-grams that occurred earlier in the text, from 0 to 1; 0 for a text shorter than one
    /// n-gram.
    pub fn share(&self, text: &str) -> f64 {
        let units = match self.unit {
            RepetitionUnit::Words => numbered_words(text),
            RepetitionUnit::CodePoints => text.chars().map(u32::from).collect(),
        };
        let n = self.n.clamp(1, NGRAM_MAX);
        let all = (units.len() + 1).saturating_sub(n);
        if all == 0 {
            return 0.0;
        }
        let distinct = units.windows(n).collect::<HashSet<_>>().len();
        (all - distinct) as f64 / all as f64
    }
}

impl Scorer for Repetition {
    fn name(&self) -> &'static str {
        "repetition"
    }

    fn tail_code_points(&self) -> Option<usize> {
        None
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError> {
        let share = self.share(input.response);
        // A negation would turn a penalty of 0 into -0.
        Ok(Score { score: 0.0 - share * self.factor, acc: 1.0 - share, ..Score::default() })
    }
}
