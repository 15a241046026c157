//! Translates a request of Anthropic's protocol to a chat.

use serde_json::{Map, Value, json};

use crate::calls::Form;
use crate::refusal::Refusal;
use crate::surfaces::Asked;

/// Reads a request.
pub(in crate::surfaces) fn read(mut body: Map<String, Value>) -> Result<Asked, Refusal> {
    let mut messages = Vec::new();
    let system = body.get("system").map(text_of).transpose()?.unwrap_or_default();
    if !system.is_empty() {
        messages.push(json!({ "role": "system", "content": system }));
    }
    let Some(Value::Array(turns)) = body.remove("messages") else {
        return Err(Refusal::bad_request("expected messages, a list".to_owned()));
    };
    for turn in turns {
        match turn["role"].as_str() {
            Some("user") => user(&turn["content"], &mut messages)?,
            Some("assistant") => messages.push(assistant(&turn["content"])?),
            Some("system") => {
                messages.push(json!({ "role": "system", "content": text_of(&turn["content"])? }));
            }
            other => {
                let reason = format!("expected the role user or assistant, found {other:?}");
                return Err(Refusal::bad_request(reason));
            }
        }
    }
    if messages.is_empty() {
        return Err(Refusal::bad_request("expected at least one message".to_owned()));
    }
    let mut chat = Map::new();
    for (theirs, ours) in
        [("model", "model"), ("max_tokens", "max_tokens"), ("stop_sequences", "stop"), ("stream", "stream")]
    {
        if let Some(value) = body.get(theirs).filter(|value| !value.is_null()) {
            chat.insert(ours.to_owned(), value.clone());
        }
    }
    chat.insert("messages".to_owned(), Value::Array(messages));
    tools(&body, &mut chat)?;
    // This parameter belongs to the server, not to the protocol. Clients of the server send it as an extra
    // parameter.
    if let Some(kwargs) = body.remove("chat_template_kwargs") {
        chat.insert("chat_template_kwargs".to_owned(), kwargs);
    }
    Asked::of(Form::Chat, chat)
}

fn unknown_block(kind: Option<&str>) -> Refusal {
    Refusal::bad_request(format!(
        "expected blocks of text, thinking, tool_use or tool_result, found {}",
        kind.unwrap_or("a block without a type")
    ))
}

/// The text of a string or of blocks of text.
fn text_of(content: &Value) -> Result<String, Refusal> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => blocks
            .iter()
            .map(|block| match block["type"].as_str() {
                Some("text") => Ok(block["text"].as_str().unwrap_or_default()),
                other => Err(unknown_block(other)),
            })
            .collect(),
        other => Err(Refusal::bad_request(format!("expected a text or a list of blocks, found {other}"))),
    }
}

/// Reads a user's content. Results of tools in the content become separate messages of the chat.
fn user(content: &Value, messages: &mut Vec<Value>) -> Result<(), Refusal> {
    let Value::Array(blocks) = content else {
        messages.push(json!({ "role": "user", "content": text_of(content)? }));
        return Ok(());
    };
    let mut text = String::new();
    for block in blocks {
        match block["type"].as_str() {
            Some("text") => text.push_str(block["text"].as_str().unwrap_or_default()),
            Some("tool_result") => messages.push(json!({
                "role": "tool",
                "tool_call_id": block["tool_use_id"],
                "content": text_of(&block["content"])?,
            })),
            other => return Err(unknown_block(other)),
        }
    }
    if !text.is_empty() {
        messages.push(json!({ "role": "user", "content": text }));
    }
    Ok(())
}

fn assistant(content: &Value) -> Result<Value, Refusal> {
    let Value::Array(blocks) = content else {
        return Ok(json!({ "role": "assistant", "content": text_of(content)? }));
    };
    let (mut text, mut reasoning, mut calls) = (String::new(), None, Vec::new());
    for block in blocks {
        match block["type"].as_str() {
            Some("text") => text.push_str(block["text"].as_str().unwrap_or_default()),
            Some("thinking") => reasoning = block["thinking"].as_str(),
            Some("redacted_thinking") => {}
            Some("tool_use") => calls.push(json!({
                "id": block["id"],
                "type": "function",
                "function": { "name": block["name"], "arguments": block["input"].to_string() },
            })),
            other => return Err(unknown_block(other)),
        }
    }
    let mut message = json!({ "role": "assistant", "content": text });
    if let Some(reasoning) = reasoning {
        message["reasoning"] = json!(reasoning);
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
        if text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    Ok(message)
}

fn tools(body: &Map<String, Value>, chat: &mut Map<String, Value>) -> Result<(), Refusal> {
    let Some(Value::Array(tools)) = body.get("tools") else { return Ok(()) };
    let mut functions = Vec::new();
    for tool in tools {
        let Some(schema) = tool.get("input_schema") else {
            let reason = format!("expected tools with an input_schema, found {tool}");
            return Err(Refusal::bad_request(reason));
        };
        // The keys are in the order in which OpenAI's clients write them, because templates show the keys.
        let mut function = Map::new();
        function.insert("name".to_owned(), tool["name"].clone());
        let others = [("description", tool.get("description")), ("parameters", Some(schema))];
        for (key, value) in others.into_iter().chain([("strict", tool.get("strict"))]) {
            function.extend(value.map(|value| (key.to_owned(), value.clone())));
        }
        functions.push(json!({ "type": "function", "function": function }));
    }
    chat.insert("tools".to_owned(), Value::Array(functions));
    let Some(choice) = body.get("tool_choice") else { return Ok(()) };
    let word = match choice["type"].as_str() {
        Some("any") => json!("required"),
        Some("tool") => json!({ "type": "function", "function": { "name": choice["name"] } }),
        Some("none") => json!("none"),
        _ => json!("auto"),
    };
    chat.insert("tool_choice".to_owned(), word);
    if choice["disable_parallel_tool_use"] == json!(true) {
        chat.insert("parallel_tool_calls".to_owned(), json!(false));
    }
    Ok(())
}
