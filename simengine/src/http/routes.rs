//! Finds the handler of a request, and makes the checks of the web framework: paths, methods, keys, ids.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};
use serde_json::json;

use super::render::Surface;
use super::reply::{Handled, Refusal, Reset, json_response};
use super::{Body, Face, chat, completions, control, derender, generate, messages, render, responses};
use crate::Phase;

const REQUEST_ID: header::HeaderName = header::HeaderName::from_static("x-request-id");

/// Every path, with its method.
const ROUTES: [(&str, Method); 34] = [
    ("/health", Method::GET),
    ("/ping", Method::GET),
    ("/version", Method::GET),
    ("/load", Method::GET),
    ("/metrics", Method::GET),
    ("/v1/models", Method::GET),
    ("/is_paused", Method::GET),
    ("/is_sleeping", Method::GET),
    ("/weight_info", Method::GET),
    ("/v1/completions", Method::POST),
    ("/v1/chat/completions", Method::POST),
    ("/v1/messages", Method::POST),
    ("/v1/responses", Method::POST),
    ("/v1/completions/render", Method::POST),
    ("/v1/completions/derender", Method::POST),
    ("/v1/chat/completions/render", Method::POST),
    ("/v1/messages/render", Method::POST),
    ("/v1/responses/render", Method::POST),
    ("/v1/chat/completions/derender", Method::POST),
    ("/inference/v1/generate", Method::POST),
    ("/inference/v1/abort_requests", Method::POST),
    ("/abort_requests", Method::POST),
    ("/tokenize", Method::POST),
    ("/detokenize", Method::POST),
    ("/pause", Method::POST),
    ("/resume", Method::POST),
    ("/sleep", Method::POST),
    ("/wake_up", Method::POST),
    ("/collective_rpc", Method::POST),
    ("/update_weight_version", Method::POST),
    ("/reset_prefix_cache", Method::POST),
    ("/reset_mm_cache", Method::POST),
    ("/reset_encoder_cache", Method::POST),
    ("/is_scaling_elastic_ep", Method::POST),
];

/// Answers one request. An error means that the connection has to be reset.
///
/// Cancel-safe: when the future is dropped, for example because the client has disconnected, the engine drops
/// the request.
pub(crate) async fn respond(face: &Arc<Face>, request: Request<Incoming>) -> Result<Response<Body>, Reset> {
    if face.server.phase() == Phase::Gone {
        return Err(Reset);
    }
    let header_id = request.headers().get(REQUEST_ID).cloned();
    let mut response = dispatch(face, request).await?;
    let headers = response.headers_mut();
    headers.insert(header::SERVER, header::HeaderValue::from_static("uvicorn"));
    let fresh = || header::HeaderValue::from_str(&face.fresh_id()).ok();
    if let Some(id) = header_id.or_else(fresh) {
        headers.insert(REQUEST_ID, id);
    }
    Ok(response)
}

async fn dispatch(face: &Arc<Face>, request: Request<Incoming>) -> Handled {
    let (head, incoming) = request.into_parts();
    let path = head.uri.path();
    if !is_authorised(face, path, &head.headers) {
        return Ok(json_response(StatusCode::UNAUTHORIZED, &json!({ "error": "Unauthorized" })));
    }
    let Some((_, method)) = ROUTES.iter().find(|(known, _)| *known == path) else {
        return Ok(json_response(StatusCode::NOT_FOUND, &json!({ "detail": "Not Found" })));
    };
    if head.method != *method {
        let mut response =
            json_response(StatusCode::METHOD_NOT_ALLOWED, &json!({ "detail": "Method Not Allowed" }));
        if let Ok(allowed) = header::HeaderValue::from_str(method.as_str()) {
            response.headers_mut().insert(header::ALLOW, allowed);
        }
        return Ok(response);
    }
    if is_scale_out(path) && !face.server.config().scale_out {
        return Ok(scale_out_is_off().response());
    }
    let body = match read_body(face, incoming).await {
        Ok(body) => body,
        Err(refusal) => return Ok(refusal.response()),
    };
    let query = head.uri.query().unwrap_or_default();
    if reads_json(path)
        && let Err(refusal) = check_content_type(&head.headers)
    {
        return Ok(refusal.response());
    }
    if generates(path) {
        return call_generating(face, path, &head.headers, &body).await;
    }
    if let Some(surface) = rendered_surface(path) {
        let rendered = render::render(face, surface, header_id(&head.headers), &body);
        return Ok(rendered.unwrap_or_else(Refusal::response));
    }
    Ok(call_other(face, path, query, &body).await.unwrap_or_else(Refusal::response))
}

