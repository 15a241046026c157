//! A prompt: what a row of a data set says, and what is sent to an engine of it.

use std::sync::Arc;

use rolldock_dispatch::PromptUid;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use xxhash_rust::xxh3::Xxh3;

/// The identity of a row with `occurrence` equal rows before it.
///
/// It is a hash of what the row says (source, messages, answer) and of how many equal rows stand before it,
/// so it survives shuffling, re-ordered files and added columns. With 64 bits, two of two million different
/// rows share one with a chance of one in ten million.
pub(crate) fn row_uid(source: &str, prompt: &PromptContent, answer: &str, occurrence: u32) -> PromptUid {
    let mut hasher = Xxh3::new();
    update_text(&mut hasher, source);
    prompt.update(&mut hasher);
    update_text(&mut hasher, answer);
    hasher.update(&occurrence.to_le_bytes());
    PromptUid(hasher.digest())
}

/// One visit to a data-set row, ready to be sent.
///
/// Cheap to clone: everything long is shared.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Identity of the row.
    pub uid: PromptUid,
    /// Index of the row in the data set, after duplicates were dropped.
    pub row: u64,
    /// How many epochs came before this one.
    pub visit: u32,
    /// Token ids as the engine gets them, chat template applied.
    pub ids: Arc<[u32]>,
    /// The text that `ids` were made of, for people and for servers that take no ids.
    pub text: Arc<str>,
    /// The ground truth as the data set writes it; never a number, some do not fit 64 bits.
    pub answer: Arc<str>,
    /// Which data set the row belongs to, for example `openai/gsm8k`.
    pub source: Arc<str>,
    /// In 0..=1 where the data set says so (`extra_info.difficulty`); only the simulated engine reads it.
    pub difficulty: Option<f32>,
    /// The columns that have no meaning here.
    pub fields: DataFields,
}

/// A row's other columns: the text of one JSON object, which is exactly what the file said.
///
/// Text and not a tree, because a tree rounds numbers beyond 64 bits and nothing here reads it.
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

    /// What reward functions of the field are given: the column `extra_info` where there is one, or else all
    /// of them.
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
    /// Text.
    pub content: String,
}

/// A prompt as the data set holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PromptContent {
    /// Plain text; a chat template takes it as one message of the user.
    Text(String),
    /// A conversation.
    Messages(Vec<Message>),
}

impl PromptContent {
    /// Feeds the prompt to a hash; different prompts feed different bytes.
    pub(crate) fn update(&self, hasher: &mut Xxh3) {
        match self {
            Self::Text(text) => {
                hasher.update(&0_u64.to_le_bytes());
                update_text(hasher, text);
            }
            Self::Messages(messages) => {
                hasher.update(&(messages.len() as u64).to_le_bytes());
                for message in messages {
                    update_text(hasher, &message.role);
                    update_text(hasher, &message.content);
                }
            }
        }
    }
}

/// Length first, so that no two sequences of texts feed the same bytes.
pub(crate) fn update_text(hasher: &mut Xxh3, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

#[cfg(test)]
mod tests;
