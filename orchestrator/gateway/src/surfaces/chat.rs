//! OpenAI's chat completions.

use serde_json::{Map, Value, json};

use super::{Asked, Event};
use crate::answer::Answer;
use crate::calls::Form;
use crate::refusal::Refusal;

/// Words in the kinds of parts that are no text, such as `image_url`, `input_audio` and `video_embeds`.
const MEDIA: [&str; 4] = ["image", "audio", "video", "file"];

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
    if let Some(found) = messages.into_iter().flatten().find_map(media_in) {
        return Err(Refusal::bad_request(format!("expected messages of text only, found {found}")));
    }
    Asked::of(Form::Chat, body)
}

/// The kind of the first part of a message that is no text. An engine without such a kind may leave the part out
/// without a word.
fn media_in(message: &Value) -> Option<&str> {
    let parts = message.get("content").and_then(Value::as_array);
    parts.into_iter().flatten().find_map(|part| {
        // vLLM also takes parts without a type, which have one key.
        let kind = part.get("type").and_then(Value::as_str);
        let keys = part.as_object().into_iter().flat_map(|part| part.keys().map(String::as_str));
        kind.into_iter().chain(keys).find(|word| MEDIA.iter().any(|medium| word.contains(medium)))
    })
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn asked(content: Value) -> Result<Asked, Refusal> {
        let body = json!({ "messages": [{ "role": "user", "content": content }] });
        read(body.as_object().unwrap().clone())
    }

    #[test]
    fn parts_that_are_no_text_are_refused() {
        let text = json!({ "type": "text", "text": "what is in the image_url?" });
        for (part, kind) in [
            (json!({ "type": "image_url", "image_url": { "url": "data:," } }), "image_url"),
            (json!({ "type": "input_audio", "input_audio": {} }), "input_audio"),
            (json!({ "video_url": "http://host/v" }), "video_url"),
        ] {
            let refusal = format!("{:?}", asked(json!([text, part])).unwrap_err());
            assert!(refusal.contains(&format!("expected messages of text only, found {kind}")), "{refusal}");
        }
        asked(json!([text])).unwrap();
        asked(json!("what is in the image_url?")).unwrap();
    }
}
