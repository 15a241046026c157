//! The calls that the gateway makes to an engine.
//!
//! | call | endpoint | what it is for |
//! |---|---|---|
//! | `render` | `/v1/chat/completions/render`, `/v1/completions/render` | sampling parameters with tool grammars, and the engine's own token ids of the request |
//! | `generate` | `/inference/v1/generate` | draws tokens from ids that the gateway chooses |
//! | `derender` | `/v1/chat/completions/derender`, `/v1/completions/derender` | the text, reasoning and tool calls of the drawn tokens, by the server's own parsers |
//! | `converse` | `/v1/chat/completions`, `/v1/completions` | all of this in one call, for a server without the endpoints above |
//! | `models` | `/v1/models` | the model's name and the length of its context |
//!
//! # Invariants
//! - Dropping the future of a call closes its connection, and the engine then stops.
//! - An answer of `generate` and `converse` has passed the checks of `drawn`: each token is in the vocabulary
//!   and has one finite log-probability that was reported for this token, and the spans of versions cover all tokens.
//!
//! # Deliberately absent
//! This module does not retry. The code that makes a turn owns permits and attempts. An attempt that is lost
//! leaves no turn, so another attempt is always safe.

mod converse;
mod derender;
mod drawn;
mod error;
mod generate;
mod render;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde::Serialize;
use serde_json::Value;
use thread_local::ThreadLocal;

pub(crate) use converse::Conversed;
pub(crate) use derender::Derender;
pub(crate) use drawn::{Drawn, Finish};
pub(crate) use error::CallError;
pub(crate) use generate::Generate;
pub(crate) use render::Rendered;

/// Longest answer of an engine, in bytes. A token with its log-probability takes about 150 bytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// The approximate number of bytes of a request besides its ids, texts and log-probabilities.
const OTHER_BYTES: usize = 2 << 10;
const JSON: &str = "application/json";
/// Longest idle time of a connection. Engines close idle connections after 5 s.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// The form of a request: a conversation or a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

impl Form {
    fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Text => "/v1/completions",
        }
    }
}

/// The client for calls to engines. Clones share its connections.
///
/// Each thread has its own connections. The answer of an engine therefore wakes the waiting thread directly,
/// without another thread in between, and no connection ends with the runtime of another thread.
#[derive(Debug, Clone)]
pub(crate) struct EngineCalls {
    clients: Arc<ThreadLocal<Client>>,
    connect: Duration,
    api_key: Option<Arc<str>>,
    vocab_size: Option<u32>,
}

/// A model that a server has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) name: String,
    /// Maximum number of tokens of a prompt and its answer together, if the server reports it.
    pub(crate) length_max: Option<u32>,
}

impl EngineCalls {
    /// `connect` bounds the time until a connection is open. `api_key` is sent as a bearer token. `vocab_size` is the
    /// number of ids of the vocabulary, if it is known.
    pub(crate) fn new(
        connect: Duration,
        api_key: Option<Arc<str>>,
        vocab_size: Option<u32>,
    ) -> Result<Self, reqwest::Error> {
        let calls = Self { clients: Arc::default(), connect, api_key, vocab_size };
        // An error that prevents this client would prevent the client of every thread, so it is reported
        // here.
        calls.client()?;
        Ok(calls)
    }

    /// The client of this thread.
    fn client(&self) -> Result<&Client, reqwest::Error> {
        self.clients.get_or_try(|| {
            Client::builder()
                .connect_timeout(self.connect)
                .pool_idle_timeout(IDLE_MAX)
                .tcp_nodelay(true)
                .no_proxy()
                .build()
        })
    }

    /// The first model of the server at `base`. Cancel-safe.
    pub(crate) async fn model(&self, base: &str) -> Result<Model, CallError> {
        let body = self.answer(base, "/v1/models", |client, url| client.get(url)).await?;
        let models: Value = read(base, &body)?;
        let first = &models["data"][0];
        let name = first["id"].as_str().ok_or_else(|| CallError::bad(base, "the list of models is empty"))?;
        let length_max = first["max_model_len"].as_u64().and_then(|length| u32::try_from(length).ok());
        Ok(Model { name: name.to_owned(), length_max })
    }

    /// Sends a body of approximately `bytes` bytes, and returns the body of a successful answer. Cancel-safe:
    /// a dropped call closes the connection.
    async fn post(
        &self,
        base: &str,
        path: &str,
        body: &(impl Serialize + ?Sized),
        bytes: usize,
    ) -> Result<Bytes, CallError> {
        let mut written = Vec::with_capacity(bytes);
        serde_json::to_writer(&mut written, body)
            .map_err(|error| CallError::bad(base, &format!("the request cannot be written: {error}")))?;
        let request =
            |client: &Client, url: String| client.post(url).header(CONTENT_TYPE, JSON).body(written);
        self.answer(base, path, request).await
    }

    async fn answer(
        &self,
        base: &str,
        path: &str,
        request: impl FnOnce(&Client, String) -> RequestBuilder,
    ) -> Result<Bytes, CallError> {
        let client = self.client().map_err(|error| CallError::unanswered(base, &error))?;
        let request = request(client, at(base, path));
        let request = match &self.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let response = request.send().await.map_err(|error| CallError::unanswered(base, &error))?;
        let status = response.status();
        let retry_after = retry_after(&response);
        let body = whole(base, response).await?;
        if status == StatusCode::OK {
            Ok(body)
        } else {
            Err(CallError::from_status(base, path, status, retry_after, &body))
        }
    }
}

fn at(base: &str, path: &str) -> String {
    format!("{}{path}", base.trim_end_matches('/'))
}

fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get("retry-after")?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

async fn whole(base: &str, mut response: Response) -> Result<Bytes, CallError> {
    let mut body = Bytes::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| CallError::unanswered(base, &error))? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            let reason = format!("the answer has more than bytes_max={ANSWER_BYTES_MAX}");
            return Err(CallError::bad(base, &reason));
        }
        // Most answers come in one piece, which is not copied.
        body = if body.is_empty() { chunk } else { joined(body, &chunk) };
    }
    Ok(body)
}

fn joined(body: Bytes, chunk: &[u8]) -> Bytes {
    let mut joined = BytesMut::from(body);
    joined.extend_from_slice(chunk);
    joined.freeze()
}

/// The choice of an answer, which must have exactly one.
fn one_choice<T>(base: &str, choices: Vec<T>) -> Result<T, CallError> {
    let [choice] = <[T; 1]>::try_from(choices)
        .map_err(|choices| CallError::bad(base, &format!("expected one choice, found {}", choices.len())))?;
    Ok(choice)
}

fn read<'a, T: serde::Deserialize<'a>>(base: &str, body: &'a [u8]) -> Result<T, CallError> {
    serde_json::from_slice(body)
        .map_err(|error| CallError::bad(base, &format!("not the expected JSON: {error}")))
}
