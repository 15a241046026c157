//! Reads drawn tokens with the server's own parsers: text, reasoning and tool calls.
//!
//! The parsers read the prompt from the generated answer, so the prompt's ids are sent in both places. The
//! endpoint refuses an answer without tokens, so the caller does not ask about one.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{CallError, Drawn, EngineCalls, Finish, Form, read};

/// Drawn tokens, with the request that they answer.
#[derive(Debug)]
pub(crate) struct Derender<'a> {
    pub(crate) form: Form,
    pub(crate) request_id: &'a str,
    pub(crate) model: &'a str,
    /// The request as it was rendered.
    pub(crate) request: &'a Value,
    pub(crate) prompt_ids: &'a [u32],
    pub(crate) drawn: &'a Drawn,
    /// The drawn ids that are text: without the end of the turn, which the parsers of chats would show.
    pub(crate) ids: &'a [u32],
    /// Whether the answer shall have log-probabilities.
    pub(crate) with_logprobs: bool,
}

impl EngineCalls {
    /// The completion that the drawn tokens are: the only element of its `choices`. Cancel-safe.
    pub(crate) async fn derender(&self, base: &str, asked: &Derender<'_>) -> Result<Value, CallError> {
        let body = self.post(base, &format!("{}/derender", asked.form.path()), &asked.body(base)?).await?;
        let mut completion: Value = read(base, &body)?;
        match completion["choices"].as_array_mut().map(Vec::as_mut_slice) {
            Some([choice]) => Ok(choice.take()),
            _ => Err(CallError::bad(base, "expected one choice")),
        }
    }
}

impl Derender<'_> {
    fn body(&self, base: &str) -> Result<Value, CallError> {
        let drawn = self.drawn;
        let (finish, stop) = match &drawn.finish {
            Finish::Stop(text) => ("stop", text.as_deref()),
            Finish::Length => ("length", None),
            Finish::Abort => ("abort", None),
        };
        let logprobs: Option<Value> = match &drawn.content {
            Some(content) if self.with_logprobs => Some(read(base, RawValue::get(content).as_bytes())?),
            _ => None,
        };
        let (prompt, tokens) = (self.prompt_ids.len(), self.ids.len());
        let generated = json!({
            "request_id": self.request_id,
            "model": self.model,
            "prompt_token_ids": self.prompt_ids,
            "usage": {
                "prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens,
            },
            "choices": [{
                "index": 0,
                "token_ids": self.ids,
                "finish_reason": finish,
                "stop_reason": stop,
                "logprobs": logprobs,
            }],
        });
        Ok(match self.form {
            Form::Chat => json!({
                "model": self.model,
                "generate_response": generated,
                "prompt_tokens": prompt,
                "prompt_token_ids": self.prompt_ids,
                "chat_request": self.request,
            }),
            Form::Text => json!({
                "model": self.model,
                "generate_responses": [generated],
                "prompt_tokens": [prompt],
                "prompt_token_ids": [self.prompt_ids],
                "completion_request": self.request,
            }),
        })
    }
}
