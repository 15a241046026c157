//! The HTTP client for control calls. It has a connection pool of its own, so control calls never wait behind
//! requests that generate.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::header::CONNECTION;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

use super::{ControlError, ServerRef, excerpt};
use crate::{is_exhaustion, within};

/// Longest answer, in bytes. Even the metrics of a busy server with many series are far shorter.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Bytes of an error answer that are kept for the error message.
const ERROR_BYTES_MAX: usize = 300;
const MODELS: &str = "/v1/models";
/// The beginning of the error reason of a call that was refused for a missing or wrong key.
const KEY_REFUSED: &str = "status 401";
/// The token id that a probe sends. Every vocabulary contains it.
pub(super) const PROBE_TOKEN: u32 = 1;
/// Maximum number of complaints that are remembered. Further ones are not logged.
const COMPLAINTS_MAX: usize = 4096;

/// A server's name, and the subject of a warning about it.
type Complaint = (Arc<str>, &'static str);

/// A client for control calls.
#[derive(Debug, Clone)]
pub struct HttpControl {
    client: Client,
    deadline: Duration,
    api_key: Option<Arc<str>>,
    /// The warnings that have been logged. Each one is logged once for each server.
    complaints: Arc<Mutex<HashSet<Complaint>>>,
}

impl HttpControl {
    /// `deadline` bounds every call; `api_key` is sent as a bearer token. The deadline does not count the
    /// time for which this process was late (module `lateness`).
    pub fn new(deadline: Duration, api_key: Option<Arc<str>>) -> Result<Self, ControlError> {
        // The engine closes idle connections after 5 s, so the pool has to drop them earlier.
        let client = Client::builder().pool_idle_timeout(Duration::from_secs(4)).no_proxy().build().map_err(
            |error| ControlError::Failed {
                server: "client".into(),
                what: "start",
                reason: error.to_string(),
            },
        )?;
        Ok(Self { client, deadline, api_key, complaints: Arc::default() })
    }

    /// Notes a complaint about `what` at this server. Returns whether it is the first one.
    pub(super) fn is_first_time(&self, server: &ServerRef, what: &'static str) -> bool {
        let mut complaints = self.complaints.lock();
        complaints.len() < COMPLAINTS_MAX && complaints.insert((Arc::clone(&server.name), what))
    }

    /// A request to a path of a server.
    fn request(
        &self,
        method: Method,
        server: &ServerRef,
        path: &str,
    ) -> Result<RequestBuilder, ControlError> {
        let unsupported = || ControlError::Unsupported { server: Arc::clone(&server.name), what: "HTTP" };
        let base = server.url.as_deref().ok_or_else(unsupported)?;
        let request = self.client.request(method, format!("{}{path}", base.trim_end_matches('/')));
        Ok(match &self.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        })
    }

    /// The result of a call, if it arrives within the deadline.
    async fn timed<T>(
        &self,
        server: &ServerRef,
        what: &'static str,
        call: impl Future<Output = Result<T, ControlError>>,
    ) -> Result<T, ControlError> {
        within(self.deadline, call).await.unwrap_or_else(|_overdue| {
            Err(failed(server, what, &format!("no answer within {} s", self.deadline.as_secs_f64())))
        })
    }

    /// Sends a request that changes nothing on the server. A server closes a connection that has been silent
    /// for a few seconds, and this process may write to such a connection before it notices. A request that
    /// is lost in this way is sent again, once. Fails if the answer has an error status.
    async fn ask(
        &self,
        server: &ServerRef,
        what: &'static str,
        request: RequestBuilder,
    ) -> Result<Response, ControlError> {
        let again = request.try_clone();
        match (request.send().await, again) {
            (Err(error), Some(again)) if error.is_request() && !error.is_connect() => {
                self.accept(server, what, again.send().await).await
            }
            (answered, _) => self.accept(server, what, answered).await,
        }
    }

    /// The answer to a request. Fails if no answer arrives, or if the answer has an error status.
    async fn accept(
        &self,
        server: &ServerRef,
        what: &'static str,
        answered: reqwest::Result<Response>,
    ) -> Result<Response, ControlError> {
        let response = answered.map_err(|error| unanswered(server, what, &error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status == StatusCode::UNAUTHORIZED && self.is_first_time(server, "key") {
            tracing::warn!(server = %server.name, what, "the server refuses the api key, or wants one");
        }
        if matches!(status, StatusCode::NOT_FOUND | StatusCode::FORBIDDEN | StatusCode::METHOD_NOT_ALLOWED) {
            return Err(ControlError::Unsupported { server: Arc::clone(&server.name), what });
        }
        let text = error_text(response).await;
        Err(failed(server, what, &format!("status {status}{text}")))
    }

    pub(super) async fn get(
        &self,
        server: &ServerRef,
        what: &'static str,
        path: &str,
    ) -> Result<Vec<u8>, ControlError> {
        let request = self.request(Method::GET, server, path)?;
        let call = async { whole(server, what, self.ask(server, what, request).await?).await };
        self.timed(server, what, call).await
    }

    /// Posts a request that changes nothing on the server, and returns the body of the answer.
    pub(super) async fn ask_for(
        &self,
        server: &ServerRef,
        what: &'static str,
        path: &str,
        body: &Value,
    ) -> Result<Vec<u8>, ControlError> {
        let request = self.request(Method::POST, server, path)?.json(body);
        let call = async { whole(server, what, self.ask(server, what, request).await?).await };
        self.timed(server, what, call).await
    }

    /// Posts on a connection that is closed afterwards. vLLM resets a connection on which an endpoint of the
    /// development mode has failed. The next call on this connection would be lost, and that call may be the
    /// one that resumes the engine.
    pub(super) async fn post(
        &self,
        server: &ServerRef,
        what: &'static str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(), ControlError> {
        let request = self.request(Method::POST, server, path)?.header(CONNECTION, "close");
        self.timed(server, what, self.send(server, what, request, body)).await.map(drop)
    }

    /// Like [`post`](Self::post), but on a connection that is reused. This is for calls that are made often.
    pub(super) async fn post_often(
        &self,
        server: &ServerRef,
        what: &'static str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(), ControlError> {
        let request = self.request(Method::POST, server, path)?;
        self.timed(server, what, self.send(server, what, request, body)).await.map(drop)
    }

    /// Like [`post`](Self::post), but returns the body of the answer.
    pub(super) async fn post_for(
        &self,
        server: &ServerRef,
        what: &'static str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Vec<u8>, ControlError> {
        let request = self.request(Method::POST, server, path)?.header(CONNECTION, "close");
        let call = async { whole(server, what, self.send(server, what, request, body).await?).await };
        self.timed(server, what, call).await
    }

    async fn send(
        &self,
        server: &ServerRef,
        what: &'static str,
        request: RequestBuilder,
        body: Option<&Value>,
    ) -> Result<Response, ControlError> {
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        self.accept(server, what, request.send().await).await
    }

    /// Succeeds if the server lists its models. A refusal because of a missing or wrong key counts as
    /// success, too: it shows that the server is alive.
    pub(super) async fn models(&self, server: &ServerRef) -> Result<(), ControlError> {
        match self.get(server, "models", MODELS).await {
            Err(ControlError::Failed { reason, .. }) if reason.starts_with(KEY_REFUSED) => Ok(()),
            answered => answered.map(drop),
        }
    }

    /// Makes the server generate one token with the first model that it lists. Fails with
    /// [`ControlError::Unsupported`] if the server refuses the key.
    pub(super) async fn generate_one(&self, server: &ServerRef) -> Result<(), ControlError> {
        match self.try_generating(server).await {
            Err(ControlError::Failed { reason, what, .. }) if reason.starts_with(KEY_REFUSED) => {
                Err(ControlError::Unsupported { server: Arc::clone(&server.name), what })
            }
            generated => generated,
        }
    }

    /// The first model that the server lists.
    pub(super) async fn first_model(
        &self,
        server: &ServerRef,
        what: &'static str,
    ) -> Result<String, ControlError> {
        let models: Value = serde_json::from_slice(&self.get(server, what, MODELS).await?)
            .map_err(|error| failed(server, what, &error.to_string()))?;
        let model = models["data"][0]["id"].as_str();
        model.map(str::to_owned).ok_or_else(|| failed(server, what, "expected a list of models, found none"))
    }

    async fn try_generating(&self, server: &ServerRef) -> Result<(), ControlError> {
        let what = "a probe";
        let model = self.first_model(server, what).await?;
        let body = json!({ "model": model, "prompt": [PROBE_TOKEN], "max_tokens": 1 });
        let request = self.request(Method::POST, server, "/v1/completions")?.json(&body);
        self.timed(server, what, self.ask(server, what, request)).await.map(drop)
    }
}

pub(super) fn failed(server: &ServerRef, what: &'static str, reason: &str) -> ControlError {
    ControlError::Failed { server: Arc::clone(&server.name), what, reason: reason.to_owned() }
}

fn unanswered(server: &ServerRef, what: &'static str, error: &reqwest::Error) -> ControlError {
    let reason = reason_of(error);
    if is_exhaustion(error) {
        return ControlError::Unasked { server: Arc::clone(&server.name), what, reason };
    }
    failed(server, what, &reason)
}

async fn whole(
    server: &ServerRef,
    what: &'static str,
    mut response: Response,
) -> Result<Vec<u8>, ControlError> {
    let mut bytes = Vec::new();
    loop {
        let piece = response.chunk().await.map_err(|error| failed(server, what, &reason_of(&error)))?;
        let Some(piece) = piece else { return Ok(bytes) };
        if bytes.len() + piece.len() > ANSWER_BYTES_MAX {
            return Err(failed(server, what, "the answer is longer than 16 MiB"));
        }
        bytes.extend_from_slice(&piece);
    }
}

/// The beginning of an error answer, as a suffix for an error message.
pub(crate) async fn error_text(mut response: Response) -> String {
    let mut bytes = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        bytes.extend_from_slice(&piece);
        if bytes.len() >= ERROR_BYTES_MAX {
            bytes.truncate(ERROR_BYTES_MAX);
            break;
        }
    }
    if bytes.is_empty() { String::new() } else { format!(": {}", excerpt(&bytes)) }
}

/// The root cause, which reqwest's own message leaves out.
pub(crate) fn reason_of(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests;
