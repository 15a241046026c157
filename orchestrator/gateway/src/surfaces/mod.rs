//! The protocols that agents speak. Each surface translates requests to the form from which turns are made, and
//! turns to the answers of its protocol, whole or as a stream.
//!
//! | surface | path | a request becomes |
//! |---|---|---|
//! | [`chat`] | `/v1/chat/completions` | itself |
//! | [`text`] | `/v1/completions` | itself |
//! | [`messages`] | `/v1/messages` (Anthropic) | a chat |
//! | [`responses`] | `/v1/responses` (OpenAI) | a chat |
//!
//! # Invariants
//! - Equal conversations give equal turns on every surface, because all surfaces make turns with the same
//!   code. vLLM translates requests of the last two surfaces to a chat in the same way.
//! - A stream has exactly the content of the whole answer: both are written from the same [`Answer`].
//!
//! # Deliberately absent
//! - Streaming while the engine decodes: a turn is durable before the agent receives it. While the agent
//!   waits, the stream has comments as heartbeats.
//! - Images, audio and files: they have no token ids from which a later turn could continue.

pub(crate) mod chat;
mod events;
pub(crate) mod messages;
mod request;
pub(crate) mod responses;
pub(crate) mod text;

use serde_json::{Value, json};

use crate::answer::Answer;
use crate::refusal::Refusal;

pub(crate) use events::Event;
pub(crate) use request::Asked;

/// A protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Surface {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Text,
    /// `/v1/messages`
    Messages,
    /// `/v1/responses`
    Responses,
}

impl Surface {
    /// The name in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Text => "completions",
            Self::Messages => "messages",
            Self::Responses => "responses",
        }
    }

    /// Reads the body of a request.
    pub(crate) fn read(self, body: &[u8]) -> Result<Asked, Refusal> {
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| Refusal::bad_request(format!("expected JSON as the body: {error}")))?;
        let Value::Object(body) = body else {
            return Err(Refusal::bad_request(
                "expected a JSON object as the body, found another value".to_owned(),
            ));
        };
        request::check_single(&body)?;
        match self {
            Self::Chat => chat::read(body),
            Self::Text => text::read(body),
            Self::Messages => messages::read(body),
            Self::Responses => responses::read(body),
        }
    }

    /// The whole answer.
    pub(crate) fn whole(self, asked: &Asked, answer: &Answer) -> Value {
        match self {
            Self::Chat => chat::whole(answer),
            Self::Text => text::whole(asked, answer),
            Self::Messages => messages::whole(answer),
            Self::Responses => responses::whole(asked, answer),
        }
    }

    /// The answer as a stream.
    pub(crate) fn events(self, asked: &Asked, answer: &Answer) -> Vec<Event> {
        match self {
            Self::Chat => chat::events(asked, answer),
            Self::Text => text::events(asked, answer),
            Self::Messages => messages::events(answer),
            Self::Responses => responses::events(asked, answer),
        }
    }

    /// The body of an error.
    pub(crate) fn error(self, refusal: &Refusal) -> Value {
        let message = refusal.to_string();
        match self {
            Self::Messages => {
                json!({ "type": "error", "error": { "type": refusal.kind(), "message": message } })
            }
            _ => json!({
                "error": {
                    "message": message, "type": refusal.kind(), "param": null, "code": refusal.code(),
                }
            }),
        }
    }

    /// An error within a stream whose head has been sent.
    pub(crate) fn error_event(self, refusal: &Refusal) -> Event {
        match self {
            Self::Messages => Event::named("error", &self.error(refusal)),
            Self::Responses => Event::named(
                "error",
                &json!({
                    "type": "error", "sequence_number": 0, "code": refusal.code(),
                    "message": refusal.to_string(), "param": null,
                }),
            ),
            _ => Event::data(&self.error(refusal)),
        }
    }
}
