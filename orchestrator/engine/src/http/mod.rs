//! The engine client for real servers: vLLM's HTTP API, in the dialect that the probe found.
//!
//! - [`probe`](HttpEngine::add) finds out the dialect and the model of a server, once;
//! - `request` writes the bodies of requests;
//! - `scan` and `answer` read the bodies of answers in one pass into flat columns; `number`, `decimals`, `text`,
//!   `skip`, `blocks`, `content` and `lanes` read the long arrays of an answer in few instructions;
//! - `events` and `stream` read streamed answers, and report their tokens as they arrive;
//! - `transport` owns the connections and classifies failures;
//! - `abort` ends requests by id over separate connections, for cases in which closing a request's connection
//!   may not end the request.
//!
//! # Invariants
//! - A running request holds its connection, one read buffer and its columns, never the whole body of its
//!   answer. The body is read as it arrives, and its length is bounded by [`HttpConfig::body_bytes_max`].
//! - Dropping the future of a request closes its connection.
//! - An error reports [`Admission::Never`](crate::Admission::Never) only if the engine cannot have begun the
//!   request. A request may be written to a kept-alive connection just as the server closes the connection.
//!   Such a request counts as possibly admitted, because the client cannot find out whether it was.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{self, BoxFuture, join_all, try_join_all};
use http::header::HeaderValue;
use http::{Method, StatusCode};
use parking_lot::RwLock;
use rolldock_loadbalancer::control::vllm::VllmControl;
use rolldock_loadbalancer::within;
use rolldock_scope::Scope;

use crate::{Engine, EngineError, FinishReason, GenerateRequest, Generation, Progress, SampleOutput};

mod abort;
mod answer;
mod blocks;
mod choice;
mod columns;
mod connection;
mod content;
mod decimals;
mod digits;
mod events;
mod facts;
mod lanes;
mod number;
mod probe;
mod request;
mod scan;
mod server;
mod skip;
mod stream;
mod text;
mod transport;

use abort::Aborter;
use answer::{AnswerReader, CheckedAnswer};
use choice::{AnswerError, Content, Expected};
pub use facts::{Dialect, ServerFacts};
use request::write_request;
use server::{ProbedServer, Server};
use stream::StreamReader;
use transport::{NAN_WORDS, Transport, read_body, refusal};

/// The length bound of a streamed answer is larger by this factor, because each token arrives in its own
/// event.
const STREAM_BYTES_FACTOR: usize = 4;

/// Turns a text into token ids. The ids are compared with the server's ids of the same text. For servers that
/// return no ids, these ids are the response.
pub type Encode = Arc<dyn Fn(&str) -> Vec<u32> + Send + Sync>;

/// The configuration of the client.
#[derive(Clone)]
pub struct HttpConfig {
    /// The model's name, as servers list it.
    pub model: String,
    /// The key that is sent as a bearer token.
    pub api_key: Option<String>,
    /// Longest wait for a connection, including name resolution.
    pub connect_max: Duration,
    /// Time limit of the probe of a server. Delays of this process itself do not count. The limit has to be
    /// longer than the time that a busy server takes for the one token of the probe.
    pub probe_max: Duration,
    /// Number of ids of the model's vocabulary; `None` if it is unknown. An answer with an id that is not below it is a
    /// bad answer.
    pub vocab_size: Option<u32>,
    /// Maximum number of bytes of an answer. With log-probabilities a token takes up to 160 bytes.
    pub body_bytes_max: usize,
}

impl fmt::Debug for HttpConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HttpConfig")
            .field("model", &self.model)
            .field("api_key", &self.api_key.as_ref().map(|_secret| "..."))
            .field("connect_max", &self.connect_max)
            .field("probe_max", &self.probe_max)
            .field("vocab_size", &self.vocab_size)
            .field("body_bytes_max", &self.body_bytes_max)
            .finish()
    }
}

/// A fleet of HTTP servers.
pub struct HttpEngine {
    config: HttpConfig,
    transport: Transport,
    /// The client that sends aborts.
    control: VllmControl,
    encode: Option<Encode>,
    scope: Scope,
    members: RwLock<BTreeMap<Arc<str>, Arc<Member>>>,
    /// Tokens that probes have asked for.
    probe_tokens: AtomicU64,
}

