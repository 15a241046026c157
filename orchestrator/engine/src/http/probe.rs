//! Finds out the facts about a server once, before the server gets any request.
//!
//! The probe first asks for the served models and for the engine's version. Then the probe tries the dialects
//! of the API, best first: the endpoint that takes and returns tokens, completions that return token ids, and
//! completions that return only text. For a wrong server, the probe returns an error with the found and the
//! expected values. Without the probe, a thousand samples would fail later. A server counts as unfit only if
//! an answer shows that the server is wrong. A server that is busy (503), fails, or loses the connection may
//! be asked again.

use bytes::Bytes;
use http::{Method, StatusCode};
use rolldock_loadbalancer::control::excerpt;
use serde::Deserialize;

use super::Encode;
use super::answer::{AnswerReader, CheckedAnswer};
use super::choice::{AnswerError, Content, Expected, VOCAB_SIZE_UNKNOWN};
use super::facts::{Dialect, ServerFacts};
use super::server::Server;
use super::transport::{Reply, Transport, collect_body, error_words, refusal};
use crate::EngineError;

/// Maximum number of bytes of an answer to the probe.
const PROBE_BODY_BYTES_MAX: usize = 4 << 20;

/// Maximum number of models that an error lists.
const MODELS_LISTED_MAX: usize = 8;

/// The token of the probe's prompt. Every vocabulary contains this token.
const PROBE_TOKEN: u32 = 1;

/// A text with several scripts, digits, spaces and LaTeX. Tokenizers that give the same ids for this text count
/// as equal.
const TOKENIZER_PROBE: &str =
    "Find $\\frac{355}{113}$ to 3 digits:\n  na\u{ef}ve \u{4f60}\u{597d} \u{1f600} 100000";

#[derive(Deserialize)]
struct ModelList {
    data: Vec<ModelCard>,
}

#[derive(Deserialize)]
struct ModelCard {
    id: String,
    max_model_len: Option<u32>,
}

#[derive(Deserialize)]
struct VersionAnswer {
    version: String,
}

/// Checks that a server serves `model`, and finds out the dialect and the version of the server.
///
/// Cancel-safe: the probe changes nothing on the server.
///
/// # Errors
/// [`EngineError::Unreachable`]; [`EngineError::Unfit`] if the server cannot serve the recipe; otherwise the
/// error with which the server answered.
pub(super) async fn probe(
    transport: &Transport,
    server: &Server,
    model: &str,
) -> Result<ServerFacts, EngineError> {
    let max_model_len = find_model(transport, server, model).await?;
    let version = read_version(transport, server).await?;
    let dialect = if has_generate(transport, server).await? {
        Dialect::Generate
    } else {
        completions_dialect(transport, server, model).await?
    };
    Ok(ServerFacts { dialect, model: model.to_owned(), max_model_len, version })
}

async fn get(transport: &Transport, server: &Server, path: &str) -> Result<Reply, EngineError> {
    transport.send(server, Method::GET, server.uri(path)?, None, Bytes::new()).await
}

async fn post(
    transport: &Transport,
    server: &Server,
    path: &str,
    body: impl Into<Bytes>,
) -> Result<Reply, EngineError> {
    transport.send(server, Method::POST, server.uri(path)?, None, body.into()).await
}

/// Checks that the server serves `model`. Returns the length limit of `model`, or `None` if the server reports
/// no limit.
async fn find_model(transport: &Transport, server: &Server, model: &str) -> Result<Option<u32>, EngineError> {
    let response = get(transport, server, "/v1/models").await?;
    let status = response.status();
    let is_absent = matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED);
    if status != StatusCode::OK && !is_absent {
        return Err(refusal(server, response).await);
    }
    let body = collect_body(server, response, PROBE_BODY_BYTES_MAX).await?;
    let is_other = |found: &str| {
        let words = format!("expected a list of models at /v1/models, found {found}; is it a vLLM server?");
        server.unfit(server.at_url(&words))
    };
    if is_absent {
        return Err(is_other(&format!("status={}: {}", status.as_u16(), error_words(&body))));
    }
    let models: ModelList = serde_json::from_slice(&body).map_err(|error| match error.is_eof() {
        // A list that ends too early was cut off.
        true => {
            server.failed(server.at_url(&format!("the list of models at /v1/models is cut off: {error}")))
        }
        false => is_other(&excerpt(&body)),
    })?;
    if let Some(card) = models.data.iter().find(|card| card.id == model) {
        return Ok(card.max_model_len);
    }
    let served: Vec<&str> = models.data.iter().take(MODELS_LISTED_MAX).map(|card| card.id.as_str()).collect();
    Err(server
        .unfit(server.at_url(&format!("it serves models={served:?}, the recipe wants model={model:?}"))))
}

/// The engine's version; `None` if the server does not report it.
async fn read_version(transport: &Transport, server: &Server) -> Result<Option<String>, EngineError> {
    let response = get(transport, server, "/version").await?;
    if response.status() != StatusCode::OK {
        return Ok(None);
    }
    let body = collect_body(server, response, PROBE_BODY_BYTES_MAX).await?;
    Ok(serde_json::from_slice(&body).ok().map(|answer: VersionAnswer| answer.version))
}

