//! The chat template and the tokenizer of a model, as a trajectory needs them.

use serde_json::Value;

use crate::TemplateError;

/// A conversation for a chat template.
#[derive(Debug, Clone, Copy)]
pub struct Chat<'a> {
    /// The messages, as objects with at least `role` and `content`.
    pub messages: &'a [Value],
    /// The tool list of the request, if it has one.
    pub tools: Option<&'a Value>,
    /// Further variables of the template (`chat_template_kwargs`), as an object.
    pub arguments: Option<&'a Value>,
    /// Whether the text ends where the assistant's response begins.
    pub add_generation_prompt: bool,
}

/// Renders conversations and converts between text and token ids, as the model's servers do.
pub trait Template: Send + Sync {
    /// The text of a conversation.
    ///
    /// # Errors
    /// The template refuses the conversation.
    fn render(&self, chat: &Chat<'_>) -> Result<String, TemplateError>;

    /// The ids of a text, without special tokens before or after it. Special tokens that the text names
    /// become their ids.
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    fn encode(&self, text: &str) -> Result<Vec<u32>, TemplateError>;

    /// The text of ids with their special tokens. Unknown ids and broken characters are never an error.
    fn decode(&self, ids: &[u32]) -> String;

    /// Whether the id ends a response of the model (an end-of-sequence token).
    fn is_end(&self, id: u32) -> bool;
}