fn generates(path: &str) -> bool {
    let by_text =
        matches!(path, "/v1/completions" | "/v1/chat/completions" | "/v1/messages" | "/v1/responses");
    by_text || path == "/inference/v1/generate"
}

/// Whether vLLM serves this path only with `--enable-scale-out`.
fn is_scale_out(path: &str) -> bool {
    path.starts_with("/inference/") || path.ends_with("/render") || path.ends_with("/derender")
}

/// Whether a request to this path must say that its body is JSON.
fn reads_json(path: &str) -> bool {
    generates(path) || path.ends_with("/render") || path.ends_with("/derender")
}

fn rendered_surface(path: &str) -> Option<Surface> {
    match path {
        "/v1/completions/render" => Some(Surface::Completions),
        "/v1/chat/completions/render" => Some(Surface::Chat),
        "/v1/messages/render" => Some(Surface::Messages),
        "/v1/responses/render" => Some(Surface::Responses),
        _ => None,
    }
}

fn header_id(headers: &HeaderMap) -> Option<String> {
    headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).map(str::to_owned)
}

async fn call_generating(face: &Arc<Face>, path: &str, headers: &HeaderMap, body: &Bytes) -> Handled {
    let asked_id = header_id(headers);
    match path {
        "/v1/completions" => completions::handle(face, asked_id, body).await,
        "/v1/chat/completions" => chat::handle(face, asked_id, body).await,
        "/v1/messages" => messages::handle(face, asked_id, body).await,
        "/v1/responses" => responses::handle(face, asked_id, body).await,
        _ => generate::handle(face, asked_id, body).await,
    }
}

async fn call_other(face: &Face, path: &str, query: &str, body: &Bytes) -> Result<Response<Body>, Refusal> {
    match path {
        "/health" | "/ping" => Ok(control::health(face)),
        "/version" => Ok(control::version()),
        "/load" => Ok(control::load()),
        "/metrics" => Ok(control::metrics(face)),
        "/v1/models" => Ok(control::models(face)),
        "/is_paused" => Ok(control::is_paused(face)),
        "/is_sleeping" => Ok(control::is_sleeping(face)),
        "/weight_info" => Ok(control::weight_info(face)),
        "/inference/v1/abort_requests" => control::abort_generate(face, body),
        "/abort_requests" => control::abort(face, body),
        "/tokenize" => control::tokenize(face, body),
        "/detokenize" => control::detokenize(face, body),
        "/v1/chat/completions/derender" => derender::chat(face, body),
        "/v1/completions/derender" => derender::completions(face, body),
        "/pause" => control::pause(face, query).await,
        "/resume" => Ok(control::resume(face)),
        "/sleep" => control::sleep(face, query).await,
        "/wake_up" => Ok(control::wake_up(face)),
        "/collective_rpc" => control::collective_rpc(body),
        "/update_weight_version" => control::update_weight_version(face, body),
        "/reset_prefix_cache" => Ok(control::reset_prefix_cache(face, query)),
        "/is_scaling_elastic_ep" => {
            Ok(json_response(StatusCode::OK, &json!({ "is_scaling_elastic_ep": false })))
        }
        // The remaining endpoints reset caches that only multi-modal models have.
        _ => Ok(super::reply::empty_response()),
    }
}

/// Whether a request may be answered. As in vLLM, only calls below `/v1` and `/inference` need the key.
/// Health, metrics and the development endpoints need no key.
fn is_authorised(face: &Face, path: &str, headers: &HeaderMap) -> bool {
    let Some(key) = &face.server.config().api_key else { return true };
    if !path.starts_with("/v1") && !path.starts_with("/inference") {
        return true;
    }
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    given.and_then(|value| value.strip_prefix("Bearer ")) == Some(key.as_str())
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_json = given.is_some_and(|value| value.to_ascii_lowercase().starts_with("application/json"));
    if is_json {
        return Ok(());
    }
    let message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed";
    Err(Refusal::unreadable(None, message))
}

fn scale_out_is_off() -> Refusal {
    Refusal::new(
        StatusCode::FORBIDDEN,
        "PermissionDeniedError",
        None,
        "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
    )
}

async fn read_body(face: &Face, incoming: Incoming) -> Result<Bytes, Refusal> {
    let limit = face.server.config().body_bytes_max;
    match Limited::new(incoming, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(_) => Err(Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "Bad Request",
            None,
            format!("the body is incomplete or larger than {limit} bytes"),
        )),
    }
}
