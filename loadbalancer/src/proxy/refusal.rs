//! Answers that the proxy gives itself.

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::json;

use super::relay::Reply;

/// Why a request is not passed on, in the form of OpenAI's errors.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    kind: &'static str,
    message: String,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into() }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message)
    }

    pub(super) fn too_long(bytes_max: usize) -> Self {
        let message = format!("expected a body of at most bytes={bytes_max}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// A refusal that asks the client to try again later.
    pub(super) fn overloaded(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
    }

    /// The refusal of a call that is for operators.
    pub(super) fn control(path: &str) -> Self {
        let message = format!("path={path} is not passed on: to control engines, call them directly");
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub(super) fn into_response(self) -> Response<Reply> {
        let Self { status, kind, message } = self;
        let error = json!({ "message": message, "type": kind, "param": null, "code": status.as_u16() });
        let mut response = say(status, &json!({ "error": error }));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

pub(super) fn say(status: StatusCode, body: &serde_json::Value) -> Response<Reply> {
    let mut response = Response::new(Reply::Whole(Some(Bytes::from(body.to_string()))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
