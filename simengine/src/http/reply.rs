//! Answers without tokens: empty ones, errors and small JSON.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Response, StatusCode, header};
use serde_json::{Value, json};

use super::Body;
use crate::SimError;

/// The result of a handler: an answer, or a connection that has to be reset.
pub(crate) type Handled = Result<Response<Body>, Reset>;

/// The error of a handler whose connection has to be reset.
#[derive(Debug, thiserror::Error)]
#[error("the connection has to be reset")]
pub(crate) struct Reset;

/// An error with a body in vLLM's form.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    kind: &'static str,
    param: Option<String>,
    message: String,
}

impl Refusal {
    /// A refusal because the request breaks a rule of the engine.
    pub(crate) fn bad_request(param: Option<&str>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", param, message)
    }

    /// A refusal because the web framework did not understand the request. The status is 400, as for a broken
    /// rule, but the error's type differs.
    pub(crate) fn unreadable(param: Option<&str>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Bad Request", param, message)
    }

    pub(crate) fn new(
        status: StatusCode,
        kind: &'static str,
        param: Option<&str>,
        message: impl Into<String>,
    ) -> Self {
        Self { status, kind, param: param.map(str::to_owned), message: message.into() }
    }

    /// A refusal because the engine would refuse the request.
    pub(crate) fn from_engine(error: SimError) -> Self {
        match error {
            SimError::BadRequest { message, param } => Self::bad_request(param, message),
            other => Self::bad_request(None, other.to_string()),
        }
    }

    /// The refusal as an HTTP answer.
    pub(crate) fn response(self) -> Response<Body> {
        let error = json!({
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status.as_u16(),
        });
        json_response(self.status, &json!({ "error": error }))
    }
}

/// The answer or the reset for an error of the engine.
pub(crate) fn engine_error(error: &SimError) -> Handled {
    let refusal = match error {
        SimError::BadRequest { message, param } => Refusal::bad_request(*param, message.clone()),
        SimError::Busy { .. } => Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Service Unavailable",
            None,
            "The engine is currently busy and cannot accept new requests. Please try again later or on a \
             different instance.",
        ),
        SimError::EngineDead { .. } => Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalServerError",
            None,
            "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        ),
        SimError::Internal { .. } | SimError::Tokenizer { .. } | SimError::Config { .. } => Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalServerError",
            None,
            "Internal server error",
        ),
        SimError::Unreachable { .. }
        | SimError::ConnectionReset { .. }
        | SimError::Stopped { .. }
        | SimError::Listen { .. } => return Err(Reset),
    };
    Ok(refusal.response())
}

/// A small JSON answer.
pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response<Body> {
    bytes_response(status, "application/json", value.to_string().into_bytes())
}

/// An answer with this body.
pub(crate) fn bytes_response(
    status: StatusCode,
    content_type: &'static str,
    body: Vec<u8>,
) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}

/// An answer with status 200 and an empty body.
pub(crate) fn empty_response() -> Response<Body> {
    Response::new(full(Vec::new()))
}

fn full(body: Vec<u8>) -> Body {
    Full::new(Bytes::from(body)).map_err(|never: Infallible| match never {}).boxed_unsync()
}
