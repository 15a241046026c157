//! The page of metrics that a port offers.

use std::fmt;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;

/// Renders metrics as text in Prometheus' format. The function is called for each request of the page.
#[derive(Clone)]
pub struct RenderMetrics(pub Arc<dyn Fn() -> String + Send + Sync>);

impl RenderMetrics {
    /// The content type of the text.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4";
}

impl fmt::Debug for RenderMetrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RenderMetrics")
    }
}

impl IntoResponse for &RenderMetrics {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, RenderMetrics::CONTENT_TYPE)], (self.0)()).into_response()
    }
}
