//! Forwards a request to the server that its permit names.

use std::time::Duration;

use hyper::body::Incoming;
use hyper::http::response;
use hyper::{Request, Response, StatusCode};
use tokio::time::Instant;

use super::ask::{Demand, SAMPLES_MAX};
use super::clock::{Over, Timed};
use super::refusal::Refusal;
use super::relay::{Patience, Relayed, Reply};
use super::upstream::Failure;
use super::{Worker, body};
use crate::outcome::Outcome;
use crate::server::{ServerId, ServerState};
use crate::{BalancerError, Permit, PermitRequest};

impl Worker {
    /// Sends a request to the server that a permit names. If the server cannot have begun with the request
    /// (it was not sent, or was refused with 503 or 429) and [`may_replay`](Self::may_replay) allows it, the request
    /// is sent again with a new permit.
    ///
    /// Cancel-safe: if the call is dropped, the connection to the engine is closed and the permit is returned.
    pub(super) async fn forward(
        &self,
        request: Request<Incoming>,
        timed: Timed,
    ) -> Result<Response<Reply>, Refusal> {
        let config = &self.shared.config;
        let deadline = Instant::now() + config.request_timeout;
        let (head, incoming) = request.into_parts();
        let (bytes, _held) = body::whole(incoming, &self.shared, &timed).await?;
        timed.until(deadline);
        let demand = Demand::of(&head, &bytes, config.counts_tokens);
        if demand.samples > SAMPLES_MAX {
            let samples = demand.samples;
            let message = format!(
                "expected at most {SAMPLES_MAX} samples (n times the prompts), found samples={samples}"
            );
            return Err(Refusal::bad_request(message));
        }
        self.shared.replays.earn();
        let mut tried: Vec<ServerId> = Vec::new();
        loop {
            let permit = match timed.bound(self.permit(&demand, &tried)).await {
                Ok(granted) => granted?,
                Err(Over) => return Err(self.late("permit")),
            };
            tried.push(permit.server());
            let sent = tokio::select! {
                biased;
                sent = self.upstreams.send(&permit, &head, &bytes) => sent,
                () = permit.revoked() => Err(Failure::lost("the server was lost")),
                () = timed.over() => {
                    // The future that sends the request has been dropped. This closes the connection, and the
                    // engine stops.
                    permit.finish(Outcome::Fault);
                    return Err(self.late("answer"));
                }
            };
            match sent {
                Ok(answer) => {
                    let outcome = outcome_of(&answer.head);
                    let is_refused = matches!(outcome, Outcome::Backpressure { .. });
                    if !is_refused || !self.may_replay(&tried) {
                        let patience = Patience { timed, deadline, idle: config.idle_timeout };
                        return Ok(Relayed::response(
                            answer,
                            permit,
                            outcome,
                            patience,
                            self.upstreams.clone(),
                        ));
                    }
                    permit.finish(outcome);
                }
                Err(failure) if failure.is_ours => {
                    // The permit is returned, and the failure does not count against the server. Other
                    // servers could not be reached either.
                    metrics::counter!("rolldock_proxy_exhausted_total").increment(1);
                    return Err(Refusal::overloaded(failure.to_string()));
                }
                Err(failure) => {
                    permit.finish(Outcome::Fault);
                    let attempts = tried.len();
                    tracing::debug!(attempts, %failure, "a request has failed");
                    if !failure.is_unsent || !self.may_replay(&tried) {
                        let message = format!("attempts={attempts}, the last one failed: {failure}");
                        return Err(Refusal::new(StatusCode::BAD_GATEWAY, "bad_gateway", message));
                    }
                }
            }
            metrics::counter!("rolldock_proxy_replays_total").increment(1);
        }
    }

    /// Whether a request that no server has begun with may be sent once more. A server that was not tried must
    /// be active, and the limit of attempts and the budget of replays must allow it. If so, the replay is taken from
    /// the budget.
    fn may_replay(&self, tried: &[ServerId]) -> bool {
        if tried.len() >= self.shared.config.attempts_max as usize {
            return false;
        }
        let servers = self.shared.balancer.snapshot().servers;
        // A server in the state `Probing` may be in a cooldown of a minute, which is too long to wait for.
        let is_other =
            servers.iter().any(|server| server.state == ServerState::Active && !tried.contains(&server.id));
        if !is_other {
            return false;
        }
        let is_paid = self.shared.replays.spend();
        if !is_paid {
            metrics::counter!("rolldock_proxy_replays_refused_total").increment(1);
        }
        is_paid
    }

    fn late(&self, phase: &'static str) -> Refusal {
        metrics::counter!("rolldock_proxy_timeouts_total", "phase" => phase).increment(1);
        let seconds = self.shared.config.request_timeout.as_secs_f64();
        let message = format!("no {phase} within {seconds} s (request timeout)");
        Refusal::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message)
    }

    async fn permit(&self, demand: &Demand, exclude: &[ServerId]) -> Result<Permit, Refusal> {
        let balancer = &self.shared.balancer;
        let deadline = Instant::now() + self.shared.config.permit_wait;
        // A request with more samples than the largest server has places gets a whole server. The engine
        // decides whether it accepts this number of samples.
        let mut weight = match demand.samples {
            1 => 1,
            samples => samples.min(balancer.largest_capacity()).max(1),
        };
        loop {
            let request = PermitRequest {
                expected_tokens: demand.expected_tokens,
                group: demand.group,
                exclude: exclude.to_vec(),
                deadline: Some(deadline),
                ..PermitRequest::new(weight)
            };
            match balancer.acquire(request).await {
                // The largest server has lost places in the meantime.
                Err(BalancerError::TooHeavy { largest, .. }) if (1..weight).contains(&largest) => {
                    weight = largest
                }
                Ok(permit) => return Ok(permit),
                Err(error @ (BalancerError::TooHeavy { .. } | BalancerError::Weightless)) => {
                    return Err(Refusal::bad_request(error.to_string()));
                }
                Err(error) => return Err(Refusal::overloaded(error.to_string())),
            }
        }
    }
}

/// The outcome that the head of an answer shows.
fn outcome_of(head: &response::Parts) -> Outcome {
    match head.status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
            let seconds = head.headers.get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
            Outcome::Backpressure { retry_after: seconds.map(Duration::from_secs) }
        }
        status if status.is_client_error() => Outcome::ClientError,
        status if status.is_server_error() => Outcome::Fault,
        _ => Outcome::Success { tokens: 0 },
    }
}
