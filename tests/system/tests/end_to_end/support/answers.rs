//! Converts answers of engines to a form in which they can be compared.

use serde_json::Value;

/// Removes the ids that the engine generates, and the times, which differ in every answer.
fn without_what_differs(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                if matches!(key.as_str(), "id" | "request_id" | "created") {
                    *value = Value::Null;
                }
                without_what_differs(value);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(without_what_differs),
        _ => {}
    }
}

/// The comparable form of a body: one value for a JSON text, or one for each event of a stream.
pub(crate) fn comparable(text: &str) -> Vec<Value> {
    let one = |text: &str| match serde_json::from_str(text) {
        Ok(mut value) => {
            without_what_differs(&mut value);
            value
        }
        Err(_) => Value::String(text.to_owned()),
    };
    if !text.starts_with("data: ") {
        return vec![one(text)];
    }
    text.split("\n\n").map(|event| one(event.trim_start_matches("data: "))).collect()
}
