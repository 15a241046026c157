//! `exact_match`: compares the answer with the ground truth character by character. Options exclude case,
//! white space or punctuation from the comparison.

use serde::{Deserialize, Serialize};

use super::{Score, ScoreInput, Scorer};
use crate::RewardError;
use crate::python_text::{is_space, strip};

/// Scores 1 when the answer equals the ground truth, and otherwise 0. White space at both ends never counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExactMatch {
    /// Compares in lower case.
    pub ignore_case: bool,
    /// Compares without any white space.
    pub ignore_white_space: bool,
    /// Compares without ASCII punctuation, which is Python's `string.punctuation`.
    pub ignore_punctuation: bool,
    /// The answer is the text after the last occurrence of this marker; a response without the marker has no
    /// answer. With `None`, the answer is the whole response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

impl ExactMatch {
    /// Checks the options.
    pub(super) fn checked(self) -> Result<Self, RewardError> {
        if self.after.as_deref() == Some("") {
            return Err(RewardError::invalid("exact_match.after", "", "expected a marker that is not empty"));
        }
        Ok(self)
    }

    fn answer<'a>(&self, response: &'a str) -> Option<&'a str> {
        let Some(marker) = &self.after else { return Some(strip(response)) };
        let (_, behind) = response.rsplit_once(marker.as_str())?;
        Some(strip(behind))
    }

    fn normal_form(&self, text: &str) -> String {
        let is_ignored = |c: char| {
            (self.ignore_white_space && is_space(c)) || (self.ignore_punctuation && c.is_ascii_punctuation())
        };
        let kept: String = strip(text).chars().filter(|c| !is_ignored(*c)).collect();
        let cased = if self.ignore_case { kept.to_lowercase() } else { kept };
        // Removing punctuation at an end may have uncovered white space.
        strip(&cased).to_owned()
    }
}

impl Scorer for ExactMatch {
    fn name(&self) -> &'static str {
        "exact_match"
    }

    fn tail_code_points(&self) -> Option<usize> {
        None
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError> {
        let pred = self.answer(input.response);
        let truth = self.normal_form(input.ground_truth);
        let right = pred.is_some_and(|answer| self.normal_form(answer) == truth);
        Ok(Score::right_or_wrong(right, pred.map(str::to_owned)))
    }
}
