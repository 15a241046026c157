//! Writes a job as a question, and reads an answer as a score.
//!
//! A question is `{"id", "data_source", "solution_str", "ground_truth", "extra_info", "prompt"}`, with the
//! names of verl's `compute_score`. An answer is a number, a bool, an object with a score, or an object with
//! an error. `{"score": x}` may also have `"acc"` (0 to 1, or a bool), `"pred"` and `"parts"` (numbers by
//! name, like those of a rubric). `{"error": "why"}` also has `"unavailable": true` if the reason is outside
//! of the sample. Other keys are ignored. If an answer has no `acc`, a score from 0 to 1 is also the `acc`.
//! For other scores the `acc` is 1 if the score is positive, and otherwise 0.

use serde_json::{Value, json};

use super::RewardJob;
use crate::invariants::is_finite_in_32_bits;
use crate::scorer::{PART_NAME_BYTES_MAX, PARTS_MAX};
use crate::{Parts, RewardError, Score};

/// Maximum number of characters of an answer that an error quotes.
pub(super) const QUOTE_CHARS_MAX: usize = 200;
/// Maximum number of characters that are kept of a prediction or of an error message. They are shown to
/// people and never scored.
const PRED_CHARS_MAX: usize = 1000;
/// Maximum number of bytes of a code point in UTF-8.
const CHAR_BYTES_MAX: usize = 4;

/// The question that asks for the score of `job`.
pub(super) fn question(id: u64, job: &RewardJob) -> Value {
    json!({
        "id": id,
        "data_source": &*job.data_source,
        "solution_str": &*job.response,
        "ground_truth": &*job.ground_truth,
        "extra_info": &*job.extra,
        "prompt": &*job.prompt,
    })
}

/// Reads a score from the bytes of an answer; `what` names the runner in errors.
pub(super) fn read_score(what: &str, bytes: &[u8]) -> Result<Score, RewardError> {
    let value = read_json(what, bytes)?;
    score_of(what, &value)
}

/// Parses the bytes of an answer.
pub(super) fn read_json(what: &str, bytes: &[u8]) -> Result<Value, RewardError> {
    serde_json::from_slice(bytes)
        .map_err(|error| nonsense(what, format!("expected the answer to be JSON ({error})"), bytes))
}

/// Reads a score from a parsed answer.
pub(super) fn score_of(what: &str, value: &Value) -> Result<Score, RewardError> {
    let wrong = |reason: &str| nonsense(what, reason.to_owned(), value.to_string().as_bytes());
    let Value::Object(fields) = value else {
        let score = number_of(value).ok_or_else(|| {
            wrong("expected a finite number of 32 bits or an object with \"score\" or \"error\"")
        })?;
        return Ok(Score { score, acc: acc_of(score), pred: None, ..Score::default() });
    };
    if let Some(reason) = fields.get("error").filter(|reason| !reason.is_null()) {
        let reason = first_chars(reason.as_str().unwrap_or(&reason.to_string()), PRED_CHARS_MAX);
        let what = what.to_owned();
        return Err(match fields.get("unavailable") {
            Some(Value::Bool(true)) => RewardError::Unavailable { what, reason },
            _ => RewardError::Raised { what, reason },
        });
    }
    let score = fields.get("score").ok_or_else(|| wrong("expected \"score\" or \"error\""))?;
    let score =
        number_of(score).ok_or_else(|| wrong("expected \"score\" to be a finite number of 32 bits"))?;
    let acc = match fields.get("acc") {
        None | Some(Value::Null) => acc_of(score),
        Some(acc) => number_of(acc)
            .filter(|acc| (0.0..=1.0).contains(acc))
            .ok_or_else(|| wrong("expected \"acc\" to be a number from 0 to 1"))?,
    };
    let pred = match fields.get("pred") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(first_chars(text, PRED_CHARS_MAX)),
        Some(other) => Some(first_chars(&other.to_string(), PRED_CHARS_MAX)),
    };
    let parts = parts_of(fields.get("parts")).ok_or_else(|| {
        let names =
            format!("at most {PARTS_MAX} finite numbers by names of 1 to {PART_NAME_BYTES_MAX} bytes");
        wrong(&format!("expected \"parts\" to be {names}"))
    })?;
    Ok(Score { score, acc, pred, parts, ..Score::default() })
}

fn parts_of(parts: Option<&Value>) -> Option<Parts> {
    let Some(parts) = parts.filter(|parts| !parts.is_null()) else { return Some(Parts::new()) };
    let parts = parts.as_object().filter(|parts| parts.len() <= PARTS_MAX)?;
    let is_name = |name: &String| (1..=PART_NAME_BYTES_MAX).contains(&name.len());
    let read = |(name, part): (&String, &Value)| {
        number_of(part).filter(|_| is_name(name)).map(|part| (name.as_str().into(), part))
    };
    parts.iter().map(read).collect()
}

/// The error of an invalid answer; `reason` says what was expected.
pub(super) fn nonsense(what: &str, reason: String, bytes: &[u8]) -> RewardError {
    RewardError::Nonsense { what: what.to_owned(), reason, quote: quote(bytes) }
}

/// The beginning of `bytes` as text.
pub(super) fn quote(bytes: &[u8]) -> String {
    let enough = &bytes[..bytes.len().min(QUOTE_CHARS_MAX * CHAR_BYTES_MAX)];
    first_chars(&String::from_utf8_lossy(enough), QUOTE_CHARS_MAX)
}

/// The `acc` of an answer that has only a score.
pub(super) fn acc_of(score: f64) -> f64 {
    match (0.0..=1.0).contains(&score) {
        true => score,
        false => f64::from(score > 0.0),
    }
}

/// The first `count` code points of `text`.
pub(super) fn first_chars(text: &str, count: usize) -> String {
    text.chars().take(count).collect()
}

fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(right) => Some(f64::from(*right)),
        other => other.as_f64().filter(|number| is_finite_in_32_bits(*number)),
    }
}

#[cfg(test)]
mod tests;
