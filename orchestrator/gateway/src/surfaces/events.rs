//! Events of a stream.

use std::fmt::Write;

use serde_json::Value;

/// One server-sent event, as text that ends in an empty line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event(pub(crate) String);

impl Event {
    /// A comment. Clients ignore it, and see that the connection is alive.
    pub(crate) fn heartbeat() -> Self {
        Self(": heartbeat\n\n".to_owned())
    }

    /// An event without a name.
    pub(crate) fn data(json: &Value) -> Self {
        Self(format!("data: {json}\n\n"))
    }

    /// An event with a name.
    pub(crate) fn named(name: &str, json: &Value) -> Self {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = write!(text, "event: {name}\ndata: {json}\n\n");
        Self(text)
    }

    /// The end of a stream of OpenAI's older surfaces.
    pub(crate) fn done() -> Self {
        Self("data: [DONE]\n\n".to_owned())
    }
}
