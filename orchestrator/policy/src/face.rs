//! The HTTP interface for the trainer, on its own port and with an optional token.
//!
//! | call | what it does |
//! |---|---|
//! | `POST /v1/policy/announce` | announces a new version: `{"version": 7}`, with an optional `label`, `path` and `payload` |
//! | `GET /v1/policy` | returns the version that servers have, the announced version, and the state of the update |
//! | `GET /v1/policy/wait?version=7&timeout_s=60` | answers when the servers have that version or a later one; fails with `not_yet` after `timeout_s` seconds (60 if absent) |
//!
//! Errors are answered as `{"error": {"code": "...", "message": "...", ...}}`. The codes are stable.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body_util::LengthLimitError;
use rolldock_listener::{Client, Connections, HalfClosed};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{AnnounceError, Announced, Announcement, Updates};

/// Maximum bytes of an announcement. A payload describes weights; it does not contain them.
const ANNOUNCEMENT_BYTES_MAX: usize = 4 << 20;
/// Maximum time for the body of a request to arrive. The listener reads small bodies before this time begins.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// Default of `timeout_s`, in seconds.
const WAIT_DEFAULT_S: f64 = 60.0;
/// Maximum of `timeout_s`, in seconds. Proxies cut off longer waits.
const WAIT_MAX_S: f64 = 3600.0;

struct Face {
    updates: Updates,
    token: Option<String>,
    /// Ends calls that wait.
    end: CancellationToken,
}

type Shared = State<Arc<Face>>;
type Answer = Result<Response, Failure>;

/// Answers requests at `listener` until `end`. Cancel-safe: running calls are dropped.
pub(super) async fn serve(
    updates: Updates,
    token: Option<String>,
    listener: TcpListener,
    connections: Connections,
    end: CancellationToken,
) {
    let face = Arc::new(Face { updates, token, end: end.clone() });
    let router = Router::new()
        .route("/v1/policy", get(status))
        .route("/v1/policy/announce", post(announce))
        .route("/v1/policy/wait", get(wait))
        .method_not_allowed_fallback(async || Failure::Method)
        .fallback(async || Failure::Path)
        .layer(middleware::from_fn_with_state(Arc::clone(&face), check_token))
        .with_state(face);
    rolldock_listener::serve(listener, router, connections, HalfClosed::Dropped, end).await;
}

/// The reason why a call fails.
enum Failure {
    Unauthorized,
    Path,
    Method,
    Announcement(AnnounceError),
    Body(String),
    TooLarge,
    Slow,
    Query(String),
    Late { wanted: u64, version: u64 },
    Ended,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, code, message, numbers) = self.in_words();
        let mut error = json!({ "code": code, "message": message });
        if let (Value::Object(error), Value::Object(numbers)) = (&mut error, numbers) {
            error.extend(numbers);
        }
        (status, Json(json!({ "error": error }))).into_response()
    }
}

