//! A template and a tokenizer that show every re-encoding: the tokenizer prefers pairs of letters, and tests
//! sample single letters, so hardly any sampled run keeps its ids when it is decoded and encoded.

use rolldock_dispatch::{FinishReason, VersionSpan};
use serde_json::{Value, json};

use crate::{Chat, Emitted, Sampled, Template, TemplateError};

/// The end of a message, one token.
pub(crate) const END: char = '.';

/// What a template does to messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Habit {
    /// It renders each message as it is.
    Plain,
    /// It drops `(...)` from an assistant's message before the last message of a user.
    DropsThoughts,
    /// It cuts an assistant's message after three letters.
    Cuts,
    /// It renders messages of the system before all others.
    Hoists,
    /// It refuses an assistant's message that does not call a tool, if results of a tool follow.
    WantsCalls,
}

/// The template.
pub(crate) struct Letters(pub(crate) Habit);

fn content(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

impl Letters {
    fn shown(&self, messages: &[Value], index: usize) -> Result<String, TemplateError> {
        let message = &messages[index];
        let role = message["role"].as_str().unwrap_or_default();
        let mut text = content(message).to_owned();
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            text.push_str(&format!("[{}]", call["function"]["name"].as_str().unwrap_or_default()));
        }
        let follows = |role: &str| messages[index + 1..].iter().any(|later| later["role"] == role);
        match self.0 {
            Habit::DropsThoughts if role == "assistant" && follows("user") => {
                if let (Some(start), Some(end)) = (text.find('('), text.find(')')) {
                    text.replace_range(start.min(end)..=end, "");
                }
            }
            Habit::Cuts if role == "assistant" => text = text.chars().take(3).collect(),
            Habit::WantsCalls
                if role == "assistant" && message.get("tool_calls").is_none() && follows("tool") =>
            {
                return Err(TemplateError("a result without a call".to_owned()));
            }
            _ => {}
        }
        let letter = role.chars().next().unwrap_or('?').to_ascii_uppercase();
        Ok(format!("{letter}:{text}{END}"))
    }
}

impl Template for Letters {
    fn render(&self, chat: &Chat<'_>) -> Result<String, TemplateError> {
        let mut text = chat.tools.map(|tools| format!("T:{tools}{END}")).unwrap_or_default();
        let mut order: Vec<usize> = (0..chat.messages.len()).collect();
        if self.0 == Habit::Hoists {
            order.sort_by_key(|index| chat.messages[*index]["role"] != "system");
        }
        for index in order {
            text.push_str(&self.shown(chat.messages, index)?);
        }
        Ok(text + if chat.add_generation_prompt { "A:" } else { "" })
    }

    /// Two lower-case letters are one token.
    fn encode(&self, text: &str) -> Result<Vec<u32>, TemplateError> {
        let letters: Vec<char> = text.chars().collect();
        let mut ids = Vec::new();
        let mut at = 0;
        while at < letters.len() {
            match letters[at..] {
                [one, other, ..] if one.is_ascii_lowercase() && other.is_ascii_lowercase() => {
                    ids.push(1_000_000 + u32::from(one) * 1_000 + u32::from(other));
                    at += 2;
                }
                _ => {
                    ids.push(u32::from(letters[at]));
                    at += 1;
                }
            }
        }
        Ok(ids)
    }

    fn decode(&self, ids: &[u32]) -> String {
        let letter = |id: u32| char::from_u32(id).unwrap_or('?');
        let text = |id: &u32| match id.checked_sub(1_000_000) {
            Some(pair) => vec![letter(pair / 1_000), letter(pair % 1_000)],
            None => vec![letter(*id)],
        };
        ids.iter().flat_map(text).collect()
    }

    fn is_end(&self, id: u32) -> bool {
        id == u32::from(END)
    }
}

/// One token for each letter. A token's log-probability shows its position, and all tokens have one version.
pub(crate) fn sampled(text: &str, version: u32) -> Sampled {
    let ids: Vec<u32> = text.chars().map(u32::from).collect();
    let tokens = ids.len() as u32;
    Sampled {
        logprobs: (0..tokens).map(|position| -(position as f32) / 8.0).collect(),
        version_spans: vec![VersionSpan { version: version.to_string().into(), start: 0, end: tokens }],
        versions_reported: true,
        finish_reason: if text.ends_with(END) { FinishReason::Stop } else { FinishReason::Length },
        ids,
    }
}

/// The answer for a sampled text: the text without its end.
pub(crate) fn answer(text: &str) -> Emitted {
    Emitted::text(text.trim_end_matches(END))
}

pub(crate) fn says(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}
