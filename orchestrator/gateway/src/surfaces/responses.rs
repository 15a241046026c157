//! OpenAI's responses. A request is translated to a chat (`input`), and a turn to items of output.

mod input;
mod stream;

use serde_json::{Map, Value, json};

use super::Asked;
use crate::answer::{Answer, AnswerFinish};

pub(super) use input::read;
pub(super) use stream::events;

/// The output items of a turn.
fn items(answer: &Answer) -> Vec<Value> {
    let mut items = Vec::new();
    if let Some(reasoning) = &answer.reasoning {
        items.push(json!({
            "id": format!("rs_{}", answer.id),
            "type": "reasoning",
            "summary": [],
            "content": [{ "type": "reasoning_text", "text": reasoning }],
            "status": "completed",
        }));
    }
    let text = answer.text.as_deref().unwrap_or_default();
    if !text.is_empty() || answer.tool_calls.is_empty() {
        items.push(json!({
            "id": format!("msg_{}", answer.id),
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }],
        }));
    }
    for (index, call) in answer.tool_calls.iter().enumerate() {
        items.push(json!({
            "id": format!("fc_{}_{index}", answer.id),
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }));
    }
    items
}

/// The response. `status` is the status at the beginning of a stream or at its end.
fn response(asked: &Asked, answer: &Answer, output: Vec<Value>, status: &str) -> Map<String, Value> {
    let mut response = Map::new();
    let mut set = |key: &str, value: Value| response.insert(key.to_owned(), value);
    set("id", json!(format!("resp_{}", answer.id)));
    set("object", json!("response"));
    set("created_at", json!(answer.created));
    set("status", json!(status));
    set("error", Value::Null);
    let is_cut = status == "incomplete";
    set("incomplete_details", if is_cut { json!({ "reason": "max_output_tokens" }) } else { Value::Null });
    set("model", json!(answer.model));
    set("output", Value::Array(output));
    // The protocol repeats these fields of the request.
    for (key, default) in [
        ("instructions", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("previous_response_id", Value::Null),
        ("max_output_tokens", Value::Null),
        ("text", json!({ "format": { "type": "text" } })),
    ] {
        set(key, asked.extra.get(key).filter(|value| !value.is_null()).cloned().unwrap_or(default));
    }
    set("temperature", Value::Null);
    set("top_p", Value::Null);
    response
}

fn final_status(answer: &Answer) -> &'static str {
    if answer.finish == AnswerFinish::Length { "incomplete" } else { "completed" }
}

fn finished(asked: &Asked, answer: &Answer) -> Value {
    let mut response = response(asked, answer, items(answer), final_status(answer));
    let usage = json!({
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": { "cached_tokens": 0 },
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    });
    response.insert("usage".to_owned(), usage);
    Value::Object(response)
}

pub(super) fn whole(asked: &Asked, answer: &Answer) -> Value {
    finished(asked, answer)
}
