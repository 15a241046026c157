//! Draws tokens. The request has the token ids of the prompt, and the answer has those of the turn.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::drawn::Choice;
use super::{CallError, Drawn, EngineCalls, OTHER_BYTES, one_choice, read};

/// A request for the tokens of one turn.
#[derive(Debug, Serialize)]
pub(crate) struct Generate<'a> {
    pub(crate) request_id: &'a str,
    pub(crate) model: &'a str,
    /// The token ids of the prompt, as a JSON list.
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
    /// Draws the tokens of a turn. Cancel-safe: a dropped call closes its connection, and the engine then aborts the
    /// request.
    pub(crate) async fn generate(&self, base: &str, request: &Generate<'_>) -> Result<Drawn, CallError> {
        let bytes = request.token_ids.get().len() + OTHER_BYTES;
        let body = self.post(base, "/inference/v1/generate", request, bytes).await?;
        let Answer { choices } = read(base, &body)?;
        one_choice(base, choices)?.checked(base, self.vocab_size)
    }
}