impl Failure {
    fn in_words(&self) -> (StatusCode, &'static str, String, Value) {
        let none = Value::Null;
        match self {
            Self::Unauthorized => {
                let message = "expected policy.token as a bearer token".to_owned();
                (StatusCode::UNAUTHORIZED, "unauthorized", message, none)
            }
            Self::Path => {
                let message = "expected /v1/policy, /v1/policy/announce or /v1/policy/wait".to_owned();
                (StatusCode::NOT_FOUND, "not_found", message, none)
            }
            Self::Method => {
                let message = "expected POST for /v1/policy/announce, GET for the others".to_owned();
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message, none)
            }
            Self::Announcement(error) => {
                let (status, code, numbers) = match *error {
                    AnnounceError::NotNewer { version, announced } => {
                        let numbers = json!({ "version": version, "announced": announced });
                        (StatusCode::CONFLICT, "not_newer", numbers)
                    }
                    AnnounceError::Differs { version } => {
                        let numbers = json!({ "version": version, "announced": version });
                        (StatusCode::CONFLICT, "differs", numbers)
                    }
                    AnnounceError::BadLabel { .. } => (StatusCode::BAD_REQUEST, "bad_label", none),
                    AnnounceError::TooLarge { .. } => (StatusCode::BAD_REQUEST, "version_too_large", none),
                };
                (status, code, error.to_string(), numbers)
            }
            Self::Body(reason) => {
                let message = format!(
                    "expected an announcement like {{\"version\": 7, \"label\": \"step-7\", \"path\": \"/..\"}}: {reason}"
                );
                (StatusCode::BAD_REQUEST, "bad_announcement", message, none)
            }
            Self::TooLarge => {
                let message = format!(
                    "expected an announcement of at most {ANNOUNCEMENT_BYTES_MAX} bytes, found a longer one"
                );
                (StatusCode::PAYLOAD_TOO_LARGE, "too_large", message, none)
            }
            Self::Slow => {
                let message = format!("the body did not arrive within {} s", BODY_TIME_MAX.as_secs());
                (StatusCode::REQUEST_TIMEOUT, "slow_body", message, none)
            }
            Self::Query(reason) => (StatusCode::BAD_REQUEST, "bad_query", reason.clone(), none),
            Self::Late { wanted, version } => {
                let message =
                    format!("expected version={wanted} or later, the servers have version={version}");
                let numbers = json!({ "wanted": wanted, "version": version });
                (StatusCode::REQUEST_TIMEOUT, "not_yet", message, numbers)
            }
            Self::Ended => {
                let message = "the run has ended".to_owned();
                (StatusCode::SERVICE_UNAVAILABLE, "ended", message, none)
            }
        }
    }
}

async fn check_token(State(face): Shared, client: Client, request: Request, next: Next) -> Response {
    let sent = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let sent = sent.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    let is_right = face.token.as_deref().is_none_or(|token| same(token.as_bytes(), sent.as_bytes()));
    if !is_right {
        return Failure::Unauthorized.into_response();
    }
    client.authenticated().await;
    next.run(request).await
}

/// Compares in a time that does not depend on where the first difference is.
fn same(left: &[u8], right: &[u8]) -> bool {
    let different = left.iter().zip(right).fold(0, |different, (left, right)| different | (left ^ right));
    left.len() == right.len() && different == 0
}

async fn status(State(face): Shared) -> Response {
    Json(face.updates.status()).into_response()
}

async fn announce(State(face): Shared, body: Body) -> Answer {
    let reading = tokio::time::timeout(BODY_TIME_MAX, to_bytes(body, ANNOUNCEMENT_BYTES_MAX)).await;
    let bytes = reading.map_err(|_elapsed| Failure::Slow)?.map_err(|error| match error.source() {
        Some(cause) if cause.is::<LengthLimitError>() => Failure::TooLarge,
        _ => Failure::Body(format!("the body did not arrive: {error}")),
    })?;
    // serde would also accept an array with the values of the fields in order.
    if bytes.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(Failure::Body("it is not an object".to_owned()));
    }
    let read = serde_json::from_slice::<Announcement>(&bytes);
    let announcement = read.map_err(|error| Failure::Body(error.to_string()))?;
    let status = match face.updates.state().announce(announcement).map_err(Failure::Announcement)? {
        Announced::Taken => StatusCode::ACCEPTED,
        Announced::Again => StatusCode::OK,
    };
    Ok((status, Json(face.updates.status())).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    version: u64,
    #[serde(default = "wait_default_s")]
    timeout_s: f64,
}

fn wait_default_s() -> f64 {
    WAIT_DEFAULT_S
}

async fn wait(State(face): Shared, query: Result<Query<Wait>, QueryRejection>) -> Answer {
    let Query(Wait { version, timeout_s }) = query.map_err(|error| Failure::Query(error.body_text()))?;
    if !(0.0..=WAIT_MAX_S).contains(&timeout_s) {
        let reason = format!("timeout_s={timeout_s}: expected 0 to {WAIT_MAX_S}");
        return Err(Failure::Query(reason));
    }
    let limit = Duration::from_secs_f64(timeout_s);
    let served = tokio::time::timeout(limit, face.updates.state().until_served(version));
    match face.end.run_until_cancelled(served).await {
        Some(Ok(())) => Ok(Json(face.updates.status()).into_response()),
        Some(Err(_elapsed)) => Err(Failure::Late { wanted: version, version: face.updates.state().served() }),
        None => Err(Failure::Ended),
    }
}

#[cfg(test)]
mod tests;