/// A server in use.
#[derive(Debug)]
struct Member {
    target: Arc<ProbedServer>,
    aborter: Arc<Aborter>,
}

impl fmt::Debug for HttpEngine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HttpEngine").field("config", &self.config).finish_non_exhaustive()
    }
}

impl HttpEngine {
    /// An engine without servers. [`HttpEngine::add`] adds servers. Background tasks run in `scope`. Without
    /// `encode`, text-only servers are refused and tokenizers are not compared.
    ///
    /// # Errors
    /// [`EngineError::Unfit`] if the API key cannot be sent in a header, or if no control client can be made.
    pub fn new(config: HttpConfig, encode: Option<Encode>, scope: Scope) -> Result<Self, EngineError> {
        let authorization = config.api_key.as_ref().map(|key| bearer(key)).transpose()?;
        let transport = Transport::new(config.connect_max, authorization, &scope);
        let api_key = config.api_key.as_deref().map(Arc::from);
        let control = VllmControl::new(abort::ANSWER_MAX, api_key).map_err(|error| EngineError::Unfit {
            server: "every server".to_owned(),
            reason: error.to_string(),
        })?;
        let probe_tokens = AtomicU64::new(0);
        Ok(Self { config, transport, control, encode, scope, members: RwLock::default(), probe_tokens })
    }

    /// Probes a server and adds it under `name`. The new server replaces an earlier server of that name.
    ///
    /// Cancel-safe: the server is added at the end or not at all.
    ///
    /// # Errors
    /// The class is [`ErrorClass::Client`](crate::ErrorClass::Client) if the server answers but cannot serve
    /// the recipe as it is, because it has another model or another tokenizer, or refuses the key. Every
    /// other error may be temporary, so the server may be asked again.
    pub async fn add(&self, name: &str, url: &str) -> Result<ServerFacts, EngineError> {
        let server = Server::new(name, url)?;
        let facts = within(self.config.probe_max, self.probe(&server)).await.map_err(|_overdue| {
            let seconds = self.config.probe_max.as_secs_f64();
            server.failed(server.at_url(&format!("no answer to the probe within {seconds} s; is it paused?")))
        })??;
        if facts.dialect == Dialect::TextOnly {
            self.admit_text_only(&server)?;
        }
        tracing::info!(
            server = name,
            url,
            dialect = facts.dialect.as_str(),
            version = facts.version.as_deref().unwrap_or("unknown"),
            "server is ready"
        );
        let target = Arc::new(ProbedServer::new(server, facts.clone())?);
        let aborter = Arc::new(Aborter::new(&target, self.control.clone()));
        let member = Arc::new(Member { target, aborter });
        self.members.write().insert(name.into(), member);
        Ok(facts)
    }

    /// Finds out the facts about a server, and checks that it can serve the recipe. Cancel-safe.
    async fn probe(&self, server: &Server) -> Result<ServerFacts, EngineError> {
        let facts = probe::probe(&self.transport, server, &self.config.model).await?;
        self.probe_tokens.fetch_add(facts.dialect.probe_tokens(), Ordering::Relaxed);
        if let Some(encode) = &self.encode {
            probe::check_tokenizer(&self.transport, server, &self.config.model, encode).await?;
        }
        Ok(facts)
    }

    /// Calls [`HttpEngine::add`] concurrently for several servers, given as name and URL. Returns the first
    /// error.
    ///
    /// Cancel-safe: servers whose probe ended before the cancellation have been added.
    ///
    /// # Errors
    /// The errors of [`HttpEngine::add`].
    pub async fn add_all(&self, servers: &[(String, String)]) -> Result<Vec<ServerFacts>, EngineError> {
        try_join_all(servers.iter().map(|(name, url)| self.add(name, url))).await
    }

    /// Removes a server. Its running requests continue. Returns `false` if there is no server of that name.
    pub fn remove(&self, name: &str) -> bool {
        self.members.write().remove(name).is_some()
    }

    /// The facts that the probe of a server has found; `None` if the server is unknown.
    pub fn facts(&self, name: &str) -> Option<ServerFacts> {
        self.members.read().get(name).map(|member| member.target.facts.clone())
    }

