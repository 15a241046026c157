//! A request in the form that the engine gets.

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::{Facts, Failed, Job};
use crate::refusal::Refusal;

/// The keys of a message with which agents name turns. The engine's chat messages have no such keys.
const NAMES: [&str; 2] = ["id", "signature"];

/// Serializes a request with the engine's own name of the model, and without the ids by which agents name
/// turns. The request is serialized once, because two calls have it in their bodies, and it can be long.
pub(super) fn for_engine(job: Job<'_>, facts: &Facts) -> Result<Box<RawValue>, Failed> {
    let request = ForEngine {
        request: &job.asked.request,
        model: &facts.model.name,
        // Without a limit, the engine would use all of the context that the rendered prompt leaves.
        max_tokens: job.admitted.tokens,
    };
    to_raw_value(&request).map_err(|error| Failed::Refused(Refusal::bad_request(error.to_string())))
}

struct ForEngine<'a> {
    request: &'a Map<String, Value>,
    model: &'a str,
    max_tokens: u32,
}

impl Serialize for ForEngine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut members = serializer.serialize_map(None)?;
        for (key, value) in self.request {
            match (key.as_str(), value) {
                ("model" | "max_tokens", _) => {}
                ("messages", Value::Array(messages)) => members.serialize_entry(key, &Messages(messages))?,
                _ => members.serialize_entry(key, value)?,
            }
        }
        members.serialize_entry("model", self.model)?;
        members.serialize_entry("max_tokens", &self.max_tokens)?;
        members.end()
    }
}

struct Messages<'a>(&'a [Value]);

impl Serialize for Messages<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut items = serializer.serialize_seq(Some(self.0.len()))?;
        for message in self.0 {
            match message {
                Value::Object(members) => items.serialize_element(&Message(members))?,
                other => items.serialize_element(other)?,
            }
        }
        items.end()
    }
}

struct Message<'a>(&'a Map<String, Value>);

impl Serialize for Message<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().filter(|(key, _)| !NAMES.contains(&key.as_str())))
    }
}
