//! The sampling parameters that engines have rendered.
//!
//! An engine renders a request to its token ids and its sampling parameters. A turn that continues stored ids needs
//! only the parameters, and requests that differ only in their messages have the same parameters. Most turns of an
//! agent therefore need no rendering. Rendering takes an engine longer with each message.
//!
//! Parameters are kept only if the engine reports nothing about reasoning, because such a report depends on the
//! prompt. They are used only for messages of text. Whether an engine takes other parts is known only after it has
//! rendered them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_128;

use super::Job;
use crate::calls::{Form, Rendered};

/// Maximum number of kinds of requests that are known at a time. An agent has few kinds: they differ in their tools,
/// stop strings and grammars.
const KINDS_MAX: usize = 1_024;

/// The parameters of requests, by the kind of the request.
#[derive(Debug, Default)]
pub(super) struct KnownParams {
    kinds: Mutex<HashMap<Kind, Arc<Map<String, Value>>>>,
}

/// A server, and a hash of what a request has besides its messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    base: String,
    request: u128,
}

impl Kind {
    /// The kind of a request to the server at `base`; `None` if its messages have parts that are not text.
    pub(super) fn of(job: Job<'_>, base: &str) -> Option<Self> {
        let request = &job.asked.request;
        let content = match job.asked.form {
            Form::Chat => "messages",
            Form::Text => "prompt",
        };
        if job.asked.form == Form::Chat && !request.get("messages").is_some_and(is_text) {
            return None;
        }
        let others: Vec<_> = request.iter().filter(|(key, _)| *key != content).collect();
        let written = serde_json::to_vec(&(content, others)).ok()?;
        Some(Self { base: base.to_owned(), request: xxh3_128(&written) })
    }
}

impl KnownParams {
    pub(super) fn get(&self, kind: &Kind) -> Option<Arc<Map<String, Value>>> {
        self.kinds.lock().get(kind).cloned()
    }

    /// Keeps what an engine has rendered for a request of this kind.
    pub(super) fn keep(&self, kind: Kind, rendered: &Rendered) {
        if !(rendered.reasoning_ended.is_null() && rendered.reasoning_parser_kwargs.is_null()) {
            return;
        }
        let mut kinds = self.kinds.lock();
        if kinds.len() >= KINDS_MAX {
            kinds.clear();
        }
        kinds.insert(kind, Arc::new(rendered.sampling_params.clone()));
    }

    /// Forgets what a server has rendered. It may have been started again with other settings.
    pub(super) fn forget(&self, base: &str) {
        self.kinds.lock().retain(|kind, _| kind.base != base);
    }
}

/// Whether all messages are of text only.
fn is_text(messages: &Value) -> bool {
    let is_part = |part: &Value| part["type"] == "text";
    messages.as_array().is_some_and(|messages| {
        messages.iter().all(|message| match &message["content"] {
            Value::Array(parts) => parts.iter().all(is_part),
            Value::Null | Value::String(_) => true,
            _ => false,
        })
    })
}
