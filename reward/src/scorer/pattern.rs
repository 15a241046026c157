//! `regex`: checks that a pattern matches in the response, or that the text of a group of the pattern equals the
//! ground truth.
//!
//! Patterns have the syntax of the `regex` crate: no look-around and no back-references, so every search
//! takes time linear in the text. Only the first match counts, because finding all matches can take quadratic
//! time. If a pattern begins with `(?s).*`, which is greedy, the groups of the pattern match the last occurrence
//! in the response.

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use super::{Score, ScoreInput, Scorer};
use crate::RewardError;
use crate::python_text::strip;

/// Maximum number of bytes of a pattern.
pub const PATTERN_BYTES_MAX: usize = 4096;
/// Maximum number of bytes of a compiled pattern; this also bounds the time per code point.
pub const COMPILED_BYTES_MAX: usize = 1 << 20;

/// The options of [`Pattern`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatternConfig {
    /// The pattern.
    pub pattern: String,
    /// The group that is compared with the ground truth, 0 for the whole match. If no group is configured, any
    /// match is right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
}

/// Scores 1 when the pattern matches and its group, if one is configured, equals the ground truth apart from
/// white space at both ends; otherwise 0.
#[derive(Debug, Clone)]
pub struct Pattern {
    regex: Regex,
    group: Option<usize>,
}

/// Compiles a pattern. The error states what is wrong with the pattern.
pub(super) fn compile(pattern: &str) -> Result<Regex, RewardError> {
    let invalid = |reason: String| Err(RewardError::invalid("pattern", pattern, reason));
    if pattern.len() > PATTERN_BYTES_MAX {
        return invalid(format!("expected at most bytes={PATTERN_BYTES_MAX}"));
    }
    let compiled = RegexBuilder::new(pattern).size_limit(COMPILED_BYTES_MAX).build();
    compiled.or_else(|error| {
        // Only the last line of a syntax error is the reason. The lines above that line repeat the pattern.
        let drawn = error.to_string();
        let reason = drawn.lines().last().unwrap_or("expected a regular expression");
        invalid(reason.trim_start_matches("error: ").to_owned())
    })
}

impl Pattern {
    /// Compiles the pattern; an error names the pattern and the reason.
    pub fn new(config: &PatternConfig) -> Result<Self, RewardError> {
        let regex = compile(&config.pattern)?;
        let groups = regex.captures_len();
        if let Some(group) = config.group.filter(|group| *group >= groups) {
            let reason = format!("expected a group up to {}, found group={group}", groups - 1);
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
