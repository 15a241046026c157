//! Canonical JSON: one text for all serialisations of a value.
//!
//! Keys are sorted, null members are left out, and a number with an integral value is written as an integer,
//! so a value keeps its text when a client of another language parses and serialises it again.

use std::fmt::Write;

use serde_json::{Number, Value};

/// The largest integer up to which all integers are exact 64-bit floats.
const EXACT_INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

/// The canonical text of a value.
pub(crate) fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write_value(&mut text, value);
    text
}

fn write_value(text: &mut String, value: &Value) {
    match value {
        Value::Number(number) => write_number(text, number),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_value(text, item);
            }
            text.push(']');
        }
        Value::Object(members) => {
            let mut present: Vec<_> = members.iter().filter(|(_, member)| !member.is_null()).collect();
            present.sort_unstable_by_key(|(key, _)| *key);
            text.push('{');
            for (index, (key, member)) in present.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_string(text, key);
                text.push(':');
                write_value(text, member);
            }
            text.push('}');
        }
        Value::String(content) => write_string(text, content),
        Value::Null => text.push_str("null"),
        Value::Bool(truth) => text.push_str(if *truth { "true" } else { "false" }),
    }
}

fn write_number(text: &mut String, number: &Number) {
    let float = number.as_f64().filter(|_| number.is_f64());
    // Writing to a string cannot fail.
    let _ = match float {
        Some(float) if float.fract() == 0.0 && float.abs() <= EXACT_INTEGER_MAX => {
            write!(text, "{}", float as i64)
        }
        Some(float) => write!(text, "{}", rounded(float)),
        None => write!(text, "{number}"),
    };
}

/// The nearest number of 15 significant digits. Parsers differ in the last bits of longer numbers.
fn rounded(float: f64) -> f64 {
    format!("{float:.14e}").parse().unwrap_or(float)
}

/// Writes a JSON string. Only quotes, backslashes and control characters are escaped.
fn write_string(text: &mut String, content: &str) {
    text.push('"');
    let mut rest = content;
    // Every escaped character has one byte, so the text is never cut inside a character.
    while let Some(at) = rest.bytes().position(is_escaped) {
        text.push_str(&rest[..at]);
        // Writing to a string cannot fail.
        let _ = match rest.as_bytes()[at] {
            b'\n' => write!(text, "\\n"),
            b'\r' => write!(text, "\\r"),
            b'\t' => write!(text, "\\t"),
            quote @ (b'"' | b'\\') => write!(text, "\\{}", char::from(quote)),
            control => write!(text, "\\u{control:04x}"),
        };
        rest = &rest[at + 1..];
    }
    text.push_str(rest);
    text.push('"');
}

fn is_escaped(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

#[cfg(test)]
mod tests;
