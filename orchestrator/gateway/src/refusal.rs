//! Why a call is not served, in the terms of HTTP. Each surface writes a refusal in its own form.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::calls::CallError;

/// Tells clients whether to send a request again. Clients check this header before the status.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// A call that is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// The request is wrong.
    #[error("{0}")]
    BadRequest(String),
    /// The request names no trajectory, or a wrong one.
    #[error("{0}")]
    NoTrajectory(String),
    /// The control token is missing or wrong.
    #[error("expected the gateway's token as a bearer token")]
    Unauthorized,
    /// There is nothing at this path.
    #[error("{0}")]
    NotFound(String),
    /// The call contradicts an earlier one.
    #[error("{0}")]
    Conflict(String),
    /// The trajectory has ended.
    #[error("trajectory={uid} takes no more calls: {reason}")]
    Ended { uid: String, reason: String },
    /// The gateway or the engine takes no further work now.
    #[error("{reason}")]
    Busy { reason: String, retry_after: Option<Duration> },
    /// The engine failed.
    #[error("{0}")]
    Engine(String),
    /// Turns cannot be recorded any more.
    #[error("{0}")]
    Store(String),
}

impl Refusal {
    pub(crate) fn bad_request(reason: String) -> Self {
        Self::BadRequest(reason)
    }

    /// The refusal of a reward that is too late, or that differs from the trajectory's recorded reward.
    pub(crate) fn other_reward(uid: &str) -> Self {
        Self::Conflict(format!("trajectory={uid} has another reward, or its time for one is over"))
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) | Self::Ended { .. } => StatusCode::BAD_REQUEST,
            Self::NoTrajectory(_) | Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::Busy { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Engine(_) => StatusCode::BAD_GATEWAY,
            Self::Store(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The type of the error, in words that both vendors' clients know.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::BadRequest(_) | Self::Ended { .. } | Self::Conflict(_) => "invalid_request_error",
            Self::NoTrajectory(_) | Self::Unauthorized => "authentication_error",
            Self::NotFound(_) => "not_found_error",
            Self::Busy { .. } => "overloaded_error",
            Self::Engine(_) | Self::Store(_) => "api_error",
        }
    }

    /// A stable code.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "bad_request",
            Self::NoTrajectory(_) => "no_trajectory",
            Self::Unauthorized => "unauthorized",
            Self::NotFound(_) => "not_found",
            Self::Conflict(_) => "conflict",
            Self::Ended { .. } => "trajectory_ended",
            Self::Busy { .. } => "busy",
            Self::Engine(_) => "engine_failed",
            Self::Store(_) => "store_failed",
        }
    }

    /// The headers that tell clients whether and when to send the request again.
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        match self {
            // Clients retry a 409 and a 500 by themselves, and a retry would get the same refusal.
            Self::Ended { .. } | Self::Conflict(_) | Self::Store(_) => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            Self::Busy { retry_after: Some(after), .. } => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
            }
            _ => {}
        }
        headers
    }
}

impl From<CallError> for Refusal {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused { reason, .. } => Self::BadRequest(reason),
            CallError::Busy { retry_after, .. } => Self::Busy { reason: error.to_string(), retry_after },
            CallError::Unreachable { .. } => Self::Busy { reason: error.to_string(), retry_after: None },
            CallError::Missing { .. } | CallError::Failed { .. } | CallError::Bad { .. } => {
                Self::Engine(error.to_string())
            }
        }
    }
}
