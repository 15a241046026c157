//! A turn as agents see it, in the form that all surfaces share. For a repeated request, this form is made
//! again from the recorded turn.

use std::sync::Arc;

use rolldock_trajectory::Turn;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A tool call. The gateway chooses its id, so a later request with this id names the turn that made the
/// call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON, as the model wrote it.
    pub(crate) arguments: String,
}

/// Why a turn ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AnswerFinish {
    /// The model ended its turn.
    Stop,
    /// A stop string of the request ended the turn.
    StopString(String),
    /// The limit of tokens was reached.
    Length,
    /// The model calls tools.
    ToolCalls,
}

/// A whole turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The unique id. Each surface puts its own prefix before it.
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCall>,
    pub(crate) finish: AnswerFinish,
    pub(crate) prompt_tokens: u32,
    pub(crate) completion_tokens: u32,
    /// The log-probabilities in OpenAI's form, if the request asked for them.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) logprobs: Value,
}

impl Answer {
    /// The assistant's message in OpenAI's form.
    pub(crate) fn message(&self) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        message.insert("content".to_owned(), json!(self.text));
        if let Some(reasoning) = &self.reasoning {
            // Older and newer servers use different names for the reasoning.
            message.insert("reasoning".to_owned(), json!(reasoning));
            message.insert("reasoning_content".to_owned(), json!(reasoning));
        }
        if !self.tool_calls.is_empty() {
            let calls: Vec<Value> = self.tool_calls.iter().map(ToolCall::to_openai).collect();
            message.insert("tool_calls".to_owned(), json!(calls));
        }
        Value::Object(message)
    }

    /// The assistant's message as the forest stores it. Empty parts are left out, and each part has one name.
    pub(crate) fn said(&self) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        if let Some(text) = &self.text {
            message.insert("content".to_owned(), json!(text));
        }
        if let Some(reasoning) = &self.reasoning {
            message.insert("reasoning".to_owned(), json!(reasoning));
        }
        if !self.tool_calls.is_empty() {
            let calls: Vec<Value> = self.tool_calls.iter().map(ToolCall::to_openai).collect();
            message.insert("tool_calls".to_owned(), json!(calls));
        }
        Value::Object(message)
    }

    /// The answer to a repeated request, from the recorded turn.
    pub(crate) fn again(turn: &Turn, extra: &TurnExtra) -> Self {
        let said = turn.emitted();
        let text = |key: &str| said[key].as_str().map(str::to_owned);
        let call = |call: &Value| ToolCall {
            id: call["id"].as_str().unwrap_or_default().to_owned(),
            name: call["function"]["name"].as_str().unwrap_or_default().to_owned(),
            arguments: call["function"]["arguments"].as_str().unwrap_or_default().to_owned(),
        };
        Self {
            id: extra.id.clone(),
            created: extra.created,
            model: extra.model.clone(),
            text: text("content"),
            reasoning: text("reasoning"),
            tool_calls: said["tool_calls"].as_array().into_iter().flatten().map(call).collect(),
            finish: extra.finish.clone(),
            prompt_tokens: turn.prompt_tokens(),
            completion_tokens: turn.sampled_ids().len() as u32,
            logprobs: extra.logprobs.clone(),
        }
    }

    /// The finish reason in OpenAI's words.
    pub(crate) fn finish_reason(&self) -> &'static str {
        match self.finish {
            AnswerFinish::Stop | AnswerFinish::StopString(_) => "stop",
            AnswerFinish::Length => "length",
            AnswerFinish::ToolCalls => "tool_calls",
        }
    }

    /// The usage under the names of OpenAI's older surfaces.
    pub(crate) fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        })
    }
}

impl ToolCall {
    pub(crate) fn to_openai(&self) -> Value {
        json!({
            "id": self.id,
            "type": "function",
            "function": { "name": self.name, "arguments": self.arguments },
        })
    }
}

/// What is recorded of a turn besides its message and its tokens. `server` and `is_fallback` become columns
/// of the rows. The other fields are for the answer to a repeated request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TurnExtra {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) finish: AnswerFinish,
    /// The name of the server.
    pub(crate) server: Arc<str>,
    /// Whether the server itself encoded the prompt, because it has no endpoint that takes ids.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_fallback: bool,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) logprobs: Value,
}
