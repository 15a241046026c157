//! Translates a request of OpenAI's Responses API to a chat request.

use serde_json::{Map, Value, json};

use crate::calls::Form;
use crate::refusal::Refusal;
use crate::surfaces::Asked;
use crate::surfaces::request::number;

/// Keys of a request that its response repeats.
const REPEATED: [&str; 7] =
    ["instructions", "metadata", "parallel_tool_calls", "tool_choice", "tools", "max_output_tokens", "text"];

/// Reads a request.
pub(in crate::surfaces) fn read(body: Map<String, Value>) -> Result<Asked, Refusal> {
    for key in ["previous_response_id", "conversation", "prompt"] {
        if body.get(key).is_some_and(|value| !value.is_null()) {
            let reason = format!("{key} refers to data that is not stored here: expected all items in input");
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
            reader.end_reasoning();
            messages = reader.messages;
        }
        _ => return Err(Refusal::bad_request("expected input, a text or a list of items".to_owned())),
    }
    if messages.is_empty() {
        return Err(Refusal::bad_request("expected at least one item of input".to_owned()));
    }
    // The chat request has another name for this key, so its error would name a key that the client did not send.
    number(&body, "max_output_tokens")?;
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

/// Reads items into messages. Consecutive items of the assistant become one message, until a second text or
/// reasoning begins another one.
struct Items {
    messages: Vec<Value>,
    /// Reasoning that belongs to the next item, if that is one of the assistant.
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
                self.end_reasoning();
                let content = match &item["output"] {
                    // Some clients send the value that a tool returned.
                    output @ (Value::Object(_) | Value::Number(_) | Value::Bool(_)) => output.to_string(),
                    output => text_of(output)?,
                };
                let id = &item["call_id"];
                self.messages.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
                Ok(())
            }
            Some("reasoning") => {
                let parts = item["content"].as_array().into_iter().flatten();
                let text: String = parts.filter_map(|part| part["text"].as_str()).collect();
                if !text.is_empty() {
                    self.reasoning.get_or_insert_default().push_str(&text);
                }
                Ok(())
            }
            Some(other) => {
                let reason = format!(
                    "expected type message, function_call, function_call_output or reasoning, found {other}"
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
                self.end_reasoning();
                self.messages.push(json!({ "role": role, "content": content }));
                Ok(())
            }
            other => {
                let found = other.unwrap_or("no role");
                let reason = format!("expected the role user, assistant, system or developer, found {found}");
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

    /// Makes a message of reasoning that no item of the assistant follows.
    fn end_reasoning(&mut self) {
        if self.reasoning.is_some() {
            self.begin();
        }
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
        other => {
            let reason = format!("expected a text or a list of parts of text, found {other}");
            Err(Refusal::bad_request(reason))
        }
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
        Some(other) if other["type"] != json!("function") => {
            let reason = format!("expected a tool_choice of type function, found {}", other["type"]);
            return Err(Refusal::bad_request(reason));
        }
        Some(named) => {
            let choice = json!({ "type": "function", "function": { "name": named["name"] } });
            chat.insert("tool_choice".to_owned(), choice);
        }
    }
    Ok(())
}

/// Translates `text.format`, which requests structured output, to `response_format`.
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

    fn asked(body: Value) -> Result<Asked, Refusal> {
        let Value::Object(body) = body else { unreachable!() };
        read(body)
    }

    #[test]
    fn reasoning_belongs_to_the_item_that_follows_it() {
        let reasoning = |text: &str| json!({ "type": "reasoning", "content": [{ "text": text }] });
        let text = |role: &str| json!({ "role": role, "content": role });
        let items = [
            reasoning("a"),
            reasoning("b"),
            text("assistant"),
            reasoning("c"),
            text("user"),
            text("assistant"),
            reasoning("d"),
        ];
        let chat = asked(json!({ "input": items })).unwrap();
        let expected = json!([
            { "role": "assistant", "content": "assistant", "reasoning": "ab" },
            { "role": "assistant", "content": null, "reasoning": "c" },
            { "role": "user", "content": "user" },
            { "role": "assistant", "content": "assistant" },
            { "role": "assistant", "content": null, "reasoning": "d" },
        ]);
        assert_eq!(chat.request["messages"], expected);
    }

    #[test]
    fn bad_requests_are_refused_with_the_key_that_was_sent() {
        let part = json!({ "type": "input_text", "text": "hi" });
        let tools = json!([{ "type": "function", "name": "f" }]);
        for (body, words) in [
            (json!({ "input": "hi", "max_output_tokens": 0 }), "expected max_output_tokens to be"),
            (json!({ "input": [{ "role": "user", "content": part }] }), "expected a text or a list of parts"),
            (json!({ "input": [{ "content": "hi" }] }), "found no role"),
            (
                json!({ "input": "hi", "tools": tools, "tool_choice": { "type": "allowed_tools" } }),
                "expected a tool_choice of type function, found \"allowed_tools\"",
            ),
        ] {
            let refusal = format!("{:?}", asked(body).unwrap_err());
            assert!(refusal.replace("\\\"", "\"").contains(words), "{refusal}");
        }
    }
}
