//! Asks an engine how it would run a request: the token ids, and the sampling parameters with every default
//! written out and with the grammars of tools.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{CallError, EngineCalls, Form, OTHER_BYTES, read};

/// A request as the engine would run it.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Rendered {
    /// The engine's own encoding of the request.
    pub(crate) token_ids: Vec<u32>,
    /// The parameters for [`generate`](EngineCalls::generate).
    pub(crate) sampling_params: Map<String, Value>,
    /// Whether the prompt ends after the model's reasoning. It is passed on to `generate`.
    #[serde(default)]
    pub(crate) reasoning_ended: Value,
    /// Arguments of the reasoning parser. They are passed on to `generate`.
    #[serde(default)]
    pub(crate) reasoning_parser_kwargs: Value,
    /// Non-null if the prompt has parts that are not text.
    #[serde(default)]
    features: Value,
}

impl Rendered {
    /// The result for a prompt whose ids and parameters are already known. It has only the parameters.
    pub(crate) fn of_params(sampling_params: Map<String, Value>) -> Self {
        Self { sampling_params, ..Self::default() }
    }
}

impl EngineCalls {
    /// Renders a request. Cancel-safe.
    ///
    /// # Errors
    /// [`CallError::Refused`] for a prompt with images or other parts that are not text, because a later turn
    /// could not continue such a prompt by its ids.
    pub(crate) async fn render(
        &self,
        base: &str,
        form: Form,
        request: &(impl Serialize + ?Sized),
    ) -> Result<Rendered, CallError> {
        let path = format!("{}/render", form.path());
        let body = self.post(base, &path, request, OTHER_BYTES).await?;
        let rendered = match form {
            Form::Chat => read::<Rendered>(base, &body)?,
            Form::Text => {
                let mut prompts: Vec<Rendered> = read(base, &body)?;
                let last = prompts.pop().filter(|_| prompts.is_empty());
                last.ok_or_else(|| CallError::bad(base, "expected one rendered prompt"))?
            }
        };
        if !rendered.features.is_null() {
            let reason = "expected messages of text only, found images or other parts".to_owned();
            return Err(CallError::Refused { server: base.to_owned(), status: 400, reason });
        }
        Ok(rendered)
    }
}