/// Whether the server has `/inference/v1/generate`. A server that has this endpoint refuses an empty request.
async fn has_generate(transport: &Transport, server: &Server) -> Result<bool, EngineError> {
    let response = post(transport, server, "/inference/v1/generate", "{}").await?;
    match response.status() {
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => Ok(true),
        // vLLM without `--enable-scale-out` answers 403. Other servers do not have the path or the method.
        StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Ok(false),
        StatusCode::NOT_IMPLEMENTED => Ok(false),
        _ => Err(refusal(server, response).await),
    }
}

/// Finds out which of the two completions dialects a server has. Sends a request for one token.
async fn completions_dialect(
    transport: &Transport,
    server: &Server,
    model: &str,
) -> Result<Dialect, EngineError> {
    let with_ids = serde_json::json!({
        "model": model, "prompt": [PROBE_TOKEN], "max_tokens": 1, "logprobs": 0, "return_token_ids": true,
    });
    let response = post(transport, server, "/v1/completions", with_ids.to_string()).await?;
    match response.status() {
        StatusCode::OK => {}
        // A plain server may accept only text prompts.
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => {
            let refused = refusal(server, response).await;
            // A refusal because of NaN is a `BadAnswer`: the server has the dialect, but its weights are
            // broken.
            let takes_no_ids = matches!(refused, EngineError::Refused { .. });
            return if takes_no_ids { check_text(transport, server, model).await } else { Err(refused) };
        }
        _ => return Err(refusal(server, response).await),
    }
    let body = collect_body(server, response, PROBE_BODY_BYTES_MAX).await?;
    match read_probe(&body, Content::Tokens) {
        Ok(_) => Ok(Dialect::Completions),
        Err(AnswerError::NoTokens { .. } | AnswerError::Logprobs { .. }) => {
            check_text(transport, server, model).await
        }
        Err(error) => Err(not_sound(server, &error)),
    }
}

/// The error for a bad answer to the request for one token.
fn not_sound(server: &Server, error: &AnswerError) -> EngineError {
    let reason = server.at_url(&format!("/v1/completions: {error}"));
    match error {
        // These say nothing of the server's dialect: the answer was broken, and the next one may not be.
        AnswerError::Engine { .. } | AnswerError::Cut { .. } | AnswerError::Scan(_) => server.failed(reason),
        _ => server.unfit(reason),
    }
}

#[derive(Deserialize)]
struct Tokenized {
    tokens: Vec<u32>,
}

/// Checks that the tokenizers of the server and of the recipe give the same ids for the same text. A server
/// that does not offer `/tokenize` passes. Without this check, a run could sample, score and train with ids of
/// another vocabulary, and nothing would show the mistake.
///
/// Cancel-safe: the check changes nothing on the server.
///
/// # Errors
/// [`EngineError::Unfit`] with both lists of ids. If the server is too busy for the check, the error is the
/// server's refusal.
pub(super) async fn check_tokenizer(
    transport: &Transport,
    server: &Server,
    model: &str,
    encode: &Encode,
) -> Result<(), EngineError> {
    let question =
        serde_json::json!({ "model": model, "prompt": TOKENIZER_PROBE, "add_special_tokens": false });
    let response = post(transport, server, "/tokenize", question.to_string()).await?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::GATEWAY_TIMEOUT => return Err(refusal(server, response).await),
        // A server without a tokenizer may even answer 500.
        _ => return Ok(()),
    }
    let body = collect_body(server, response, PROBE_BODY_BYTES_MAX).await?;
    let Ok(Tokenized { tokens: theirs }) = serde_json::from_slice(&body) else { return Ok(()) };
    let ours = encode(TOKENIZER_PROBE);
    if ours == theirs {
        return Ok(());
    }
    Err(server.unfit(server.at_url(&format!(
        "its tokenizer is not that of model.tokenizer: for the text {TOKENIZER_PROBE:?}, the server gives \
         tokens={theirs:?}, and model.tokenizer gives tokens={ours:?}"
    ))))
}

/// Checks that the completions of the server return text.
async fn check_text(transport: &Transport, server: &Server, model: &str) -> Result<Dialect, EngineError> {
    let as_text = serde_json::json!({ "model": model, "prompt": "1", "max_tokens": 1 });
    let response = post(transport, server, "/v1/completions", as_text.to_string()).await?;
    if response.status() != StatusCode::OK {
        return Err(refusal(server, response).await);
    }
    let body = collect_body(server, response, PROBE_BODY_BYTES_MAX).await?;
    match read_probe(&body, Content::Text) {
        Ok(_) => Ok(Dialect::TextOnly),
        Err(error) => Err(not_sound(server, &error)),
    }
}

fn read_probe(body: &[u8], content: Content) -> Result<CheckedAnswer, AnswerError> {
    let expected = Expected {
        request_id: "".into(),
        prompt_ids: [PROBE_TOKEN].into(),
        n: 1,
        max_tokens: 1,
        // The answer is thrown away.
        vocab_size: VOCAB_SIZE_UNKNOWN,
        content,
    };
    let mut reader = AnswerReader::new(expected);
    reader.feed(body)?;
    reader.finish()
}
