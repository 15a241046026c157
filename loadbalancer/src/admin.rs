//! An HTTP interface for operators to list and change the fleet. It has a port of its own and is protected by
//! a token.
//!
//! | call | what it does |
//! |---|---|
//! | `GET /v1/fleet` | returns the fleet; `?wait_ms=N` first waits up to N ms for a change (N: up to 1000) |
//! | `POST /v1/fleet` | adds a server: `{"url": "http://host:port"}`, with an optional `name` and `capacity` |
//! | `POST /v1/fleet/{name}/drain` | stops new requests to the server; `?wait_ms=N` waits for running ones |
//! | `POST /v1/fleet/{name}/pause`, `resume` | pauses the server; resumes it |
//! | `DELETE /v1/fleet/{name}` | removes the server; its requests start again on other servers |
//! | `GET /metrics` | returns counters, gauges and histograms in Prometheus' format |

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use rolldock_listener::{Client, ConnectionLimits, Connections, HalfClosed, serve};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::BalancerError;
use crate::membership::{Membership, MembershipError, NewMember};
use crate::proxy::RenderMetrics;
use crate::snapshot::FleetSnapshot;

/// The token, the metrics and the connections of the admin port.
#[derive(Debug, Clone)]
pub struct AdminConfig {
    /// The token that a caller has to send as `Authorization: Bearer ...`. It may be absent only on a
    /// loopback address.
    pub token: Option<String>,
    /// Renders the answer of `/metrics`.
    pub metrics: Option<RenderMetrics>,
    /// The connections of callers.
    pub connections: Connections,
}

impl Default for AdminConfig {
    fn default() -> Self {
        let connections = Connections::new("admin", &ConnectionLimits::default());
        Self { token: None, metrics: None, connections }
    }
}

/// Why the admin port is not opened: without a proper token every client could change the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// The token is empty.
    #[error("expected an admin token, found an empty one: it would admit every client")]
    EmptyToken,
    /// There is no token, and the address can be reached from other machines.
    #[error(
        "expected an admin token, or a loopback address: every client that reaches address={address} could change the fleet"
    )]
    Open {
        /// The address.
        address: SocketAddr,
    },
}

impl AdminConfig {
    /// Checks whether the port may be opened at `address`.
    ///
    /// # Errors
    /// [`AdminError`] if every client that reaches the address could change the fleet.
    pub fn check(&self, address: SocketAddr) -> Result<(), AdminError> {
        match self.token.as_deref() {
            Some("") => Err(AdminError::EmptyToken),
            None if !address.ip().to_canonical().is_loopback() => Err(AdminError::Open { address }),
            _ => Ok(()),
        }
    }
}

struct Admin {
    members: Membership,
    config: AdminConfig,
}

type Shared = State<Arc<Admin>>;

struct Failure(MembershipError);

impl From<MembershipError> for Failure {
    fn from(error: MembershipError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, code) = match &self.0 {
            MembershipError::BadUrl { .. } => (StatusCode::BAD_REQUEST, "bad_url"),
            MembershipError::Unfit { .. } | MembershipError::Absent { .. } => {
                (StatusCode::UNPROCESSABLE_ENTITY, "unfit")
            }
            MembershipError::Balancer(BalancerError::UnknownServer { .. }) => {
                (StatusCode::NOT_FOUND, "unknown_server")
            }
            MembershipError::Balancer(BalancerError::DuplicateServer { .. }) => {
                (StatusCode::CONFLICT, "duplicate_server")
            }
            MembershipError::Balancer(_) => (StatusCode::BAD_REQUEST, "refused"),
        };
        refusal(status, code, &self.0.to_string())
    }
}

fn refusal(status: StatusCode, code: &str, message: &str) -> Response {
    (status, Json(json!({ "error": { "code": code, "message": message } }))).into_response()
}

#[derive(Deserialize)]
struct Wait {
    #[serde(default)]
    wait_ms: u64,
}

/// The answer to a drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    /// Samples that still run on the server.
    pub in_use: u32,
}

/// Serves the admin port at `listener` until `end`. Cancel-safe: running calls are dropped.
///
/// # Errors
/// `PermissionDenied` if [`AdminConfig::check`] fails.
pub async fn serve_admin(
    members: Membership,
    config: AdminConfig,
    listener: TcpListener,
    end: CancellationToken,
) -> io::Result<()> {
    config
        .check(listener.local_addr()?)
        .map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
    let connections = config.connections.clone();
    let admin = Arc::new(Admin { members, config });
    let router = Router::new()
        .route("/v1/fleet", get(list).post(join))
        .route("/v1/fleet/{name}", delete(leave))
        .route("/v1/fleet/{name}/drain", post(drain))
        .route("/v1/fleet/{name}/pause", post(pause))
        .route("/v1/fleet/{name}/resume", post(resume))
        .route("/metrics", get(metrics))
        .layer(middleware::from_fn_with_state(Arc::clone(&admin), check_token))
        .with_state(admin);
    serve(listener, router, connections, HalfClosed::Dropped, end).await;
    Ok(())
}

async fn check_token(State(admin): Shared, client: Client, request: Request, next: Next) -> Response {
    let sent = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let sent = sent.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    let is_right = admin
        .config
        .token
        .as_deref()
        .is_none_or(|token| equal_in_constant_time(token.as_bytes(), sent.as_bytes()));
    if is_right {
        client.authenticated().await;
        next.run(request).await
    } else {
        refusal(StatusCode::UNAUTHORIZED, "unauthorized", "expected the admin token as a bearer token")
    }
}

/// Compares two tokens in a time that does not depend on where they differ.
fn equal_in_constant_time(left: &[u8], right: &[u8]) -> bool {
    let different = left.iter().zip(right).fold(0, |different, (left, right)| different | (left ^ right));
    left.len() == right.len() && different == 0
}

async fn list(State(admin): Shared, Query(wait): Query<Wait>) -> Json<FleetSnapshot> {
    Json(match wait.wait_ms {
        0 => admin.members.balancer().snapshot(),
        wait_ms => admin.members.changed(Duration::from_millis(wait_ms)).await,
    })
}

async fn join(State(admin): Shared, Json(member): Json<NewMember>) -> Response {
    if member.capacity == Some(0) {
        let message = "expected a capacity above 0: a server without places gets no requests";
        return refusal(StatusCode::BAD_REQUEST, "bad_capacity", message);
    }
    match admin.members.add(member).await {
        Ok(joined) => Json(joined).into_response(),
        Err(error) => Failure(error).into_response(),
    }
}

async fn leave(State(admin): Shared, Path(name): Path<String>) -> Result<StatusCode, Failure> {
    admin.members.remove(&name)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn drain(
    State(admin): Shared,
    Path(name): Path<String>,
    Query(wait): Query<Wait>,
) -> Result<Json<Drained>, Failure> {
    let in_use = admin.members.drain(&name, Duration::from_millis(wait.wait_ms)).await?;
    Ok(Json(Drained { in_use }))
}

async fn pause(State(admin): Shared, Path(name): Path<String>) -> Result<StatusCode, Failure> {
    admin.members.set_paused(&name, true)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn resume(State(admin): Shared, Path(name): Path<String>) -> Result<StatusCode, Failure> {
    admin.members.set_paused(&name, false)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn metrics(State(admin): Shared) -> Response {
    match &admin.config.metrics {
        Some(metrics) => metrics.into_response(),
        None => refusal(StatusCode::NOT_FOUND, "not_found", "this balancer keeps no metrics"),
    }
}

#[cfg(test)]
mod tests;
