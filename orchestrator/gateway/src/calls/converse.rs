//! The fallback for servers without render, generate and derender: one call that answers with text, token ids
//! and log-probabilities.
//!
//! Such a server encodes the whole conversation itself in each turn. The gateway learns which ids the server
//! used, and cannot replace them. Such a server also reports no versions.

use serde::Deserialize;
use serde_json::Value;

use super::drawn::Choice;
use super::{CallError, Drawn, EngineCalls, Form, OTHER_BYTES, one_choice, read};

/// An answer of a server that encodes and parses by itself.
#[derive(Debug)]
pub(crate) struct Conversed {
    /// The ids of the prompt that the server used.
    pub(crate) prompt_ids: Vec<u32>,
    pub(crate) drawn: Drawn,
    /// The choice with its message, as the server wrote it.
    pub(crate) choice: Value,
}

#[derive(Deserialize)]
struct Ids {
    /// In an answer of a chat.
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
    choices: Vec<Choice>,
}

impl EngineCalls {
    /// Sends a request that asks for log-probabilities and token ids, and returns the answer. Cancel-safe: a
    /// dropped call closes its connection, and the engine then aborts the request.
    pub(crate) async fn converse(
        &self,
        base: &str,
        form: Form,
        request: &Value,
    ) -> Result<Conversed, CallError> {
        let body = self.post(base, form.path(), request, OTHER_BYTES).await?;
        let mut answer: Value = read(base, &body)?;
        let Ids { prompt_token_ids, choices } = read(base, &body)?;
        let mut of_choice = one_choice(base, choices)?;
        let prompt_ids = prompt_token_ids.or(of_choice.prompt_token_ids.take()).ok_or_else(|| {
            CallError::bad(
                base,
                "the answer has no prompt_token_ids; expected a vLLM that has return_token_ids",
            )
        })?;
        let drawn = of_choice.checked(base, self.vocab_size)?;
        Ok(Conversed { prompt_ids, drawn, choice: answer["choices"][0].take() })
    }
}
