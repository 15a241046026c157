//! `/v1/messages`: Anthropic's interface. As in vLLM, a request is translated into a chat completion.
//!
//! # Deliberately absent
//! Images, documents and thinking are ignored. A stream is refused.

use std::sync::Arc;

use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::chat::{self, ChatTurn};
use super::json::python_json;
use super::params::parse;
use super::reply::{Handled, Refusal, json_response};
use super::{Body, Face};

/// Answers one request. Cancel-safe: when the future is dropped, the engine drops the request.
pub(crate) async fn handle(face: &Arc<Face>, header_id: Option<String>, body: &[u8]) -> Handled {
    let chat_body = match parse::<Value>(body).and_then(|asked| to_chat(&asked)) {
        Ok(chat_body) => chat_body,
        Err(refusal) => return Ok(refusal.response()),
    };
    if chat_body["stream"] == true {
        let message = "stream: the simulated server streams only completions and chat completions";
        return Ok(Refusal::bad_request(Some("stream"), message).response());
    }
    match chat::run(face, header_id, &chat_body).await? {
        Ok(turn) => Ok(answer(face, &turn)),
        Err(response) => Ok(response),
    }
}

fn answer(face: &Face, turn: &ChatTurn) -> Response<Body> {
    let message = &turn.message;
    let mut content = Vec::new();
    if let Some(text) = message["content"].as_str().filter(|text| !text.is_empty()) {
        content.push(json!({ "type": "text", "text": text }));
    }
    let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    for call in calls {
        let arguments = call["function"]["arguments"].as_str().unwrap_or("{}");
        content.push(json!({
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": serde_json::from_str::<Value>(arguments).unwrap_or_default(),
        }));
    }
    if content.is_empty() {
        content.push(json!({ "type": "text", "text": "" }));
    }
    let mut body = json!({
        "id": turn.id,
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": face.server.config().model,
    });
    let (reason, stop) = match (turn.finish_reason, turn.stop.as_deref()) {
        ("length", _) => (Some("max_tokens"), None),
        ("abort", _) => (None, None),
        _ if !calls.is_empty() => (Some("tool_use"), None),
        (_, Some(stop)) => (Some("stop_sequence"), Some(stop)),
        _ => (Some("end_turn"), None),
    };
    // vLLM leaves out fields without a value.
    if let Some(reason) = reason {
        body["stop_reason"] = json!(reason);
    }
    if let Some(stop) = stop {
        body["stop_sequence"] = json!(stop);
    }
    body["usage"] = json!({
        "input_tokens": turn.prompt_tokens.saturating_sub(turn.cached_tokens),
        "output_tokens": turn.completion_tokens,
        "cache_read_input_tokens": turn.cached_tokens,
    });
    json_response(StatusCode::OK, &body)
}

/// The chat completion that a request stands for.
pub(crate) fn to_chat(asked: &Value) -> Result<Value, Refusal> {
    let Some(turns) = asked["messages"].as_array() else {
        return Err(Refusal::unreadable(Some("body.messages"), "Field required"));
    };
    let Some(max_tokens) = asked["max_tokens"].as_u64() else {
        return Err(Refusal::unreadable(Some("body.max_tokens"), "Field required"));
    };
    let mut messages = Vec::new();
    let system = text_of(&asked["system"], "");
    if !system.is_empty() {
        messages.push(json!({ "role": "system", "content": system }));
    }
    for turn in turns {
        put_turn(&mut messages, turn);
    }
    let mut chat = Map::new();
    chat.insert("messages".to_owned(), Value::Array(messages));
    chat.insert("max_tokens".to_owned(), json!(max_tokens));
    chat.insert("max_completion_tokens".to_owned(), json!(max_tokens));
    for key in ["model", "temperature", "top_p", "top_k", "stream", "cache_salt"] {
        if let Some(value) = asked.get(key) {
            chat.insert(key.to_owned(), value.clone());
        }
    }
    if let Some(stops) = asked.get("stop_sequences") {
        chat.insert("stop".to_owned(), stops.clone());
    }
    if let Some(tools) = asked["tools"].as_array() {
        chat.insert("tools".to_owned(), tools.iter().map(to_chat_tool).collect());
    }
    let choice = &asked["tool_choice"];
    if !choice.is_null() {
        let parallel = !choice["disable_parallel_tool_use"].as_bool().unwrap_or(false);
        chat.insert("parallel_tool_calls".to_owned(), json!(parallel));
        let translated = match choice["type"].as_str() {
            Some("any") => json!("required"),
            Some("tool") => json!({ "type": "function", "function": { "name": choice["name"] } }),
            Some(same) => json!(same),
            None => Value::Null,
        };
        chat.insert("tool_choice".to_owned(), translated);
    }
    Ok(Value::Object(chat))
}

fn to_chat_tool(tool: &Value) -> Value {
    json!({ "type": "function", "function": {
        "name": tool["name"],
        "description": tool["description"],
        "parameters": tool["input_schema"],
        "strict": tool["strict"],
    } })
}

/// Appends the messages of one turn. Each result of a tool becomes a message of its own, before the text of
/// its turn.
fn put_turn(messages: &mut Vec<Value>, turn: &Value) {
    let Some(blocks) = turn["content"].as_array() else {
        messages.push(json!({ "role": turn["role"], "content": turn["content"] }));
        return;
    };
    let mut texts = Vec::new();
    let mut calls = Vec::new();
    for block in blocks {
        match block["type"].as_str() {
            Some("text") if block["text"] != "" => {
                texts.push(json!({ "type": "text", "text": block["text"] }))
            }
            Some("tool_use") => calls.push(json!({
                "id": block["id"],
                "type": "function",
                "function": { "name": block["name"], "arguments": python_json(&block["input"]) },
            })),
            Some("tool_result") => messages.push(json!({
                "role": "tool",
                "tool_call_id": block["tool_use_id"],
                "content": text_of(&block["content"], "\n"),
            })),
            _ => {}
        }
    }
    if turn["role"] == "user" && texts.is_empty() {
        return;
    }
    let mut message = json!({ "role": turn["role"] });
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    if !texts.is_empty() {
        message["content"] = Value::Array(texts);
    }
    messages.push(message);
}

/// A text, or the texts of a list of blocks.
fn text_of(content: &Value, separator: &str) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            texts.join(separator)
        }
        _ => String::new(),
    }
}
