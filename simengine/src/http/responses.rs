//! `/v1/responses`: OpenAI's newer interface. As in vLLM, a request is translated into a chat completion.
//!
//! # Deliberately absent
//! Responses are not stored, so `previous_response_id` and `background` are refused. Reasoning items are
//! ignored. A stream is refused.

use std::sync::Arc;

use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::chat::{self, ChatTurn};
use super::params::parse;
use super::reply::{Handled, Refusal, json_response};
use super::{Body, Face};

/// Answers one request. Cancel-safe: when the future is dropped, the engine drops the request.
pub(crate) async fn handle(face: &Arc<Face>, header_id: Option<String>, body: &[u8]) -> Handled {
    let translated = parse::<Value>(body).and_then(|asked| Ok((to_chat(&asked)?, asked)));
    let (chat_body, asked) = match translated {
        Ok(translated) => translated,
        Err(refusal) => return Ok(refusal.response()),
    };
    if chat_body["stream"] == true || asked["background"] == true {
        let message = "stream, background: the simulated server answers responses in one piece";
        return Ok(Refusal::bad_request(Some("stream"), message).response());
    }
    match chat::run(face, header_id, &chat_body).await? {
        Ok(turn) => Ok(answer(face, &asked, &turn)),
        Err(response) => Ok(response),
    }
}

fn answer(face: &Face, asked: &Value, turn: &ChatTurn) -> Response<Body> {
    let mut output = Vec::new();
    if let Some(text) = turn.message["content"].as_str().filter(|text| !text.is_empty()) {
        output.push(json!({
            "id": format!("msg_{}", face.fresh_id()),
            "content": [{ "annotations": [], "text": text, "type": "output_text", "logprobs": null }],
            "role": "assistant",
            "status": "completed",
            "type": "message",
            "phase": null,
        }));
    }
    for call in turn.message["tool_calls"].as_array().into_iter().flatten() {
        output.push(json!({
            "arguments": call["function"]["arguments"],
            "call_id": call["id"],
            "name": call["function"]["name"],
            "type": "function_call",
            "id": format!("fc_{}", face.fresh_id()),
            "status": "completed",
        }));
    }
    let is_cut = turn.finish_reason == "length";
    let tool_choice =
        if asked["tool_choice"].is_null() { json!("auto") } else { asked["tool_choice"].clone() };
    let body = json!({
        "id": turn.id.replacen("chatcmpl-", "resp_", 1),
        "created_at": face.unix_s(),
        "incomplete_details": is_cut.then(|| json!({ "reason": "max_output_tokens" })),
        "instructions": asked["instructions"],
        "metadata": asked["metadata"],
        "model": face.server.config().model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": asked["parallel_tool_calls"].as_bool().unwrap_or(true),
        "temperature": asked["temperature"].as_f64().unwrap_or(1.0),
        "tool_choice": tool_choice,
        "tools": asked["tools"].as_array().cloned().unwrap_or_default(),
        "top_p": asked["top_p"].as_f64().unwrap_or(1.0),
        "background": false,
        "max_output_tokens": turn.max_tokens,
        "max_tool_calls": null,
        "previous_response_id": null,
        "prompt": null,
        "reasoning": null,
        "service_tier": "auto",
        "status": if is_cut { "incomplete" } else { "completed" },
        "text": null,
        "top_logprobs": null,
        "truncation": "disabled",
        "usage": {
            "input_tokens": turn.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": turn.cached_tokens,
                "cache_write_tokens": 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": turn.completion_tokens,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": turn.prompt_tokens + turn.completion_tokens,
        },
        "user": asked["user"],
        "presence_penalty": asked["presence_penalty"].as_f64().unwrap_or(0.0),
        "frequency_penalty": asked["frequency_penalty"].as_f64().unwrap_or(0.0),
        "kv_transfer_params": null,
        "ec_transfer_params": null,
        "input_messages": null,
        "output_messages": null,
    });
    json_response(StatusCode::OK, &body)
}

