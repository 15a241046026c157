//! Why a call to an engine fails.

use std::error::Error;
use std::time::Duration;

use reqwest::StatusCode;
use rolldock_loadbalancer::control::excerpt;
use serde_json::Value;

/// Words of an error that blames the request, although the engine's numbers are at fault.
const NAN_WORDS: &str = "JSON compliant";

/// Why a call to an engine fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// There was no connection.
    #[error("cannot reach server={server}: {reason}")]
    Unreachable { server: String, reason: String },
    /// The server answered 503 or 429.
    #[error("server={server} is busy: {reason}")]
    Busy { server: String, retry_after: Option<Duration>, reason: String },
    /// The server has no such endpoint, or has it switched off.
    #[error("server={server} does not offer {path}: {reason}")]
    Missing { server: String, path: String, reason: String },
    /// The server answered another 4xx: the request or its API key is wrong.
    #[error("server={server} refused the request with status={status}: {reason}")]
    Refused { server: String, status: u16, reason: String },
    /// The server answered with another status than 200, 4xx or 503, or the connection was lost.
    #[error("server={server} failed: {reason}")]
    Failed { server: String, reason: String },
    /// The answer cannot be trusted.
    #[error("bad answer from server={server}: {reason}")]
    Bad { server: String, reason: String },
}

impl CallError {
    pub(crate) fn bad(server: &str, reason: &str) -> Self {
        Self::Bad { server: server.to_owned(), reason: reason.to_owned() }
    }

    /// The error if no answer, or only a part of it, has arrived.
    pub(super) fn unanswered(server: &str, error: &reqwest::Error) -> Self {
        let mut cause: &dyn Error = error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        let (server, reason) = (server.to_owned(), cause.to_string());
        if error.is_connect() {
            Self::Unreachable { server, reason }
        } else {
            Self::Failed { server, reason }
        }
    }

    /// The error that the status and the body of an answer at `path` describe.
    pub(super) fn from_status(
        server: &str,
        path: &str,
        status: StatusCode,
        retry_after: Option<Duration>,
        body: &[u8],
    ) -> Self {
        let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
        let message = parsed["error"]["message"].as_str().or(parsed["error"].as_str());
        let detail = parsed["detail"].as_str();
        let reason = message.or(detail).map_or_else(|| excerpt(body), str::to_owned);
        let server = server.to_owned();
        match status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                Self::Busy { server, retry_after, reason }
            }
            StatusCode::FORBIDDEN | StatusCode::METHOD_NOT_ALLOWED => {
                Self::Missing { server, path: path.to_owned(), reason }
            }
            // An unknown model is a 404 too, but with the engine's own form of an error.
            StatusCode::NOT_FOUND if message.is_none() => {
                Self::Missing { server, path: path.to_owned(), reason }
            }
            StatusCode::BAD_REQUEST if reason.contains(NAN_WORDS) => {
                let reason = "the engine's log-probabilities are not finite".to_owned();
                Self::Bad { server, reason }
            }
            status if status.is_client_error() => Self::Refused { server, status: status.as_u16(), reason },
            status => Self::Failed { server, reason: format!("status={}: {reason}", status.as_u16()) },
        }
    }
}
