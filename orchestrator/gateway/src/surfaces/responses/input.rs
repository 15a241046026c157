//! Translates a request of OpenAI's responses to a chat.

use serde_json::{Map, Value, json};

use crate::calls::Form;
use crate::refusal::Refusal;
use crate::surfaces::Asked;

/// Keys of a request that its response repeats.
const REPEATED: [&str; 7] =
    ["instructions", "metadata", "parallel_tool_calls", "tool_choice", "tools", "max_output_tokens", "text"];

/// Reads a request.
pub(in crate::surfaces) fn read(body: Map<String, Value>) -> Result<Asked, Refusal> {
    for key in ["previous_response_id", "conversation", "prompt"] {
        if body.get(key).is_some_and(|value| !value.is_null()) {
            let reason =
                format!("{key} needs a server that keeps conversations: expected all items in input");
            return Err(Refusal::bad_request(reason));
        }
    }
    if body.get("background") == Some(&Value::Bool(true)) {
        return Err(Refusal::bad_request("expected background=false".to_owned()));
    }
    let mut messages = Vec::new();
    if let Some(instructions) = body.get("instructions").and_then(Value::as_str) {
        messages.push(json!({ "role": "system", "content": instructions }));
    }
    match body.get("input") {
        Some(Value::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(items)) => {
            let mut reader = Items { messages, reasoning: None };
            items.iter().try_for_each(|item| reader.read(item))?;
            messages = reader.messages;
        }
        _ => return Err(Refusal::bad_request("expected input, a text or a list of items".to_owned())),
    }
    if messages.is_empty() {
        return Err(Refusal::bad_request("expected at least one item of input".to_owned()));
    }
    let mut chat = Map::new();
    chat.insert("messages".to_owned(), Value::Array(messages));
    for (theirs, ours) in [
        ("model", "model"),
        ("stream", "stream"),
        ("max_output_tokens", "max_tokens"),
        ("parallel_tool_calls", "parallel_tool_calls"),
        ("chat_template_kwargs", "chat_template_kwargs"),
    ] {
        if let Some(value) = body.get(theirs).filter(|value| !value.is_null()) {
            chat.insert(ours.to_owned(), value.clone());
        }
    }
    tools(&body, &mut chat)?;
    format(&body, &mut chat);
    let mut asked = Asked::of(Form::Chat, chat)?;
    let of_request = |key: &&str| Some(((*key).to_owned(), body.get(*key)?.clone()));
    asked.extra = Value::Object(REPEATED.iter().filter_map(of_request).collect());
    Ok(asked)
}

/// Reads items into messages. Consecutive items of the assistant are one message.
struct Items {
    messages: Vec<Value>,
    /// Reasoning that belongs to the next item of the assistant.
    reasoning: Option<String>,
}

impl Items {
    fn read(&mut self, item: &Value) -> Result<(), Refusal> {
        match item["type"].as_str() {
            None | Some("message") => self.message(item),
            Some("function_call") => {
                let call = json!({
                    "id": item["call_id"],
                    "type": "function",
                    "function": { "name": item["name"], "arguments": item["arguments"] },
                });
                let message = self.assistant();
                match message["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => message["tool_calls"] = json!([call]),
                }
                Ok(())
            }
            Some("function_call_output") => {
                let content = text_of(&item["output"])?;
                let id = &item["call_id"];
                self.messages.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
                Ok(())
            }
            Some("reasoning") => {
                let parts = item["content"].as_array().into_iter().flatten();
                let text: String = parts.filter_map(|part| part["text"].as_str()).collect();
                self.reasoning = (!text.is_empty()).then_some(text);
                Ok(())
            }
            Some(other) => {
                let reason = format!(
                    "expected items of message, function_call, function_call_output or reasoning, found {other}"
                );
                Err(Refusal::bad_request(reason))
            }
        }
    }

