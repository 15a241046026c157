//! The HTTP server: agents' calls, control calls, and metrics.
//!
//! | call | what it does |
//! |---|---|
//! | `POST /t/<capability>/v1/chat/completions`, `/completions`, `/messages`, `/responses` | a turn |
//! | `GET /t/<capability>/v1/models` | the model |
//! | these paths under `/v1`, capability as bearer token, `x-api-key` or `x-rolldock-trajectory` | as above |
//! | `POST /t/<capability>/reward` | the agent's own reward, where agents may give it |
//! | `POST /trajectories`, and below it | [`control`] |
//! | `GET /metrics`, `GET /health` | for operators |
//!
//! # Invariants
//! - A client that is gone cancels its call: the future of the call is dropped with its connection.
//! - The last byte of an answer is sent only after the turn is durable.

mod agent;
mod control;
mod outgoing;
mod respond;
mod scoring;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use rolldock_listener::{HalfClosed, RenderMetrics};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::core::Core;
use crate::refusal::Refusal;
use crate::turns::Maker;

use respond::Failure;

/// Maximum bytes of a request: a conversation with long results of tools.
const BODY_BYTES_MAX: usize = 64 << 20;

/// The state that all handlers share.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) core: Arc<Core>,
    pub(crate) maker: Arc<Maker>,
    pub(crate) metrics: Option<RenderMetrics>,
    /// Whether programs make and end trajectories over HTTP. In a run, only the run itself makes and ends
    /// them.
    pub(crate) has_control: bool,
}

/// Answers requests at `listener` until `end`. Cancel-safe: running calls are dropped.
pub(crate) async fn serve(served: Served, listener: TcpListener, end: CancellationToken) {
    let connections = served.core.config.connections.clone();
    let router = router(served);
    rolldock_listener::serve(listener, router, connections, HalfClosed::Dropped, end).await;
}

fn router(served: Served) -> Router {
    let control = Router::new()
        .route("/trajectories", post(control::open).get(control::list))
        .route("/trajectories/{uid}", get(control::show).delete(control::cancel))
        .route("/trajectories/{uid}/complete", post(control::complete));
    let control = if served.has_control { control } else { Router::new() };
    let of_agents = Router::new()
        .route("/chat/completions", post(agent::chat))
        .route("/completions", post(agent::text))
        .route("/messages", post(agent::messages))
        .route("/responses", post(agent::responses))
        .route("/models", get(agent::models))
        .route("/models/{*model}", get(agent::model));
    Router::new()
        .nest("/t/{capability}/v1", of_agents.clone())
        .nest("/v1", of_agents)
        .route("/t/{capability}/reward", post(control::reward))
        .merge(control)
        .route("/metrics", get(metrics_page))
        .route("/health", get(health))
        .method_not_allowed_fallback(async || method())
        .fallback(async || unknown_path())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(served)
}

fn unknown_path() -> Failure {
    let reason = "expected /t/<capability>/v1/chat/completions, /completions, /messages, /responses or /models, \
                  /v1/... with a capability, /trajectories, /metrics or /health";
    Failure(Refusal::NotFound(reason.to_owned()))
}

fn method() -> Failure {
    Failure(Refusal::NotFound("expected POST for calls and GET for what is read".to_owned()))
}

async fn metrics_page(State(served): State<Served>) -> Response {
    let (trajectories, groups) = served.core.book.counts();
    metrics::gauge!("rolldock_gateway_trajectories").set(trajectories as f64);
    metrics::gauge!("rolldock_gateway_groups").set(groups as f64);
    let sizes = served.core.store.sizes();
    metrics::gauge!("rolldock_gateway_log_bytes").set(sizes.bytes as f64);
    metrics::counter!("rolldock_gateway_log_rewrites_total").absolute(sizes.rewrites);
    match &served.metrics {
        Some(page) => page.into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Fails when turns cannot be recorded any more.
async fn health(State(served): State<Served>) -> Response {
    match served.core.store.error() {
        None => StatusCode::OK.into_response(),
        Some(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}
