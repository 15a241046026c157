//! `json_schema`: checks that the response is JSON that a schema accepts.
//!
//! The document is the text after the last "```json", up to the closing fence. Without such a fence it is the
//! whole response. The schema comes from the configuration or, without one, from the row's ground truth.
//!
//! The keywords are a subset of JSON Schema 2020-12; [`schema`] lists them. Any other keyword is an error. If
//! it were ignored, documents that the schema forbids would be rewarded.
//!
//! # Deliberately absent
//! Formats, conditions (`if`) and references to other documents are not supported. No validation library is
//! used, because the available libraries do not limit the steps of a check. A check must end in bounded time
//! for every document that a model writes, but recursive references in branches can double the time with
//! every level of the document.

mod schema;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Score, ScoreInput, Scorer};
use crate::RewardError;
use crate::python_text::strip;

use schema::Schema;

pub use schema::{
    SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX, SCHEMA_KEYWORDS, SCHEMA_PATTERNS_MAX, SCHEMA_STEPS_MAX,
};

/// The fence that opens a block of JSON.
const FENCE_OPEN: &str = "```json";
/// The fence that closes a block.
const FENCE_CLOSE: &str = "```";

/// The options of [`JsonSchema`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JsonSchemaConfig {
    /// The schema. Without it, the ground truth of a row is the schema of that row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

/// Scores 1 when the response's document parses and matches the schema, and otherwise 0; `pred` is the text
/// of a document that parses. An invalid schema in a ground truth is an error.
#[derive(Debug)]
pub struct JsonSchema {
    schema: Option<Schema>,
}

/// Finds the document in a response, with its text.
fn document(response: &str) -> Option<(&str, Value)> {
    let Some((_, block)) = response.rsplit_once(FENCE_OPEN) else {
        let text = strip(response);
        return serde_json::from_str(text).ok().map(|value| (text, value));
    };
    // The JSON parser finds the end, so a fence inside a string does not close the block.
    let mut values = serde_json::Deserializer::from_str(block).into_iter();
    let value = values.next()?.ok()?;
    let (text, behind) = block.split_at_checked(values.byte_offset())?;
    let rest = strip(behind);
    (rest.is_empty() || rest.starts_with(FENCE_CLOSE)).then(|| (strip(text), value))
}

/// Reads the schema in a ground truth.
fn schema_of_row(ground_truth: &str) -> Result<Schema, RewardError> {
    let invalid = |reason| RewardError::invalid("ground_truth", ground_truth, reason);
    if ground_truth.len() > SCHEMA_BYTES_MAX {
        return Err(invalid(format!("a schema of more than bytes={SCHEMA_BYTES_MAX}")));
    }
    let value: Value = serde_json::from_str(ground_truth)
        .map_err(|error| invalid(format!("expected a JSON schema: {error}")))?;
    Schema::compile(&value)
}

impl JsonSchema {
    /// Compiles the schema; an error names the keyword and the reason.
    pub fn new(config: &JsonSchemaConfig) -> Result<Self, RewardError> {
        let Some(value) = &config.schema else { return Ok(Self { schema: None }) };
        let bytes = value.to_string().len();
        if bytes > SCHEMA_BYTES_MAX {
            let reason = format!("bytes={bytes} are more than {SCHEMA_BYTES_MAX}");
            return Err(RewardError::invalid("json_schema.schema", value, reason));
        }
        Ok(Self { schema: Some(Schema::compile(value)?) })
    }
}

impl Scorer for JsonSchema {
    fn name(&self) -> &'static str {
        "json_schema"
    }

    fn tail_code_points(&self) -> Option<usize> {
        None
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError> {
        let of_row = match self.schema {
            Some(_) => None,
            None => Some(schema_of_row(input.ground_truth)?),
        };
        let Some((text, value)) = document(input.response) else {
            return Ok(Score::right_or_wrong(false, None));
        };
        let schema = self.schema.as_ref().or(of_row.as_ref());
        let right = schema.is_some_and(|schema| schema.allows(&value));
        Ok(Score::right_or_wrong(right, Some(text.to_owned())))
    }
}

#[cfg(test)]
mod tests;
