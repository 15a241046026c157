//! Writes JSON piece by piece into a byte buffer. A long response has tens of thousands of numbers. Building
//! a tree of them would cost more than the simulation.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::Formatter;

/// Writes formatted text. Writing to a `Vec` does not fail.
macro_rules! put {
    ($buffer:expr, $($arguments:tt)*) => {{
        use std::io::Write as _;
        let _ = $buffer.write_fmt(format_args!($($arguments)*));
    }};
}
pub(crate) use put;

/// Writes a JSON string, quoted and escaped.
pub(crate) fn put_string(buffer: &mut Vec<u8>, text: &str) {
    // Serialising a string and writing to a `Vec` do not fail.
    let _ = serde_json::to_writer(buffer, text);
}

/// Writes a JSON number with the digits that Python prints for the value as a 64-bit float. A value that is
/// not finite becomes vLLM's marker -9999.0.
pub(crate) fn put_logprob(buffer: &mut Vec<u8>, logprob: f32) {
    if logprob.is_finite() {
        put!(buffer, "{:?}", f64::from(logprob));
    } else {
        buffer.extend_from_slice(b"-9999.0");
    }
}

/// Writes a JSON list of ids.
pub(crate) fn put_ids(buffer: &mut Vec<u8>, ids: &[u32]) {
    put_list(buffer, ids, |list, id| put!(list, "{id}"));
}

/// Writes a JSON list.
pub(crate) fn put_list<T>(buffer: &mut Vec<u8>, items: &[T], mut put_item: impl FnMut(&mut Vec<u8>, &T)) {
    buffer.push(b'[');
    for (place, item) in items.iter().enumerate() {
        if place > 0 {
            buffer.push(b',');
        }
        put_item(buffer, item);
    }
    buffer.push(b']');
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it: with a space after each comma and
/// colon.
pub(crate) fn python_json(value: &Value) -> String {
    let mut buffer = Vec::with_capacity(128);
    let mut serializer = serde_json::Serializer::with_formatter(&mut buffer, PythonFormatter);
    // A value of JSON can be written, and writing to a `Vec` does not fail.
    let _ = value.serialize(&mut serializer);
    String::from_utf8(buffer).unwrap_or_default()
}

struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
