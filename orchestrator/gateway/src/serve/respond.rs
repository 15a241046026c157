//! Errors as responses.

use axum::Json;
use axum::response::{IntoResponse, Response};

use crate::refusal::Refusal;
use crate::surfaces::Surface;

/// An error outside of a surface.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Refusal);

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        refused(Surface::Chat, &self.0)
    }
}

/// The response that refuses a call, in the form of its surface.
pub(super) fn refused(surface: Surface, refusal: &Refusal) -> Response {
    metrics::counter!("rolldock_gateway_refusals_total", "code" => refusal.code()).increment(1);
    (refusal.status(), refusal.headers(), Json(surface.error(refusal))).into_response()
}
