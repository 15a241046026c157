//! Messages in the form in which they are compared.
//!
//! An assistant's message of a request is compared with the message that was emitted: by the ids that were
//! minted for it, by its text without white space at both ends, and by the values of its arguments. Reasoning
//! may be missing, because most agents drop it. All other messages are compared by their canonical JSON.

use serde_json::{Map, Value};

use crate::canonical::canonical;

/// The names under which servers and agents put the reasoning of an assistant's message.
const REASONING: [&str; 3] = ["reasoning", "reasoning_content", "thinking"];

/// A message of a request.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// The canonical JSON.
    pub(crate) json: String,
    /// The parts of an assistant's message.
    pub(crate) assistant: Option<Assistant>,
}

/// What an assistant's message says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Assistant {
    /// The text, without white space at both ends.
    content: String,
    /// The reasoning, without white space at both ends; empty if there is none.
    reasoning: String,
    /// Name and canonical arguments of each tool call.
    calls: Vec<(String, String)>,
    /// The ids in the message, which may be minted or foreign.
    pub(crate) ids: Vec<String>,
}

impl Message {
    /// Reads a message.
    ///
    /// # Errors
    /// What is wrong with it, and what was expected.
    pub(crate) fn read(value: &Value) -> Result<Self, String> {
        let members = value.as_object().ok_or("expected an object with role and content")?;
        let role = members.get("role").and_then(Value::as_str).ok_or("expected a role, a string")?;
        let content = members.get("content").unwrap_or(&Value::Null);
        if !(content.is_null() || content.is_string() || content.is_array()) {
            return Err("expected a content that is a string, a list of parts, or null".to_owned());
        }
        let assistant = if role == "assistant" { Some(Assistant::read(members)?) } else { None };
        Ok(Self { json: canonical(&with_plain_content(members)), assistant })
    }
}

impl Assistant {
    fn read(members: &Map<String, Value>) -> Result<Self, String> {
        let text = |name: &str| members.get(name).map(content_text).unwrap_or_default().trim().to_owned();
        let reasoning = REASONING.into_iter().map(text).find(|reasoning| !reasoning.is_empty());
        let named = |name: &str| members.get(name).and_then(Value::as_str).map(str::to_owned);
        let mut ids: Vec<String> = ["id", "signature"].into_iter().filter_map(named).collect();
        let mut calls = Vec::new();
        for call in members.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            let function = call.get("function").unwrap_or(call);
            let name = function.get("name").and_then(Value::as_str);
            let name = name.ok_or("expected a name in each of tool_calls")?;
            let arguments = arguments_text(function.get("arguments").unwrap_or(&Value::Null));
            calls.push((name.to_owned(), arguments));
            ids.extend(call.get("id").and_then(Value::as_str).map(str::to_owned));
        }
        Ok(Self { content: text("content"), reasoning: reasoning.unwrap_or_default(), calls, ids })
    }

    /// Reads an emitted message from its canonical JSON.
    pub(crate) fn emitted(json: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(json).ok()?;
        Self::read(value.as_object()?).ok()
    }

    /// Whether an agent that received `self` may send it back as `given`. Ids are not compared here.
    pub(crate) fn may_return_as(&self, given: &Self) -> bool {
        self.content == given.content
            && self.calls == given.calls
            && (given.reasoning.is_empty() || self.reasoning == given.reasoning)
    }
}

/// A copy of a message. Its content becomes a string if it is missing, empty, or a list of one text.
fn with_plain_content(members: &Map<String, Value>) -> Value {
    let mut plain = members.clone();
    let single = match plain.get("content") {
        Some(Value::Array(parts)) => match parts.as_slice() {
            [part] => text_of_part(part).map(str::to_owned),
            [] => Some(String::new()),
            _ => None,
        },
        Some(Value::Null) | None => Some(String::new()),
        _ => None,
    };
    if let Some(text) = single {
        plain.insert("content".to_owned(), Value::String(text));
    }
    if plain.get("tool_calls").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        plain.remove("tool_calls");
    }
    Value::Object(plain)
}

/// The text of a part: the part itself if it is a string, or else its member `text`.
fn text_of_part(part: &Value) -> Option<&str> {
    part.as_str().or_else(|| part.get("text").and_then(Value::as_str))
}

/// The text of a content: a string, or the texts of its parts, one after the other.
fn content_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(text_of_part).collect(),
        _ => String::new(),
    }
}

/// The canonical text of a call's arguments, which are JSON in a string, or an object. A string that is not
/// JSON stays as it is, without white space at both ends.
fn arguments_text(arguments: &Value) -> String {
    let Value::String(text) = arguments else {
        return if arguments.is_null() { "{}".to_owned() } else { canonical(arguments) };
    };
    let text = text.trim();
    if text.is_empty() {
        return "{}".to_owned();
    }
    serde_json::from_str::<Value>(text).map_or_else(|_| text.to_owned(), |value| canonical(&value))
}

/// A message as servers give it to a chat template: a list of texts is one string with line feeds between the
/// texts, a missing content is empty, arguments are objects, and reasoning has the names `reasoning` and
/// `reasoning_content`.
pub(crate) fn for_template(message: &Value) -> Value {
    let Value::Object(members) = message else { return message.clone() };
    let mut prepared = members.clone();
    match prepared.get("content") {
        Some(Value::Array(parts)) => {
            let texts: Option<Vec<&str>> = parts.iter().map(text_of_part).collect();
            if let Some(texts) = texts {
                let joined = texts.join("\n");
                prepared.insert("content".to_owned(), Value::String(joined));
            }
        }
        Some(Value::String(_)) => {}
        _ => {
            prepared.insert("content".to_owned(), Value::String(String::new()));
        }
    }
    prepared.retain(|_, member| !member.is_null());
    let reasoning = REASONING.into_iter().find_map(|name| prepared.get(name).cloned());
    if let Some(reasoning) = reasoning.filter(Value::is_string) {
        prepared.insert("reasoning".to_owned(), reasoning.clone());
        prepared.insert("reasoning_content".to_owned(), reasoning);
    }
    for call in prepared.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        if let Some(object) = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
            *arguments = object;
        }
    }
    Value::Object(prepared)
}

/// A tool list as servers give it to a chat template: the members that a server knows come first, in the
/// server's order, whatever order the agent wrote them in.
pub(crate) fn tools_for_template(tools: &Value) -> Value {
    let in_order = |members: &Map<String, Value>, first: &[&str]| {
        let known = first.iter().filter_map(|name| members.get_key_value(*name));
        let others = members.iter().filter(|(name, _)| !first.contains(&name.as_str()));
        known.chain(others).map(|(name, member)| (name.clone(), member.clone())).collect::<Map<_, _>>()
    };
    let of_tool = |tool: &Value| {
        let Value::Object(members) = tool else { return tool.clone() };
        let mut ordered = in_order(members, &["type", "function"]);
        if let Some(Value::Object(function)) = ordered.get_mut("function") {
            *function = in_order(function, &["name", "description", "parameters"]);
        }
        Value::Object(ordered)
    };
    match tools {
        Value::Array(list) => list.iter().map(of_tool).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests;
