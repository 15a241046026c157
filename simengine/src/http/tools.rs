//! The tools of a request, and the calls in a response. This module parses calls as vLLM's Hermes parser
//! does.
//!
//! A call is `<tool_call>`, a JSON object with `name` and `arguments`, and `</tool_call>`; the last closing
//! tag may be missing. If one of the calls is not complete, the parser takes none of them, and the whole
//! response is content.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Face;
use super::json::python_json;
use super::reply::Refusal;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A tool that a request offers.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Tool {
    function: Function,
}

/// The order of these fields is the order in which a real server prints them in a prompt.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    parameters: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

impl Tool {
    /// The tool as the chat template gets it.
    pub(crate) fn described(&self) -> Value {
        json!({ "type": "function", "function": self.function })
    }

    fn is_strict(&self) -> bool {
        self.function.strict == Some(true)
    }

    /// The two forms of a call of this tool in a grammar: with and without line breaks.
    fn tags(&self) -> [Value; 2] {
        let name = &self.function.name;
        let parameters = self.function.parameters.clone().filter(|_| self.is_strict());
        let content = json!({
            "type": "json_schema",
            "json_schema": parameters.unwrap_or(Value::Bool(true)),
            "style": "json",
            "any_order": false,
            "max_whitespace_cnt": null,
            "excludes": [],
        });
        [("\n", "\n"), ("", "")].map(|(after_open, before_close)| {
            json!({
                "type": "tag",
                "begin": format!("{OPEN}{after_open}{{\"name\": \"{name}\", \"arguments\": "),
                "content": content,
                "end": format!("}}{before_close}{CLOSE}"),
            })
        })
    }
}

/// Whether the model may, must or must not call a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    None,
    Auto,
    Required,
    Named(String),
}

/// Reads `tool_choice`. Its default is `auto` if the request has tools.
pub(crate) fn read_choice(asked: Option<&Value>, tools: &[Tool]) -> Result<ToolChoice, Refusal> {
    let choice = match asked {
        None | Some(Value::Null) if tools.is_empty() => return Ok(ToolChoice::None),
        None | Some(Value::Null) => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "none" => return Ok(ToolChoice::None),
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            other => {
                let message =
                    format!("tool_choice must be none, auto, required or a function, got {other:?}.");
                return Err(Refusal::bad_request(Some("tool_choice"), message));
            }
        },
        Some(named) => match named["function"]["name"].as_str() {
            Some(name) => ToolChoice::Named(name.to_owned()),
            None => {
                return Err(Refusal::bad_request(Some("tool_choice"), "tool_choice has no function name."));
            }
        },
    };
    if tools.is_empty() {
        return Err(Refusal::bad_request(
            Some("tool_choice"),
            "When using `tool_choice`, `tools` must be set.",
        ));
    }
    Ok(choice)
}

/// The grammar that makes a real model write valid calls, as a string of JSON. The simulated model has no use
/// for it.
pub(crate) fn structural_tag(tools: &[Tool], choice: &ToolChoice, is_parallel: bool) -> Option<String> {
    let asked = |tool: &&Tool| match choice {
        ToolChoice::Named(name) => tool.function.name == *name,
        _ => true,
    };
    let tags: Vec<Value> = tools.iter().filter(asked).flat_map(Tool::tags).collect();
    let format = match choice {
        ToolChoice::None => return None,
        ToolChoice::Auto if !tools.iter().any(Tool::is_strict) => return None,
        ToolChoice::Auto => json!({
            "type": "triggered_tags",
            "triggers": [OPEN],
            "tags": tags,
            "at_least_one": false,
            "stop_after_first": !is_parallel,
            "excludes": [],
        }),
        ToolChoice::Required | ToolChoice::Named(_) => json!({
            "type": "tags_with_separator",
            "tags": tags,
            "separator": "",
            "at_least_one": true,
            "stop_after_first": !is_parallel || *choice != ToolChoice::Required,
        }),
    };
    Some(python_json(&json!({ "type": "structural_tag", "format": format })))
}

/// A call in a response. The arguments are a string of JSON.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// The content before the calls, and the calls. Without calls, all of the text is content.
pub(crate) fn parse_calls(text: &str) -> (Option<String>, Vec<Call>) {
    let Some(start) = text.find(OPEN) else { return (Some(text.to_owned()), Vec::new()) };
    match calls_of(&text[start..]) {
        None => (Some(text.to_owned()), Vec::new()),
        Some(calls) => (Some(text[..start].to_owned()).filter(|content| !content.is_empty()), calls),
    }
}

/// All calls in a text, or `None` if one of them is not a call.
fn calls_of(text: &str) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(OPEN) {
        let body = &rest[start + OPEN.len()..];
        let (inside, after) = body.split_once(CLOSE).unwrap_or((body, ""));
        let parsed: Value = serde_json::from_str(inside).ok()?;
        let name = parsed.get("name")?.as_str()?.to_owned();
        calls.push(Call { name, arguments: python_json(parsed.get("arguments")?) });
        rest = after;
    }
    Some(calls)
}

/// The assistant's message for a response's text, and whether it has calls.
pub(crate) fn assemble(face: &Face, text: &str, choice: &ToolChoice) -> (Value, bool) {
    let (mut content, calls) = match choice {
        ToolChoice::None => (Some(text.to_owned()), Vec::new()),
        _ => parse_calls(text),
    };
    if matches!(choice, ToolChoice::Required | ToolChoice::Named(_)) {
        content = Some(content.unwrap_or_default());
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), json!("assistant"));
    message.insert("content".to_owned(), json!(content));
    for absent in ["refusal", "annotations", "audio", "function_call"] {
        message.insert(absent.to_owned(), Value::Null);
    }
    let has_calls = !calls.is_empty();
    if has_calls {
        let listed = calls.into_iter().map(|call| {
            json!({
                "id": face.fresh_id(),
                "type": "function",
                "function": { "name": call.name, "arguments": call.arguments },
            })
        });
        message.insert("tool_calls".to_owned(), listed.collect());
    }
    message.insert("reasoning".to_owned(), Value::Null);
    (Value::Object(message), has_calls)
}

#[cfg(test)]
mod tests;
