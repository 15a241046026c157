//! `regex`: whether a pattern is found in the response, or whether what it finds is the ground truth.
//!
//! Patterns are the `regex` crate's: no look-around and no back-references, and in return every search takes time
//! linear in the text. Only the first match counts, since to walk over all of them can take quadratic time; for the
//! last one let the pattern begin with `(?s).*`, which takes as much as it can.

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use super::{Score, ScoreInput, Scorer};
use crate::RewardError;
use crate::python_text::strip;

/// Bytes of the longest pattern.
pub const PATTERN_BYTES_MAX: usize = 4096;
/// Bytes that a compiled pattern may take; they bound the time per code point too.
pub const COMPILED_BYTES_MAX: usize = 1 << 20;

/// The options of [`Pattern`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatternConfig {
    /// The pattern.
    pub pattern: String,
    /// The group that is compared with the ground truth, 0 for the whole match; without one the pattern's presence
    /// is enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
}

/// 1 when the pattern is found and its group, if one is asked for, equals the ground truth but for white space at
/// both ends; else 0.
#[derive(Debug, Clone)]
pub struct Pattern {
    regex: Regex,
    group: Option<usize>,
}

/// The pattern, or why there is none.
pub(super) fn compile(pattern: &str) -> Result<Regex, RewardError> {
    let invalid = |reason: String| Err(RewardError::invalid("pattern", pattern, reason));
    if pattern.len() > PATTERN_BYTES_MAX {
        return invalid(format!("longer than bytes={PATTERN_BYTES_MAX}"));
    }
    let compiled = RegexBuilder::new(pattern).size_limit(COMPILED_BYTES_MAX).build();
    compiled.or_else(|error| {
        // Above its last line a syntax error draws the pattern again.
        let drawn = error.to_string();
        let reason = drawn.lines().last().unwrap_or("not a pattern");
        invalid(reason.trim_start_matches("error: ").to_owned())
    })
}

impl Pattern {
    /// An error names the pattern and the reason.
    pub fn new(config: &PatternConfig) -> Result<Self, RewardError> {
        let regex = compile(&config.pattern)?;
        let groups = regex.captures_len();
        if let Some(group) = config.group.filter(|group| *group >= groups) {
            let reason = format!("group={group} is not there, the last one is {}", groups - 1);
            return Err(RewardError::invalid("pattern", &config.pattern, reason));
        }
        Ok(Self { regex, group: config.group })
    }
}

impl Scorer for Pattern {
    fn name(&self) -> &'static str {
        "regex"
    }

    fn tail_code_points(&self) -> Option<usize> {
        None
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError> {
        let Some(group) = self.group else {
            let found = self.regex.find(input.response);
            let pred = found.map(|found| found.as_str().to_owned());
            return Ok(Score::right_or_wrong(pred.is_some(), pred));
        };
        let captures = self.regex.captures(input.response);
        let pred = captures.and_then(|captures| captures.get(group)).map(|found| strip(found.as_str()));
        let right = pred == Some(strip(input.ground_truth));
        Ok(Score::right_or_wrong(right, pred.map(str::to_owned)))
    }
}
