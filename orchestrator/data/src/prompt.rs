//! Prompts: the contents of data-set rows, in the form that is sent to an engine.

use std::sync::Arc;

use rolldock_dispatch::PromptUid;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use xxhash_rust::xxh3::Xxh3;

/// The role of the message for which a plain text stands.
const USER: &str = "user";

/// The identity of a row with `occurrence` equal rows before it.
///
/// The identity is a hash of source, messages, answer and the number of equal rows before this row. It
/// therefore stays the same after shuffling, with files in another order, and with added columns. It has 64
/// bits. Among two million different rows, the probability that any two share an identity is about one in ten
/// million.
pub(crate) fn row_uid(source: &str, prompt: &PromptContent, answer: &str, occurrence: u32) -> PromptUid {
    let mut hasher = Xxh3::new();
    update_text(&mut hasher, source);
    prompt.update(&mut hasher);
    update_text(&mut hasher, answer);
    hasher.update(&occurrence.to_le_bytes());
    PromptUid(hasher.digest())
}

/// The two hashes by which rows are compared: the hash of the prompt, and the hash of prompt and answer. A text and
/// the one message of a user that it stands for are equal prompts, although their [identities](row_uid) differ.
pub(crate) fn row_hashes(prompt: &PromptContent, answer: &str) -> (u128, u128) {
    let mut hasher = Xxh3::new();
    match prompt {
        PromptContent::Text(text) => update_messages(&mut hasher, [(USER, text.as_str())].into_iter()),
        PromptContent::Messages(_) => prompt.update(&mut hasher),
    }
    let of_prompt = hasher.digest128();
    update_text(&mut hasher, answer);
    (of_prompt, hasher.digest128())
}

/// One visit to a data-set row, in the form that is sent to an engine.
///
/// Clones are cheap: they share ids and texts.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Identity of the row.
    pub uid: PromptUid,
    /// Index of the row in the data set, after duplicates were dropped.
    pub row: u64,
    /// Number of epochs before this one.
    pub visit: u32,
    /// Token ids that the engine gets, with the chat template applied.
    pub ids: Arc<[u32]>,
    /// The text of `ids`, for people and for servers that take no ids.
    pub text: Arc<str>,
    /// The messages of the row, for environments and agents. A prompt of plain text is one message of the
    /// user.
    pub messages: Arc<[Message]>,
    /// The ground truth as the data set writes it. It is never parsed as a number, because some numbers do
    /// not fit into 64 bits.
    pub answer: Arc<str>,
    /// The name of the row's data set, for example `openai/gsm8k`.
    pub source: Arc<str>,
    /// The column `extra_info.difficulty`, if it is in 0..=1. Only the simulated engine reads it.
    pub difficulty: Option<f32>,
    /// The columns that this crate does not interpret.
    pub fields: DataFields,
}

/// A row's other columns, as the text of one JSON object. Values have exactly the text of the file.
///
/// The columns are stored as text and not as a tree, because a tree would round numbers beyond 64 bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFields(Arc<str>);

impl DataFields {
    pub(crate) fn new(json: &RawValue) -> Self {
        Self(json.get().into())
    }

    /// The JSON object.
    pub fn as_json(&self) -> &str {
        &self.0
    }

    /// The value that common reward functions get as `extra_info`: the column `extra_info` if there is one,
    /// or else all of these columns.
    pub fn extra_info(&self) -> serde_json::Value {
        let mut fields: serde_json::Value = serde_json::from_str(&self.0).unwrap_or_default();
        fields.get_mut("extra_info").map(serde_json::Value::take).unwrap_or(fields)
    }
}

impl Default for DataFields {
    fn default() -> Self {
        Self("{}".into())
    }
}

impl Serialize for DataFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text of the message.
    pub content: String,
}

/// A prompt in the form of the data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PromptContent {
    /// Plain text. A chat template gets it as one message of the user.
    Text(String),
    /// A conversation.
    Messages(Vec<Message>),
}

impl PromptContent {
    /// The messages. Plain text is one message of the user.
    pub fn into_messages(self) -> Arc<[Message]> {
        match self {
            Self::Text(content) => [Message { role: USER.to_owned(), content }].into(),
            Self::Messages(messages) => messages.into(),
        }
    }

    /// Adds the prompt to a hash. Different prompts add different bytes.
    pub(crate) fn update(&self, hasher: &mut Xxh3) {
        match self {
            Self::Text(text) => {
                hasher.update(&0_u64.to_le_bytes());
                update_text(hasher, text);
            }
            Self::Messages(messages) => {
                let parts = messages.iter().map(|message| (message.role.as_str(), message.content.as_str()));
                update_messages(hasher, parts);
            }
        }
    }
}

/// Adds the roles and contents of messages to a hash.
fn update_messages<'a>(hasher: &mut Xxh3, messages: impl ExactSizeIterator<Item = (&'a str, &'a str)>) {
    hasher.update(&(messages.len() as u64).to_le_bytes());
    for (role, content) in messages {
        update_text(hasher, role);
        update_text(hasher, content);
    }
}

/// Adds a text to a hash, with its length first. Different sequences of texts then add different bytes.
pub(crate) fn update_text(hasher: &mut Xxh3, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

#[cfg(test)]
mod tests;
