//! OpenAI's completions of a text.

use serde_json::{Map, Value, json};

use super::{Asked, Event};
use crate::answer::Answer;
use crate::calls::Form;
use crate::refusal::Refusal;

pub(super) fn read(mut body: Map<String, Value>) -> Result<Asked, Refusal> {
    let is_number = |value: &Value| value.as_u64().is_some_and(|id| u32::try_from(id).is_ok());
    let is_sound = match body.get("prompt") {
        Some(Value::String(_)) => true,
        Some(Value::Array(ids)) => !ids.is_empty() && ids.iter().all(is_number),
        _ => false,
    };
    // A list with one text is common.
    if let Some(Value::Array(texts)) = body.get("prompt")
        && let [Value::String(text)] = texts.as_slice()
    {
        let text = text.clone();
        body.insert("prompt".to_owned(), Value::String(text));
    } else if !is_sound {
        let reason = "expected prompt to be one text, or the token ids of one".to_owned();
        return Err(Refusal::bad_request(reason));
    }
    if body.get("echo") == Some(&Value::Bool(true)) {
        return Err(Refusal::bad_request(
            "expected echo=false: the answer is only what was drawn".to_owned(),
        ));
    }
    Asked::of(Form::Text, body)
}

fn head(answer: &Answer) -> Map<String, Value> {
    let mut head = Map::new();
    head.insert("id".to_owned(), json!(format!("cmpl-{}", answer.id)));
    head.insert("object".to_owned(), json!("text_completion"));
    head.insert("created".to_owned(), json!(answer.created));
    head.insert("model".to_owned(), json!(answer.model));
    head
}

fn choice(answer: &Answer, text: &str, finish: Option<&str>) -> Value {
    json!([{ "index": 0, "text": text, "logprobs": answer.logprobs, "finish_reason": finish }])
}

pub(super) fn whole(_: &Asked, answer: &Answer) -> Value {
    let mut completion = head(answer);
    let text = answer.text.as_deref().unwrap_or_default();
    completion.insert("choices".to_owned(), choice(answer, text, Some(answer.finish_reason())));
    completion.insert("usage".to_owned(), answer.usage());
    Value::Object(completion)
}

pub(super) fn events(asked: &Asked, answer: &Answer) -> Vec<Event> {
    let mut chunk = head(answer);
    let text = answer.text.as_deref().unwrap_or_default();
    chunk.insert("choices".to_owned(), choice(answer, text, Some(answer.finish_reason())));
    let mut events = vec![Event::data(&Value::Object(chunk))];
    if asked.with_usage {
        let mut last = head(answer);
        last.insert("choices".to_owned(), json!([]));
        last.insert("usage".to_owned(), answer.usage());
        events.push(Event::data(&Value::Object(last)));
    }
    events.push(Event::done());
    events
}
