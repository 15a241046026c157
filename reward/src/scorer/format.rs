//! `format`: checks that a response is a sequence of tags, such as `<think>...</think>` and then an answer
//! (DeepSeek-R1, Guo et al. 2025, section 2.2.2).

use serde::{Deserialize, Serialize};

use super::{Score, ScoreInput, Scorer};
use crate::RewardError;
use crate::python_text::{is_space, strip};

/// Maximum number of tags of a format.
pub const TAGS_MAX: usize = 16;
/// Maximum number of bytes of a tag's name.
pub const TAG_BYTES_MAX: usize = 64;

/// Scores 1 when the response consists of exactly these tags in this order, and otherwise 0. Each tag must be
/// opened and closed once, only white space may stand before and between the tags, and the answer must not be
/// empty. `pred` is the answer.
///
/// The default is `<think>...</think>` and then a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Format {
    /// Names of tags, without brackets.
    pub tags: Vec<String>,
    /// Whether the answer is the text after the last tag. Otherwise it is the content of the last tag, and
    /// only white space may follow.
    pub trailing_answer: bool,
    /// Whether the prompt ends with the opening of the first tag, as some chat templates do; the response
    /// must not repeat this opening.
    pub opened_by_prompt: bool,
}

impl Default for Format {
    fn default() -> Self {
        Self { tags: vec!["think".to_owned()], trailing_answer: true, opened_by_prompt: false }
    }
}

impl Format {
    /// Checks the options.
    pub(super) fn checked(self) -> Result<Self, RewardError> {
        let count = self.tags.len();
        if count == 0 || count > TAGS_MAX {
            let reason = format!("expected 1 to {TAGS_MAX} tags");
            return Err(RewardError::invalid("format.tags", self.tags.join(", "), reason));
        }
        for (index, tag) in self.tags.iter().enumerate() {
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            if tag.is_empty() || tag.len() > TAG_BYTES_MAX || !tag.chars().all(is_name) {
                let reason = format!("expected 1 to {TAG_BYTES_MAX} of letters, digits, '_' and '-'");
                return Err(RewardError::invalid("format.tags", tag, reason));
            }
            if self.tags[..index].contains(tag) {
                return Err(RewardError::invalid("format.tags", tag, "named twice"));
            }
        }
        Ok(self)
    }

    fn answer<'a>(&self, response: &'a str) -> Option<&'a str> {
        let (mut rest, mut content) = (response, "");
        for (index, tag) in self.tags.iter().enumerate() {
            let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
            let is_open = index == 0 && self.opened_by_prompt;
            if response.matches(&open).count() != usize::from(!is_open)
                || response.matches(&close).count() != 1
            {
                return None;
            }
            let inside = match is_open {
                true => rest,
                false => rest.trim_start_matches(is_space).strip_prefix(&open)?,
            };
            (content, rest) = inside.split_once(&close)?;
        }
        let answer = match self.trailing_answer {
            true => strip(rest),
            false if strip(rest).is_empty() => strip(content),
            false => return None,
        };
        (!answer.is_empty()).then_some(answer)
    }
}

impl Scorer for Format {
    fn name(&self) -> &'static str {
        "format"
    }

    fn tail_code_points(&self) -> Option<usize> {
        None
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError> {
        let pred = self.answer(input.response);
        Ok(Score::right_or_wrong(pred.is_some(), pred.map(str::to_owned)))
    }
}