    fn admit_text_only(&self, server: &Server) -> Result<(), EngineError> {
        if self.encode.is_none() {
            return Err(server.unfit(server.at_url("it returns no token ids, and there is no tokenizer")));
        }
        tracing::warn!(
            server = %server.name,
            "server returns text only: token ids come from re-tokenising and may differ from those sampled, there \
             are no log-probabilities and no weight versions, top_k and stop_token_ids are not sent, and requests \
             cannot be aborted by id"
        );
        Ok(())
    }

    fn member(&self, name: &str) -> Result<Arc<Member>, EngineError> {
        let found = self.members.read().get(name).cloned();
        found.ok_or_else(|| EngineError::UnknownServer { server: name.to_owned() })
    }

    /// Cancel-safe: dropping the future closes the connection. Streamed tokens that arrived before are in the
    /// request's progress.
    async fn request(&self, name: &str, request: GenerateRequest) -> Result<Generation, EngineError> {
        let member = self.member(name)?;
        let progress = request.progress.clone().unwrap_or_default();
        progress.begin();
        let _interruptible = member.aborter.watch(&request.request_id);
        let outcome = self.exchange(&member.target, request, &progress).await;
        if matches!(outcome, Err(EngineError::BadAnswer { .. })) {
            progress.leave(Vec::new());
        }
        outcome
    }

    /// Cancel-safe, like [`HttpEngine::request`].
    async fn exchange(
        &self,
        target: &ProbedServer,
        request: GenerateRequest,
        progress: &Progress,
    ) -> Result<Generation, EngineError> {
        let ProbedServer { server, facts, generate_uri } = target;
        if facts.dialect == Dialect::TextOnly && request.prompt_text.is_empty() {
            // This prompt belongs to a turn of a trajectory. The server might not encode the decoded text to
            // the same ids.
            return Err(
                server.unfit("it takes prompts of text only, and this prompt is token ids".to_owned())
            );
        }
        let body = write_request(facts.dialect, &facts.model, &request);
        let response = self
            .transport
            .send(server, Method::POST, generate_uri.clone(), Some(&request.request_id), body)
            .await?;
        if response.status() != StatusCode::OK {
            return Err(refusal(server, response).await);
        }
        let content = match facts.dialect {
            Dialect::Generate | Dialect::Completions => Content::Tokens,
            Dialect::TextOnly => Content::Text,
        };
        let expected = Expected { content, ..Expected::tokens_of(&request, self.config.vocab_size) };
        let trouble = |error: AnswerError| answer_trouble(server, &error);
        let bytes_max = self.config.body_bytes_max;
        let answer = if request.stream && content == Content::Tokens {
            let mut reader = StreamReader::new(expected, progress.clone());
            let stream_bytes_max = bytes_max.saturating_mul(STREAM_BYTES_FACTOR);
            let read =
                read_body(server, response, stream_bytes_max, |chunk| reader.feed(chunk).map_err(trouble));
            read.await?;
            reader.finish()
        } else {
            // A server answers an unstreamed request only when it has generated all tokens.
            progress.note_whole();
            let mut reader = AnswerReader::new(expected);
            read_body(server, response, bytes_max, |chunk| reader.feed(chunk).map_err(trouble)).await?;
            reader.finish()
        };
        match answer.map_err(trouble)? {
            CheckedAnswer::Samples(samples) => Ok(Generation { samples }),
            CheckedAnswer::Texts(texts) => self.encode_texts(server, texts).await,
            CheckedAnswer::Aborted { tokens, parts } => {
                progress.engine_says(tokens);
                progress.leave(parts);
                Err(EngineError::Aborted { server: server.name.to_string(), tokens })
            }
        }
    }

