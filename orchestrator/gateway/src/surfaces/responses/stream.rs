//! A response as a stream of numbered events.

use serde_json::{Value, json};

use super::{final_status, finished, items, response};
use crate::answer::Answer;
use crate::surfaces::{Asked, Event};

/// Numbers events in the order in which they are written.
#[derive(Default)]
struct Numbered(Vec<Event>);

impl Numbered {
    fn push(&mut self, name: &str, mut json: Value) {
        json["type"] = json!(name);
        json["sequence_number"] = json!(self.0.len());
        self.0.push(Event::named(name, &json));
    }
}

pub(in crate::surfaces) fn events(asked: &Asked, answer: &Answer) -> Vec<Event> {
    let mut events = Numbered::default();
    let begun = Value::Object(response(asked, answer, Vec::new(), "in_progress"));
    events.push("response.created", json!({ "response": begun }));
    events.push("response.in_progress", json!({ "response": begun }));
    for (index, item) in items(answer).into_iter().enumerate() {
        let mut empty = item.clone();
        empty["status"] = json!("in_progress");
        match item["type"].as_str() {
            Some("message") => {
                empty["content"] = json!([]);
                added(&mut events, index, &empty);
                text(&mut events, index, &item);
            }
            Some("function_call") => {
                empty["arguments"] = json!("");
                added(&mut events, index, &empty);
                let place = json!({ "item_id": item["id"], "output_index": index });
                let mut delta = place.clone();
                delta["delta"] = item["arguments"].clone();
                events.push("response.function_call_arguments.delta", delta);
                let mut done = place;
                done["arguments"] = item["arguments"].clone();
                done["name"] = item["name"].clone();
                events.push("response.function_call_arguments.done", done);
            }
            _ => {
                empty["content"] = json!([]);
                added(&mut events, index, &empty);
                reasoning(&mut events, index, &item);
            }
        }
        events.push("response.output_item.done", json!({ "output_index": index, "item": item }));
    }
    let name = format!("response.{}", final_status(answer));
    events.push(&name, json!({ "response": finished(asked, answer) }));
    events.0
}

fn added(events: &mut Numbered, index: usize, item: &Value) {
    events.push("response.output_item.added", json!({ "output_index": index, "item": item }));
}

fn text(events: &mut Numbered, index: usize, item: &Value) {
    let part = &item["content"][0];
    let place = json!({ "item_id": item["id"], "output_index": index, "content_index": 0 });
    let with = |key: &str, value: Value| {
        let mut json = place.clone();
        json[key] = value;
        json
    };
    let mut empty = part.clone();
    empty["text"] = json!("");
    events.push("response.content_part.added", with("part", empty));
    let mut delta = with("delta", part["text"].clone());
    delta["logprobs"] = json!([]);
    events.push("response.output_text.delta", delta);
    let mut done = with("text", part["text"].clone());
    done["logprobs"] = json!([]);
    events.push("response.output_text.done", done);
    events.push("response.content_part.done", with("part", part.clone()));
}

fn reasoning(events: &mut Numbered, index: usize, item: &Value) {
    let place = json!({ "item_id": item["id"], "output_index": index, "content_index": 0 });
    let text = item["content"][0]["text"].clone();
    let mut delta = place.clone();
    delta["delta"] = text.clone();
    events.push("response.reasoning_text.delta", delta);
    let mut done = place;
    done["text"] = text;
    events.push("response.reasoning_text.done", done);
}
