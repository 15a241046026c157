//! The endpoints that do not generate: health, version, models, metrics, tokenizing, aborts, and the
//! endpoints of vLLM's development mode.

use hyper::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::params::{check_model, parse};
use super::reply::{Refusal, bytes_response, empty_response, json_response};
use super::template::{Message, render};
use super::tools::Tool;
use super::{Body, Face};
use crate::{PauseMode, Phase};

/// The version of vLLM that is simulated.
const VLLM_VERSION: &str = "0.32.0";

type Answer = Result<Response<Body>, Refusal>;

/// `/health`: answers without a body. The status is 503 when the engine is dead.
pub(crate) fn health(face: &Face) -> Response<Body> {
    let mut response = empty_response();
    if face.server.phase() != Phase::Serving {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

/// `/version`.
pub(crate) fn version() -> Response<Body> {
    ok(&json!({ "version": VLLM_VERSION }))
}

/// `/v1/models`.
pub(crate) fn models(face: &Face) -> Response<Body> {
    let config = face.server.config();
    let created = face.unix_s();
    let permission = json!({
        "id": format!("modelperm-{}", face.fresh_id()),
        "object": "model_permission",
        "created": created,
        "allow_create_engine": false,
        "allow_sampling": true,
        "allow_logprobs": true,
        "allow_search_indices": false,
        "allow_view": true,
        "allow_fine_tuning": false,
        "organization": "*",
        "group": null,
        "is_blocking": false,
    });
    ok(&json!({ "object": "list", "data": [{
        "id": config.model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": config.model,
        "parent": null,
        "max_model_len": config.max_model_len,
        "permission": [permission],
    }] }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TokenizeParams {
    model: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<Message>>,
    tools: Option<Vec<Tool>>,
    add_generation_prompt: Option<bool>,
    return_token_strs: Option<bool>,
}

/// `/tokenize`: the token ids of a prompt or a conversation.
pub(crate) fn tokenize(face: &Face, body: &[u8]) -> Answer {
    let params: TokenizeParams = parse(body)?;
    check_model(face, params.model.as_deref())?;
    let text = match (params.prompt, params.messages) {
        (Some(prompt), _) => prompt,
        (None, Some(messages)) => {
            let tools = params.tools.unwrap_or_default();
            render(&messages, &tools, params.add_generation_prompt.unwrap_or(true))
        }
        (None, None) => return Err(Refusal::unreadable(Some("body.prompt"), "Field required")),
    };
    let encoded = face.codec.encode(&text);
    let tokens = encoded.map_err(|error| Refusal::bad_request(Some("prompt"), error.to_string()))?;
    let wants_texts = params.return_token_strs.unwrap_or(false);
    let texts = wants_texts.then(|| tokens.iter().map(|id| face.codec.piece(*id)).collect::<Vec<_>>());
    Ok(ok(&json!({
        "count": tokens.len(),
        "max_model_len": face.server.config().max_model_len,
        "tokens": tokens,
        "token_strs": texts,
    })))
}

#[derive(Debug, Deserialize)]
struct DetokenizeParams {
    tokens: Vec<u32>,
}

/// `/detokenize`.
pub(crate) fn detokenize(face: &Face, body: &[u8]) -> Answer {
    let params: DetokenizeParams = parse(body)?;
    Ok(ok(&json!({ "prompt": face.codec.decode(&params.tokens) })))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AbortParams {
    request_ids: Option<Vec<String>>,
}

/// `/abort_requests`: aborts the given ids, or all requests if none are given. Unknown ids count as aborted.
pub(crate) fn abort(face: &Face, body: &[u8]) -> Answer {
    let aborted = abort_ids(face, body)?;
    Ok(ok(&json!({ "status": "aborted", "aborted": aborted })))
}

/// `/inference/v1/abort_requests`: aborts like `/abort_requests`, and answers without a body.
pub(crate) fn abort_generate(face: &Face, body: &[u8]) -> Answer {
    abort_ids(face, body)?;
    Ok(empty_response())
}

fn abort_ids(face: &Face, body: &[u8]) -> Result<usize, Refusal> {
    let read: Result<AbortParams, _> = serde_json::from_slice(body);
    let params = read.map_err(|_| Refusal::unreadable(None, "Invalid JSON format"))?;
    Ok(match params.request_ids {
        Some(ids) if !ids.is_empty() => {
            face.server.abort(&ids);
            ids.len()
        }
        _ => face.server.abort_all(),
    })
}

/// `/pause?mode=`. Cancel-safe: the engine stays paused if the client disconnects.
pub(crate) async fn pause(face: &Face, query: &str) -> Answer {
    face.server.pause(mode(query)?).await;
    Ok(ok(&json!({ "status": "paused" })))
}

/// `/resume`.
pub(crate) fn resume(face: &Face) -> Response<Body> {
    face.server.resume();
    ok(&json!({ "status": "resumed" }))
}

/// `/is_paused`.
pub(crate) fn is_paused(face: &Face) -> Response<Body> {
    ok(&json!({ "is_paused": face.server.is_paused() }))
}

/// `/sleep?level=&mode=`. Cancel-safe: the engine stays asleep if the client disconnects.
pub(crate) async fn sleep(face: &Face, query: &str) -> Answer {
    let level = match value_of(query, "level") {
        None => 1,
        Some(text) => text.parse().ok().filter(|level| *level <= 2).ok_or_else(|| {
            Refusal::unreadable(Some("query.level"), format!("level must be 0, 1 or 2, got '{text}'"))
        })?,
    };
    face.server.sleep(level, mode(query)?).await;
    Ok(ok(&json!({ "status": "sleeping", "level": level })))
}

/// `/wake_up`.
pub(crate) fn wake_up(face: &Face) -> Response<Body> {
    face.server.wake();
    ok(&json!({ "status": "awake", "tags": null }))
}

/// `/is_sleeping`.
pub(crate) fn is_sleeping(face: &Face) -> Response<Body> {
    ok(&json!({ "is_sleeping": face.server.is_sleeping() }))
}

#[derive(Debug, Deserialize)]
struct RpcParams {
    method: String,
}

/// `/collective_rpc`: calls a method of the workers. There is one worker, and its only method is
/// `reload_weights`, which always succeeds: the simulated model has no weights.
pub(crate) fn collective_rpc(body: &[u8]) -> Answer {
    let params: RpcParams = parse(body)?;
    if params.method != "reload_weights" {
        let message = format!("'Worker' object has no attribute '{}'", params.method);
        return Err(Refusal::bad_request(Some("method"), message));
    }
    Ok(ok(&json!({ "results": [null] })))
}

#[derive(Debug, Deserialize)]
struct VersionParams {
    new_version: String,
}

/// `/update_weight_version`.
pub(crate) fn update_weight_version(face: &Face, body: &[u8]) -> Answer {
    let params: VersionParams = parse(body)?;
    face.server.update_weight_version(params.new_version.as_str());
    Ok(ok(&json!({ "success": true, "new_version": params.new_version })))
}

/// `/weight_info`.
pub(crate) fn weight_info(face: &Face) -> Response<Body> {
    ok(&json!({ "weight_version": &*face.server.weight_version() }))
}

/// `/reset_prefix_cache?reset_running_requests=`.
pub(crate) fn reset_prefix_cache(face: &Face, query: &str) -> Response<Body> {
    let recompute =
        value_of(query, "reset_running_requests").is_some_and(|flag| flag == "true" || flag == "1");
    ok(&json!({ "success": face.server.reset_prefix_cache(recompute) }))
}

/// `/load`: always zero, as on a real server without `--enable-server-load-tracking`.
pub(crate) fn load() -> Response<Body> {
    ok(&json!({ "server_load": 0 }))
}

/// `/metrics`.
pub(crate) fn metrics(face: &Face) -> Response<Body> {
    let text = super::exposition::render(face.server.config(), &face.server.stats());
    bytes_response(StatusCode::OK, "text/plain; version=1.0.0; charset=utf-8", text.into_bytes())
}

fn mode(query: &str) -> Result<PauseMode, Refusal> {
    match value_of(query, "mode") {
        None | Some("abort") => Ok(PauseMode::Abort),
        Some("wait") => Ok(PauseMode::Wait),
        Some("keep") => Ok(PauseMode::Keep),
        Some(other) => Err(Refusal::unreadable(
            Some("query.mode"),
            format!(
                "1 validation error:\n  {{'type': 'literal_error', 'loc': 'query.mode', 'msg': \"Input should be \
                 'abort', 'wait' or 'keep'\", 'input': '{other}', 'ctx': {{'expected': \"'abort', 'wait' or \
                 'keep'\"}}}}"
            ),
        )),
    }
}

/// The value of a key in a query. Escapes are not decoded, since no valid value has any.
fn value_of<'a>(query: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
}

fn ok(value: &Value) -> Response<Body> {
    json_response(StatusCode::OK, value)
}
