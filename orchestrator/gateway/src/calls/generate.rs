//! Draws tokens: token ids in, token ids out.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::drawn::Choice;
use super::{CallError, Drawn, EngineCalls, OTHER_BYTES, read};

/// A request for the tokens of one turn.
#[derive(Debug, Serialize)]
pub(crate) struct Generate<'a> {
    pub(crate) request_id: &'a str,
    pub(crate) model: &'a str,
    /// The ids, serialized as JSON.
    pub(crate) token_ids: &'a RawValue,
    pub(crate) sampling_params: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(crate) reasoning_ended: &'a Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(crate) reasoning_parser_kwargs: &'a Value,
    /// Only requests with the same salt share a prefix cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache_salt: Option<&'a str>,
}

#[derive(Deserialize)]
struct Answer {
    choices: Vec<Choice>,
}

impl EngineCalls {
    /// Draws the tokens of a turn. Cancel-safe: a dropped call closes the connection, and the engine stops.
    pub(crate) async fn generate(&self, base: &str, request: &Generate<'_>) -> Result<Drawn, CallError> {
        let bytes = request.token_ids.get().len() + OTHER_BYTES;
        let body = self.post(base, "/inference/v1/generate", request, bytes).await?;
        let Answer { mut choices } = read(base, &body)?;
        let choice = choices.pop().filter(|_| choices.is_empty());
        choice.ok_or_else(|| CallError::bad(base, "expected one choice"))?.checked(base)
    }
}
