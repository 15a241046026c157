//! Reads drawn tokens with the server's own parsers: text, reasoning and tool calls.
//!
//! The parsers read the prompt from the generated answer, so the body has the prompt's ids twice: in a field
//! of their own and in the generated answer. The endpoint refuses an answer without tokens, so the caller
//! does not send such an answer.

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{CallError, Drawn, EngineCalls, Finish, Form, OTHER_BYTES, read};

/// Maximum number of bytes of an id and a comma, because a vocabulary has fewer than ten million tokens.
const ID_BYTES: usize = 8;

/// Drawn tokens, with the request that they answer.
#[derive(Debug)]
pub(crate) struct Derender<'a> {
    pub(crate) form: Form,
    pub(crate) request_id: &'a str,
    pub(crate) model: &'a str,
    /// The request as it was rendered.
    pub(crate) request: &'a RawValue,
    pub(crate) prompt_tokens: usize,
    /// The ids of the prompt, serialized as JSON.
    pub(crate) prompt_ids: &'a RawValue,
    pub(crate) drawn: &'a Drawn,
    /// The drawn ids without the end of the turn, which the parsers of chats would show as text.
    pub(crate) ids: &'a [u32],
    /// Whether the answer shall have log-probabilities.
    pub(crate) with_logprobs: bool,
}

/// The body for a chat. The ids of the prompt are serialized once, for both fields of this body and for
/// `generate`.
#[derive(Serialize)]
struct OfChat<'a> {
    model: &'a str,
    generate_response: Generated<'a>,
    prompt_tokens: usize,
    prompt_token_ids: &'a RawValue,
    chat_request: &'a RawValue,
}

/// The body for a text.
#[derive(Serialize)]
struct OfText<'a> {
    model: &'a str,
    generate_responses: [Generated<'a>; 1],
    prompt_tokens: [usize; 1],
    prompt_token_ids: [&'a RawValue; 1],
    completion_request: &'a RawValue,
}

/// The answer of `generate`, as the parsers read it.
#[derive(Serialize)]
struct Generated<'a> {
    request_id: &'a str,
    model: &'a str,
    prompt_token_ids: &'a RawValue,
    usage: Usage,
    choices: [Choice<'a>; 1],
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    token_ids: &'a [u32],
    finish_reason: &'static str,
    stop_reason: Option<&'a str>,
    logprobs: Option<&'a RawValue>,
}

impl EngineCalls {
    /// Returns the completion of the drawn tokens: the only element of the answer's `choices`. Cancel-safe.
    pub(crate) async fn derender(&self, base: &str, asked: &Derender<'_>) -> Result<Value, CallError> {
        let path = format!("{}/derender", asked.form.path());
        let body = match asked.form {
            Form::Chat => self.post(base, &path, &asked.of_chat(), asked.bytes()).await?,
            Form::Text => self.post(base, &path, &asked.of_text(), asked.bytes()).await?,
        };
        let mut completion: Value = read(base, &body)?;
        match completion["choices"].as_array_mut().map(Vec::as_mut_slice) {
            Some([choice]) => Ok(choice.take()),
            choices => {
                let found = choices.map_or(0, |choices| choices.len());
                Err(CallError::bad(base, &format!("expected one choice, found {found}")))
            }
        }
    }
}

impl Derender<'_> {
    /// The approximate number of bytes of the body.
    fn bytes(&self) -> usize {
        let logprobs = self.logprobs().map_or(0, |written| written.get().len());
        let ids = 2 * self.prompt_ids.get().len() + ID_BYTES * self.ids.len();
        ids + logprobs + self.request.get().len() + OTHER_BYTES
    }

    fn logprobs(&self) -> Option<&RawValue> {
        self.drawn.content.as_deref().filter(|_| self.with_logprobs)
    }

    fn of_chat(&self) -> OfChat<'_> {
        OfChat {
            model: self.model,
            generate_response: self.generated(),
            prompt_tokens: self.prompt_tokens,
            prompt_token_ids: self.prompt_ids,
            chat_request: self.request,
        }
    }

    fn of_text(&self) -> OfText<'_> {
        OfText {
            model: self.model,
            generate_responses: [self.generated()],
            prompt_tokens: [self.prompt_tokens],
            prompt_token_ids: [self.prompt_ids],
            completion_request: self.request,
        }
    }

    fn generated(&self) -> Generated<'_> {
        let (finish_reason, stop_reason) = match &self.drawn.finish {
            Finish::Stop(text) => ("stop", text.as_deref()),
            Finish::Length => ("length", None),
            Finish::Abort => ("abort", None),
        };
        let (prompt_tokens, completion_tokens) = (self.prompt_tokens, self.ids.len());
        let total_tokens = prompt_tokens + completion_tokens;
        Generated {
            request_id: self.request_id,
            model: self.model,
            prompt_token_ids: self.prompt_ids,
            usage: Usage { prompt_tokens, completion_tokens, total_tokens },
            choices: [Choice {
                index: 0,
                token_ids: self.ids,
                finish_reason,
                stop_reason,
                logprobs: self.logprobs(),
            }],
        }
    }
}