/// The chat completion that a request stands for.
pub(crate) fn to_chat(asked: &Value) -> Result<Value, Refusal> {
    if !asked["previous_response_id"].is_null() {
        return Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "invalid_request_error",
            Some("previous_response_id"),
            "previous_response_id is not supported by the stateless render endpoint.",
        ));
    }
    let mut messages = Vec::new();
    if let Some(instructions) = asked["instructions"].as_str().filter(|text| !text.is_empty()) {
        messages.push(json!({ "role": "system", "content": instructions }));
    }
    match &asked["input"] {
        Value::String(text) => messages.push(json!({ "role": "user", "content": text })),
        Value::Array(items) => {
            for item in items {
                put_item(&mut messages, item)?;
            }
        }
        _ => return Err(Refusal::unreadable(Some("body.input"), "Field required")),
    }
    let mut chat = Map::new();
    chat.insert("messages".to_owned(), Value::Array(messages));
    for key in [
        "model",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stop",
        "stream",
        "request_id",
        "cache_salt",
        "priority",
        "parallel_tool_calls",
        "ignore_eos",
    ] {
        if let Some(value) = asked.get(key) {
            chat.insert(key.to_owned(), value.clone());
        }
    }
    if let Some(limit) = asked["max_output_tokens"].as_u64() {
        chat.insert("max_tokens".to_owned(), json!(limit));
    }
    if let Some(tools) = asked["tools"].as_array() {
        let is_function = |tool: &&Value| tool["type"] == "function";
        chat.insert("tools".to_owned(), tools.iter().filter(is_function).map(to_chat_tool).collect());
    }
    let choice = match &asked["tool_choice"] {
        Value::Object(named) => json!({ "type": "function", "function": { "name": named.get("name") } }),
        // The `openai` package sends "auto" also without tools.
        other
            if chat
                .get("tools")
                .is_some_and(|tools| tools.as_array().is_some_and(|some| !some.is_empty())) =>
        {
            other.clone()
        }
        _ => Value::Null,
    };
    chat.insert("tool_choice".to_owned(), choice);
    Ok(Value::Object(chat))
}

fn to_chat_tool(tool: &Value) -> Value {
    json!({ "type": "function", "function": {
        "name": tool["name"],
        "description": tool["description"],
        "parameters": tool["parameters"],
        "strict": tool["strict"],
    } })
}

/// Appends an item of the input. A call, or a text that follows calls, is added to the assistant's message
/// that precedes it, if there is one.
fn put_item(messages: &mut Vec<Value>, item: &Value) -> Result<(), Refusal> {
    match item["type"].as_str().unwrap_or("message") {
        "function_call" => {
            let call = json!({
                "id": item["call_id"],
                "type": "function",
                "function": { "name": item["name"], "arguments": item["arguments"] },
            });
            match messages.last_mut().filter(|last| last["role"] == "assistant") {
                Some(last) => match last["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => last["tool_calls"] = json!([call]),
                },
                None => messages.push(json!({ "role": "assistant", "tool_calls": [call] })),
            }
        }
        "function_call_output" => messages.push(json!({
            "role": "tool",
            "tool_call_id": item["call_id"],
            "content": item["output"],
        })),
        "reasoning" => {}
        "message" if item["role"].is_string() => {
            let content = item["content"].clone();
            let joins = item["role"] == "assistant"
                && messages
                    .last()
                    .is_some_and(|last| last["role"] == "assistant" && last["content"].is_null());
            match messages.last_mut().filter(|_| joins) {
                Some(last) => last["content"] = content,
                None => messages.push(json!({ "role": item["role"], "content": content })),
            }
        }
        other => {
            let message = format!("Unsupported input item type: {other}");
            return Err(Refusal::bad_request(Some("input"), message));
        }
    }
    Ok(())
}
