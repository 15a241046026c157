//! Anthropic's messages. A request is translated to a chat (`input`), and a turn to blocks of content.

mod input;

use serde_json::{Value, json};

use super::Event;
use crate::answer::{Answer, AnswerFinish};

pub(super) use input::read;

/// The content blocks of a turn.
fn blocks(answer: &Answer) -> Vec<Value> {
    let mut blocks = Vec::new();
    if let Some(reasoning) = &answer.reasoning {
        // The signature names the turn, since clients send the block back unchanged.
        blocks.push(json!({ "type": "thinking", "thinking": reasoning, "signature": answer.id }));
    }
    let text = answer.text.as_deref().unwrap_or_default();
    if !text.is_empty() || answer.tool_calls.is_empty() {
        blocks.push(json!({ "type": "text", "text": text }));
    }
    for call in &answer.tool_calls {
        blocks.push(json!({
            "type": "tool_use", "id": call.id, "name": call.name, "input": input_of(&call.arguments),
        }));
    }
    blocks
}

/// The arguments as an object. The object is empty if the model wrote other JSON or no JSON.
fn input_of(arguments: &str) -> Value {
    serde_json::from_str(arguments).ok().filter(Value::is_object).unwrap_or_else(|| json!({}))
}

fn stop_reason(answer: &Answer) -> (&'static str, Option<&str>) {
    match &answer.finish {
        AnswerFinish::Stop => ("end_turn", None),
        AnswerFinish::StopString(text) => ("stop_sequence", Some(text)),
        AnswerFinish::Length => ("max_tokens", None),
        AnswerFinish::ToolCalls => ("tool_use", None),
    }
}

fn message(answer: &Answer, content: Vec<Value>, is_whole: bool) -> Value {
    let (reason, sequence) = stop_reason(answer);
    json!({
        "id": format!("msg_{}", answer.id),
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": is_whole.then_some(reason),
        "stop_sequence": sequence.filter(|_| is_whole),
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "output_tokens": if is_whole { answer.completion_tokens } else { 0 },
        },
    })
}

pub(super) fn whole(answer: &Answer) -> Value {
    message(answer, blocks(answer), true)
}

pub(super) fn events(answer: &Answer) -> Vec<Event> {
    let started = json!({ "type": "message_start", "message": message(answer, Vec::new(), false) });
    let mut events = vec![Event::named("message_start", &started)];
    for (index, block) in blocks(answer).into_iter().enumerate() {
        let mut empty = block.clone();
        let deltas = match block["type"].as_str() {
            Some("thinking") => {
                empty["thinking"] = json!("");
                empty["signature"] = json!("");
                vec![
                    json!({ "type": "thinking_delta", "thinking": block["thinking"] }),
                    json!({ "type": "signature_delta", "signature": block["signature"] }),
                ]
            }
            Some("tool_use") => {
                empty["input"] = json!({});
                vec![json!({ "type": "input_json_delta", "partial_json": block["input"].to_string() })]
            }
            _ => {
                empty["text"] = json!("");
                vec![json!({ "type": "text_delta", "text": block["text"] })]
            }
        };
        let begun = json!({ "type": "content_block_start", "index": index, "content_block": empty });
        events.push(Event::named("content_block_start", &begun));
        for delta in deltas {
            let delta = json!({ "type": "content_block_delta", "index": index, "delta": delta });
            events.push(Event::named("content_block_delta", &delta));
        }
        let ended = json!({ "type": "content_block_stop", "index": index });
        events.push(Event::named("content_block_stop", &ended));
    }
    let (reason, sequence) = stop_reason(answer);
    let delta = json!({
        "type": "message_delta",
        "delta": { "stop_reason": reason, "stop_sequence": sequence },
        "usage": { "output_tokens": answer.completion_tokens },
    });
    events.push(Event::named("message_delta", &delta));
    events.push(Event::named("message_stop", &json!({ "type": "message_stop" })));
    events
}
