//! Chat templates, in Jinja as the transformers library configures it. A model's own template therefore gives
//! the same prompt here as on the model's servers.
//!
//! This module adds features of the Python version: methods of Python's strings and dictionaries, `tojson`
//! without HTML escapes, `raise_exception`, `strftime_now`, and `{% generation %}` blocks, which only mark
//! tokens. The keys of objects (tools, arguments of calls) keep the order in which they were written.
//!
//! Deliberately absent: documents, which neither data sets nor agents have.

use std::fmt::Write;
use std::sync::Arc;

use chrono::DateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Enumerator, Kwargs, Object, ObjectExt, Value};
use minijinja::{Environment, Error, ErrorKind, context};
use rolldock_trajectory::Chat;
use serde_json::Value as Json;

use crate::{DataError, Message};

const NAME: &str = "chat";

/// Special tokens that templates use. A token that the tokenizer does not have is empty.
#[derive(Debug, Default, Clone)]
pub(super) struct TemplateTokens {
    pub(super) bos: String,
    pub(super) eos: String,
    pub(super) pad: String,
    pub(super) unk: String,
}

/// A compiled template.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    origin: String,
    tokens: TemplateTokens,
}

impl ChatTemplate {
    /// Compiles `source`. `strftime_now` formats `unix_seconds`; without it a template that calls
    /// `strftime_now` fails when it is rendered.
    pub(super) fn compile(
        origin: String,
        source: &str,
        tokens: TemplateTokens,
        unix_seconds: Option<i64>,
    ) -> Result<Self, DataError> {
        let environment = build(source, unix_seconds).map_err(|error| complaint(&origin, &error))?;
        Ok(Self { environment, origin, tokens })
    }

    /// The prompt for `messages`, up to the point where the assistant's response begins.
    pub(super) fn render(&self, messages: &[Message]) -> Result<String, DataError> {
        let turns: Vec<Value> = messages
            .iter()
            .map(|message| context! { role => message.role.as_str(), content => message.content.as_str() })
            .collect();
        self.render_with(context! { messages => turns, add_generation_prompt => true, tools => () })
    }

    /// The text of a conversation with tools and further variables.
    pub(super) fn render_chat(&self, chat: &Chat<'_>) -> Result<String, DataError> {
        let arguments = chat.arguments.map_or_else(|| context! {}, to_value);
        let own = context! {
            messages => chat.messages.iter().map(to_value).collect::<Value>(),
            add_generation_prompt => chat.add_generation_prompt,
            tools => chat.tools.map_or(Value::from(()), to_value),
        };
        self.render_with(context! { ..own, ..arguments })
    }

    /// Renders with `variables` and the tokenizer's special tokens.
    fn render_with(&self, variables: Value) -> Result<String, DataError> {
        let variables = context! {
            ..variables,
            ..context! {
                documents => (),
                bos_token => self.tokens.bos.as_str(),
                eos_token => self.tokens.eos.as_str(),
                pad_token => self.tokens.pad.as_str(),
                unk_token => self.tokens.unk.as_str(),
            }
        };
        let rendered = self.environment.get_template(NAME).and_then(|template| template.render(variables));
        rendered.map_err(|error| complaint(&self.origin, &error))
    }
}

fn build(source: &str, unix_seconds: Option<i64>) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", to_python_json);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", move |format: String| format_time(unix_seconds, &format));
    environment.add_template_owned(NAME, without_generation_tags(source))?;
    Ok(environment)
}

/// JSON as a value of the template. Members keep their order.
fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::String(text) => Value::from(text),
        Json::Array(items) => items.iter().map(to_value).collect(),
        Json::Object(members) => {
            let members = members.iter().map(|(name, member)| (Value::from(name), to_value(member)));
            Value::from_object(Members(members.collect()))
        }
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (None, Some(integer)) => Value::from(integer),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
    }
}

/// The members of a JSON object, in their order. The maps of the library would sort them.
#[derive(Debug)]
struct Members(Vec<(Value, Value)>);

impl Object for Members {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, member)| member.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_key_value_enumerator(|members| Box::new(members.0.iter().cloned()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }
}

fn complaint(origin: &str, error: &Error) -> DataError {
    DataError::Template { origin: origin.to_owned(), reason: format!("{error:#}") }
}

/// Formats the given time. The clock is not read, because runs must be reproducible.
fn format_time(unix_seconds: Option<i64>, format: &str) -> Result<String, Error> {
    let refuse = |reason: String| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {reason}"));
    let time = unix_seconds.and_then(|seconds| DateTime::from_timestamp(seconds, 0)).ok_or_else(|| {
        refuse("the template asks for the date, but it is absent or out of range".to_owned())
    })?;
    let mut text = String::new();
    write!(text, "{}", time.format(format))
        .map_err(|_| refuse(format!("expected a format of strftime, found {format:?}")))?;
    Ok(text)
}

/// Formats JSON like `json.dumps(value, ensure_ascii=False)`: it undoes the HTML escapes of the built-in
/// filter.
fn to_python_json(value: &Value, indent: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let json = minijinja::filters::tojson(value, indent, options)?;
    Ok(Value::from(without_html_escapes(json.as_str().unwrap_or_default())))
}

fn without_html_escapes(json: &str) -> String {
    const ESCAPES: [(&str, char); 4] = [("u003c", '<'), ("u003e", '>'), ("u0026", '&'), ("u0027", '\'')];
    let mut text = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(backslash) = rest.find('\\') {
        text.push_str(&rest[..backslash]);
        let escaped = &rest[backslash + 1..];
        if let Some((code, letter)) = ESCAPES.iter().find(|(code, _)| escaped.starts_with(code)) {
            text.push(*letter);
            rest = &escaped[code.len()..];
            continue;
        }
        // The character after a backslash is copied too. An escaped backslash therefore does not start
        // another escape.
        let length = escaped.chars().next().map_or(0, char::len_utf8);
        text.push('\\');
        text.push_str(&escaped[..length]);
        rest = &escaped[length..];
    }
    text.push_str(rest);
    text
}

/// Turns `{% generation %} ... {% endgeneration %}` into a block that is always rendered. The dashes in these
/// tags, which control whitespace, are kept.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let tag = &rest[start..start + length];
        text.push_str(&rest[..start]);
        match tag[2..].trim_matches(|letter: char| letter.is_whitespace() || matches!(letter, '-' | '+')) {
            "generation" => text.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => text.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => text.push_str(tag),
        }
        rest = &rest[start + length..];
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests;