    fn message(&mut self, item: &Value) -> Result<(), Refusal> {
        let content = text_of(&item["content"])?;
        match item["role"].as_str() {
            Some("assistant") => {
                // A message has one text, so a second text begins a new message.
                if self.open().is_some_and(|open| !open["content"].is_null()) {
                    self.begin();
                }
                self.assistant()["content"] = json!(content);
                Ok(())
            }
            Some(role @ ("user" | "system" | "developer")) => {
                let role = if role == "developer" { "system" } else { role };
                self.messages.push(json!({ "role": role, "content": content }));
                Ok(())
            }
            other => {
                let reason =
                    format!("expected the role user, assistant, system or developer, found {other:?}");
                Err(Refusal::bad_request(reason))
            }
        }
    }

    /// The message to which the assistant's next item is added: the last message, if it is the assistant's
    /// and no reasoning follows it.
    fn open(&mut self) -> Option<&mut Value> {
        let is_open = self.reasoning.is_none();
        self.messages.last_mut().filter(|last| is_open && last["role"] == json!("assistant"))
    }

    /// The assistant's message to which the next item belongs.
    fn assistant(&mut self) -> &mut Value {
        if self.open().is_none() {
            self.begin();
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    fn begin(&mut self) {
        let mut message = json!({ "role": "assistant", "content": null });
        if let Some(reasoning) = self.reasoning.take() {
            message["reasoning"] = json!(reasoning);
        }
        self.messages.push(message);
    }
}

/// The text of a string or of parts of text.
fn text_of(content: &Value) -> Result<String, Refusal> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => parts
            .iter()
            .map(|part| match part["type"].as_str() {
                Some("input_text" | "output_text" | "text") => Ok(part["text"].as_str().unwrap_or_default()),
                Some("refusal") => Ok(part["refusal"].as_str().unwrap_or_default()),
                other => {
                    let found = other.unwrap_or("a part without a type");
                    Err(Refusal::bad_request(format!("expected parts of text, found {found}")))
                }
            })
            .collect(),
        other => Ok(other.to_string()),
    }
}

fn tools(body: &Map<String, Value>, chat: &mut Map<String, Value>) -> Result<(), Refusal> {
    let tools = body.get("tools").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if tools.is_empty() {
        return Ok(());
    }
    let mut functions = Vec::new();
    for tool in tools {
        if tool["type"] != json!("function") {
            let reason = format!("expected tools of type function, found {}", tool["type"]);
            return Err(Refusal::bad_request(reason));
        }
        let mut function = Map::new();
        for key in ["name", "description", "parameters", "strict"] {
            if let Some(value) = tool.get(key).filter(|value| !value.is_null()) {
                function.insert(key.to_owned(), value.clone());
            }
        }
        functions.push(json!({ "type": "function", "function": function }));
    }
    chat.insert("tools".to_owned(), Value::Array(functions));
    match body.get("tool_choice") {
        None | Some(Value::Null) => {}
        Some(Value::String(word)) => drop(chat.insert("tool_choice".to_owned(), json!(word))),
        Some(named) => {
            let choice = json!({ "type": "function", "function": { "name": named["name"] } });
            chat.insert("tool_choice".to_owned(), choice);
        }
    }
    Ok(())
}

/// A structured output.
fn format(body: &Map<String, Value>, chat: &mut Map<String, Value>) {
    let Some(format) = body.get("text").and_then(|text| text.get("format")) else { return };
    match format["type"].as_str() {
        Some("json_object") => drop(chat.insert("response_format".to_owned(), format.clone())),
        Some("json_schema") => {
            let mut schema = format.clone();
            if let Value::Object(schema) = &mut schema {
                schema.shift_remove("type");
            }
            let wanted = json!({ "type": "json_schema", "json_schema": schema });
            chat.insert("response_format".to_owned(), wanted);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_second_text_of_the_assistant_is_a_message_of_its_own() {
        let call = json!({ "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" });
        let text = |text: &str| json!({ "role": "assistant", "content": text });
        let items = [text("one"), call.clone(), text("two"), text("three"), call];
        let Value::Object(body) = json!({ "input": items }) else { unreachable!() };
        let asked = read(body).unwrap();
        let texts_and_calls: Vec<(&Value, bool)> = asked.request["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| (&message["content"], message["tool_calls"].is_array()))
            .collect();
        let expected = [(&json!("one"), true), (&json!("two"), false), (&json!("three"), true)];
        assert_eq!(texts_and_calls, expected);
    }
}
