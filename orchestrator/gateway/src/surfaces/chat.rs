//! OpenAI's chat completions.

use serde_json::{Map, Value, json};

use super::{Asked, Event};
use crate::answer::Answer;
use crate::calls::Form;
use crate::refusal::Refusal;

pub(super) fn read(body: Map<String, Value>) -> Result<Asked, Refusal> {
    let messages = body.get("messages").and_then(Value::as_array);
    if messages.is_none_or(|messages| messages.is_empty() || !messages.iter().all(Value::is_object)) {
        let reason = "expected messages, a list of at least one object".to_owned();
        return Err(Refusal::bad_request(reason));
    }
    if body.contains_key("functions") || body.contains_key("function_call") {
        let reason = "functions are the older form of tools: expected tools and tool_choice".to_owned();
        return Err(Refusal::bad_request(reason));
    }
    Asked::of(Form::Chat, body)
}

fn head(answer: &Answer, object: &str) -> Map<String, Value> {
    let mut head = Map::new();
    head.insert("id".to_owned(), json!(format!("chatcmpl-{}", answer.id)));
    head.insert("object".to_owned(), json!(object));
    head.insert("created".to_owned(), json!(answer.created));
    head.insert("model".to_owned(), json!(answer.model));
    head
}

pub(super) fn whole(answer: &Answer) -> Value {
    let mut completion = head(answer, "chat.completion");
    let choice = json!({
        "index": 0,
        "message": answer.message(),
        "logprobs": answer.logprobs,
        "finish_reason": answer.finish_reason(),
    });
    completion.insert("choices".to_owned(), json!([choice]));
    completion.insert("usage".to_owned(), answer.usage());
    Value::Object(completion)
}

pub(super) fn events(asked: &Asked, answer: &Answer) -> Vec<Event> {
    let chunk = |delta: Value, logprobs: &Value, finish: Option<&str>| {
        let mut chunk = head(answer, "chat.completion.chunk");
        let choice = json!({ "index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish });
        chunk.insert("choices".to_owned(), json!([choice]));
        if asked.with_usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        Event::data(&Value::Object(chunk))
    };
    let mut events = vec![chunk(json!({ "role": "assistant", "content": "" }), &Value::Null, None)];
    if let Some(reasoning) = &answer.reasoning {
        let delta = json!({ "reasoning": reasoning, "reasoning_content": reasoning });
        events.push(chunk(delta, &Value::Null, None));
    }
    if let Some(text) = answer.text.as_ref().filter(|text| !text.is_empty()) {
        events.push(chunk(json!({ "content": text }), &answer.logprobs, None));
    }
    for (index, call) in answer.tool_calls.iter().enumerate() {
        let mut call = call.to_openai();
        call["index"] = json!(index);
        events.push(chunk(json!({ "tool_calls": [call] }), &Value::Null, None));
    }
    events.push(chunk(json!({}), &Value::Null, Some(answer.finish_reason())));
    if asked.with_usage {
        let mut last = head(answer, "chat.completion.chunk");
        last.insert("choices".to_owned(), json!([]));
        last.insert("usage".to_owned(), answer.usage());
        events.push(Event::data(&Value::Object(last)));
    }
    events.push(Event::done());
    events
}
