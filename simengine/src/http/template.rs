//! The chat template of the simulated model: ChatML, with tools in the form that Qwen's models use.
//!
//! The template of a real server gets the list of tools, and the arguments of earlier calls, as Python
//! objects. The template prints these objects with Python's `json.dumps`. This module prints the same bytes,
//! except for a few numbers: it prints `1e-7` where Python prints `1e-07`.
//!
//! # Deliberately absent
//! There is no reasoning: the reasoning of an earlier turn is not part of a prompt.

use serde::Deserialize;
use serde_json::Value;

use super::json::python_json;
use super::tools::Tool;

/// A turn of a conversation.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Message {
    role: String,
    #[serde(default)]
    content: Option<Content>,
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
}

/// A text, or a list of parts. Parts without text are ignored.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Clone, Deserialize)]
struct Part {
    #[serde(default)]
    text: Option<String>,
}

/// A call of a tool in an earlier turn.
#[derive(Debug, Clone, Deserialize)]
struct ToolCall {
    function: CalledFunction,
}

#[derive(Debug, Clone, Deserialize)]
struct CalledFunction {
    name: String,
    #[serde(default)]
    arguments: Value,
}

const TOOLS_HEAD: &str = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are \
                          provided with function signatures within <tools></tools> XML tags:\n<tools>";
const TOOLS_TAIL: &str = "\n</tools>\n\nFor each function call, return a json object with function name and \
                          arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": \
                          <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n";

/// The prompt of a conversation. With `add_generation_prompt` it ends in the beginning of the assistant's
/// turn.
pub(crate) fn render(messages: &[Message], tools: &[Tool], add_generation_prompt: bool) -> String {
    let mut text = String::new();
    let mut rest = messages;
    if !tools.is_empty() {
        text.push_str("<|im_start|>system\n");
        if let Some((first, others)) = messages.split_first()
            && first.role == "system"
        {
            text.push_str(&first.text());
            text.push_str("\n\n");
            rest = others;
        }
        text.push_str(TOOLS_HEAD);
        for tool in tools {
            text.push('\n');
            text.push_str(&python_json(&tool.described()));
        }
        text.push_str(TOOLS_TAIL);
    }
    for (place, message) in rest.iter().enumerate() {
        let is_tool = |other: Option<&Message>| other.is_some_and(|known| known.role == "tool");
        if message.role == "tool" {
            let opens = place == 0 || !is_tool(rest.get(place - 1));
            message.put_result(&mut text, opens, !is_tool(rest.get(place + 1)));
        } else {
            message.put_turn(&mut text);
        }
    }
    if add_generation_prompt {
        text.push_str("<|im_start|>assistant\n");
    }
    text
}

impl Message {
    fn text(&self) -> String {
        match &self.content {
            None => String::new(),
            Some(Content::Text(text)) => text.clone(),
            Some(Content::Parts(parts)) => {
                let texts: Vec<&str> = parts.iter().filter_map(|part| part.text.as_deref()).collect();
                texts.join("\n")
            }
        }
    }

    fn put_turn(&self, text: &mut String) {
        let content = self.text();
        text.push_str(&format!("<|im_start|>{}\n{content}", self.role));
        for (place, call) in self.tool_calls.iter().flatten().enumerate() {
            if place > 0 || !content.is_empty() {
                text.push('\n');
            }
            let name = &call.function.name;
            let arguments = call.function.arguments_text();
            text.push_str(&format!(
                "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>"
            ));
        }
        text.push_str("<|im_end|>\n");
    }

    /// Writes a tool's result. The results of consecutive messages are in one turn of the user.
    fn put_result(&self, text: &mut String, opens: bool, closes: bool) {
        if opens {
            text.push_str("<|im_start|>user");
        }
        text.push_str(&format!("\n<tool_response>\n{}\n</tool_response>", self.text()));
        if closes {
            text.push_str("<|im_end|>\n");
        }
    }
}

impl CalledFunction {
    /// Clients send arguments as a string of JSON. The server parses the JSON, so its spacing is lost. A
    /// string that is not JSON stays as it is.
    fn arguments_text(&self) -> String {
        match &self.arguments {
            Value::String(text) => serde_json::from_str::<Value>(text)
                .map_or_else(|_| text.clone(), |parsed| python_json(&parsed)),
            Value::Null => "{}".to_owned(),
            other => python_json(other),
        }
    }
}

#[cfg(test)]
mod tests;
