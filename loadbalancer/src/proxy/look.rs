//! Calls that all servers answer alike, such as the list of models. They take no permit and generate nothing.
//! Their outcomes do not show whether a server can generate, so breakers do not count them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Limited;
use hyper::body::Incoming;
use hyper::header::CONTENT_LENGTH;
use hyper::http::request;
use hyper::{Method, Request, Response, StatusCode};
use xxhash_rust::xxh3::xxh3_64;

use super::clock::Timed;
use super::refusal::Refusal;
use super::relay::Reply;
use super::upstream::{self, Failure};
use super::{Worker, body};
use crate::server::ServerState;

/// Longest time for a server to turn text into tokens or back. After this time another server is asked.
const RENDER_MAX: Duration = Duration::from_secs(30);
/// Maximum number of servers that are asked, one after the other.
const SERVERS_MAX: usize = 5;

impl Worker {
    /// Asks one server after the other until one answers without a server error. If all fail, returns the
    /// last answer with a server error, or a refusal if there is no answer.
    ///
    /// Cancel-safe: the connection is closed.
    pub(super) async fn ask_any_server(
        &self,
        request: Request<Incoming>,
        timed: &Timed,
    ) -> Result<Response<Reply>, Refusal> {
        let (mut head, incoming) = request.into_parts();
        let shared = &self.shared;
        let (bytes, held) = if head.method == Method::POST {
            body::whole(incoming, shared, timed).await?
        } else {
            // No body is passed on. With this header an engine would wait for a body.
            head.headers.remove(CONTENT_LENGTH);
            (Bytes::new(), shared.buffered.hold())
        };
        let limit = if head.method == Method::POST { RENDER_MAX } else { shared.config.read_timeout };
        let mut reason = "the fleet has no live server".to_owned();
        let mut failed = None;
        for url in self.in_turn().into_iter().take(SERVERS_MAX) {
            // Each attempt gets a new limit, because the number of attempts is bounded.
            timed.until(tokio::time::Instant::now() + 2 * limit);
            match tokio::time::timeout(limit, self.ask_one(&url, &head, &bytes)).await {
                Ok(Ok(answer)) if answer.status().is_server_error() => failed = Some(answer),
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failure)) => reason = failure.to_string(),
                Err(_) => reason = format!("no answer within {} s", limit.as_secs()),
            }
        }
        drop(held);
        failed.ok_or_else(|| Refusal::new(StatusCode::BAD_GATEWAY, "bad_gateway", reason))
    }

    async fn ask_one(
        &self,
        url: &str,
        head: &request::Parts,
        bytes: &Bytes,
    ) -> Result<Response<Reply>, Failure> {
        let upstream::Begun { mut head, body, wire } = self.upstreams.send_to(url, head, bytes).await?;
        upstream::strip_hop_by_hop(&mut head.headers);
        let bytes = wire.whole(Limited::new(body, self.shared.config.body_bytes_max)).await?;
        Ok(Response::from_parts(head, Reply::Whole(Some(bytes))))
    }

    /// The addresses of the live servers, active ones first. Each call begins at a pseudo-random server.
    fn in_turn(&self) -> Vec<Arc<str>> {
        let mut servers = self.shared.balancer.snapshot().servers;
        servers.retain(|server| server.state.is_live() && server.url.is_some());
        if !servers.is_empty() {
            let turn = self.shared.looks.fetch_add(1, Ordering::Relaxed);
            let first = xxh3_64(&turn.to_le_bytes()) % servers.len() as u64;
            servers.rotate_left(first as usize);
        }
        // The sort is stable: servers in equal states keep their order.
        servers.sort_by_key(|server| match server.state {
            ServerState::Active => 0,
            ServerState::Probing => 1,
            _ => 2,
        });
        servers.into_iter().filter_map(|server| server.url).collect()
    }
}
