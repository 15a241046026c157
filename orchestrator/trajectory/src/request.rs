//! A request of an agent, prepared for comparison with the stored turns.

use serde_json::Value;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::TrajectoryError;
use crate::canonical::canonical;
use crate::message::Message;

/// What an agent asks a model to continue.
#[derive(Debug, Clone)]
pub struct Request {
    pub(crate) prompt: RequestPrompt,
    pub(crate) tools: Option<Value>,
    pub(crate) arguments: Option<Value>,
    pub(crate) key: u128,
    pub(crate) body: u128,
}

/// The prompt of a request.
#[derive(Debug, Clone)]
pub(crate) enum RequestPrompt {
    /// A conversation.
    Chat {
        /// The messages as the agent sent them.
        values: Vec<Value>,
        /// The messages in the form in which they are compared.
        messages: Vec<Message>,
    },
    /// A text without a template.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

impl Request {
    /// A conversation, in the form of a chat completion. Other surfaces are converted to this form first:
    /// what an assistant's message says is in `content`, `reasoning` and `tool_calls`, and minted ids are in
    /// `id`, `signature` and the `id` of each tool call.
    ///
    /// # Errors
    /// [`TrajectoryError::Message`] names the first message that is not a chat message.
    pub fn chat(messages: Vec<Value>, tools: Option<Value>) -> Result<Self, TrajectoryError> {
        let mut read = Vec::with_capacity(messages.len());
        for (index, value) in messages.iter().enumerate() {
            read.push(Message::read(value).map_err(|reason| TrajectoryError::Message { index, reason })?);
        }
        let tools = tools.filter(|list| list.as_array().is_none_or(|items| !items.is_empty()));
        Ok(Self::new(RequestPrompt::Chat { values: messages, messages: read }, tools))
    }

    /// A prompt of plain text, as `/v1/completions` takes it. The prompt continues a turn if it begins with
    /// the turn's prompt and the text that was emitted for the turn.
    pub fn text(prompt: impl Into<String>) -> Self {
        Self::new(RequestPrompt::Text(prompt.into()), None)
    }

    /// A prompt of token ids. The prompt continues a turn if it begins with the ids of the turn's path.
    pub fn ids(prompt: Vec<u32>) -> Self {
        Self::new(RequestPrompt::Ids(prompt), None)
    }

    /// Adds variables of the chat template (`chat_template_kwargs`). A request continues only turns with
    /// equal variables.
    pub fn with_arguments(mut self, arguments: Value) -> Self {
        self.arguments = Some(arguments).filter(|value| !value.is_null());
        self.key = key_of(&self.prompt, self.tools.as_ref(), self.arguments.as_ref());
        self
    }

    /// Adds the bytes of the request's body, by which [`Trajectory::retried`](crate::Trajectory::retried)
    /// finds the turn of a repeated request.
    pub fn with_body(mut self, body: &[u8]) -> Self {
        self.body = xxh3_128(body);
        self
    }

    /// A hash of all messages. No message contains the digits of this hash.
    pub(crate) fn digest(&self) -> u128 {
        let mut hasher = Xxh3::new();
        if let RequestPrompt::Chat { messages, .. } = &self.prompt {
            messages.iter().for_each(|message| hasher.update(message.json.as_bytes()));
        }
        hasher.digest128()
    }

    /// The messages as the agent sent them; empty for prompts of text or ids.
    pub fn messages(&self) -> &[Value] {
        match &self.prompt {
            RequestPrompt::Chat { values, .. } => values,
            RequestPrompt::Text(_) | RequestPrompt::Ids(_) => &[],
        }
    }

    /// The tool list, if there is one.
    pub fn tools(&self) -> Option<&Value> {
        self.tools.as_ref()
    }

    fn new(prompt: RequestPrompt, tools: Option<Value>) -> Self {
        let key = key_of(&prompt, tools.as_ref(), None);
        Self { prompt, tools, arguments: None, key, body: 0 }
    }
}

/// The hash of all that must be equal for a request to continue a turn, apart from the messages.
fn key_of(prompt: &RequestPrompt, tools: Option<&Value>, arguments: Option<&Value>) -> u128 {
    let kind = match prompt {
        RequestPrompt::Chat { .. } => "chat",
        RequestPrompt::Text(_) => "text",
        RequestPrompt::Ids(_) => "ids",
    };
    let [tools, arguments] = [tools, arguments].map(|value| value.map(canonical).unwrap_or_default());
    let mut hasher = Xxh3::new();
    for part in [kind, &tools, &arguments] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.digest128()
}