    /// Tokenises texts on the blocking pool, because long texts would delay the bytes of other requests.
    ///
    /// Cancel-safe.
    async fn encode_texts(
        &self,
        server: &Server,
        texts: Vec<(String, FinishReason)>,
    ) -> Result<Generation, EngineError> {
        // Text-only servers are added only if there is a tokenizer.
        let Some(encode) = self.encode.clone() else {
            return Err(server.bad_answer("text without a tokenizer".to_owned()));
        };
        let encoding = self.scope.spawn_blocking("prompt encoding", move || {
            let samples = texts.into_iter().map(|(text, finish_reason)| SampleOutput {
                response_ids: encode(&text),
                logprobs: Vec::new(),
                finish_reason,
                version_spans: Vec::new(),
            });
            samples.collect::<Vec<_>>()
        });
        let samples =
            encoding.await.map_err(|error| server.bad_answer(format!("cannot tokenise: {error}")))?;
        if samples.iter().any(|sample| sample.response_ids.is_empty()) {
            return Err(server.bad_answer("a response without text".to_owned()));
        }
        Ok(Generation { samples })
    }
}

/// The error for an answer that failed a check.
fn answer_trouble(server: &Server, error: &AnswerError) -> EngineError {
    match error {
        AnswerError::Engine { words } if words.contains(NAN_WORDS) => {
            server.bad_answer("poisoned: the engine's log-probabilities are not finite".to_owned())
        }
        AnswerError::Engine { .. } | AnswerError::Cut { .. } => server.failed(error.to_string()),
        _ => server.bad_answer(error.to_string()),
    }
}

/// Reads a recorded answer from the chunks of its body, in the same way as [`HttpEngine`] reads an arriving
/// answer. Replays and measurements use this function.
///
/// # Errors
/// [`EngineError::BadAnswer`] and [`EngineError::Aborted`], with `recorded` in place of the server's name.
pub fn read_recorded<'a>(
    request: &GenerateRequest,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Generation, EngineError> {
    let server = || "recorded".to_owned();
    let mut reader = AnswerReader::new(Expected::tokens_of(request, None));
    let fed = chunks.into_iter().try_for_each(|chunk| reader.feed(chunk));
    match fed.and_then(|()| reader.finish()) {
        Ok(CheckedAnswer::Samples(samples)) => Ok(Generation { samples }),
        Ok(CheckedAnswer::Aborted { tokens, .. }) => Err(EngineError::Aborted { server: server(), tokens }),
        // This happens only if text was expected.
        Ok(CheckedAnswer::Texts(_)) => {
            Err(EngineError::BadAnswer { server: server(), reason: "text".to_owned() })
        }
        Err(error) => Err(EngineError::BadAnswer { server: server(), reason: error.to_string() }),
    }
}

fn bearer(api_key: &str) -> Result<HeaderValue, EngineError> {
    let mut value =
        HeaderValue::from_str(&format!("Bearer {api_key}")).map_err(|_invalid| EngineError::Unfit {
            server: "every server".to_owned(),
            reason: "the api key has a line break or another character that an HTTP header cannot hold"
                .to_owned(),
        })?;
    value.set_sensitive(true);
    Ok(value)
}

impl Engine for HttpEngine {
    fn generate<'a>(
        &'a self,
        server: &'a str,
        request: GenerateRequest,
    ) -> BoxFuture<'a, Result<Generation, EngineError>> {
        self.request(server, request).boxed()
    }

    fn interrupt(&self, server: &str, request_id: &Arc<str>) -> BoxFuture<'_, ()> {
        let Ok(member) = self.member(server) else { return future::ready(()).boxed() };
        let request_id = Arc::clone(request_id);
        async move { member.aborter.interrupt(&request_id, &self.scope).await }.boxed()
    }

    fn cancelled(&self, server: &str, request_id: &Arc<str>) {
        if let Ok(member) = self.member(server) {
            member.aborter.abort(request_id, &self.scope);
        }
    }

    fn probe_tokens(&self) -> u64 {
        self.probe_tokens.load(Ordering::Relaxed)
    }

    fn settle(&self, limit: Duration) -> BoxFuture<'_, ()> {
        async move {
            let aborters: Vec<_> =
                self.members.read().values().map(|member| Arc::clone(&member.aborter)).collect();
            let all_settled = join_all(aborters.iter().map(|aborter| aborter.settle()));
            if tokio::time::timeout(limit, all_settled).await.is_err() {
                tracing::warn!(?limit, "aborts by id were still in progress at the time limit");
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
