//! `json_schema`: whether the response is JSON of the asked shape.
//!
//! The document is what stands behind the last "```json", up to the fence that closes it; without such a fence it is
//! the whole response. The schema is the configuration's, or else the row's ground truth.
//!
//! The keywords are a subset of JSON Schema 2020-12; see [`schema`] for the list. A keyword outside of it is an error and
//! not ignored, since a schema that says more than is checked would reward what it forbids.
//!
//! # Deliberately absent
//! Formats, conditions (`if`), references to other documents, and a library for all of it: a check must end in bounded
//! time whatever document a model writes, and where branches refer to what they stand in, time doubles with every level
//! of the document. A validator needs a budget of steps against that, which those at hand do not have.

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

/// Opens a block of JSON.
const FENCE_OPEN: &str = "```json";
/// Closes a block.
const FENCE_CLOSE: &str = "```";

/// The options of [`JsonSchema`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JsonSchemaConfig {
    /// The schema; without one every row's ground truth is the text of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

/// 1 when the response's document parses and matches the schema, else 0; `pred` is the document's text, if it
/// parses. A schema in a ground truth that cannot be used is an error.
#[derive(Debug)]
pub struct JsonSchema {
    schema: Option<Schema>,
}

/// The response's document with its text.
fn document(response: &str) -> Option<(&str, Value)> {
    let Some((_, block)) = response.rsplit_once(FENCE_OPEN) else {
        let text = strip(response);
        return serde_json::from_str(text).ok().map(|value| (text, value));
    };
    // The parser finds the end, so that a fence within a string closes nothing.
    let mut values = serde_json::Deserializer::from_str(block).into_iter();
    let value = values.next()?.ok()?;
    let (text, behind) = block.split_at_checked(values.byte_offset())?;
    let rest = strip(behind);
    (rest.is_empty() || rest.starts_with(FENCE_CLOSE)).then(|| (strip(text), value))
}

/// The schema that a row's ground truth is.
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
    /// An error names the keyword and the reason.
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
