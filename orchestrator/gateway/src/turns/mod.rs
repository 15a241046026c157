//! Makes a turn: acquires a permit, finds the prompt's ids, draws tokens, and parses them.
//!
//! ```text
//!   permit -> plan (the forest splices the ids) -> render -> generate -> permit returned -> derender
//! ```
//!
//! A server renders a request only if the forest does not have its ids, or if its parameters are not known yet.
//!
//! A turn that fails before it is whole leaves nothing behind. A failed attempt is repeated on another
//! server, with another seed and another request id, at most [`attempts_max`] times.
//!
//! # Invariants
//! - The engine gets the ids of the forest's prompt, never ids that were encoded from sampled text. Only a
//!   server without endpoints that take ids encodes a conversation itself. The turns of such a server are
//!   marked.
//! - A permit is held while an engine works on the call, and never between calls.
//! - The trajectory decides about sampling parameters. The agent decides about messages, tools, stop strings
//!   and grammars.
//!
//! [`attempts_max`]: crate::GatewayConfig::attempts_max

mod asking;
mod attempt;
mod commit;
mod draw;
mod for_engine;
mod known;
mod params;
mod reading;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rolldock_loadbalancer::{BalancerError, LoadBalancer, Outcome, Permit, PermitRequest, ServerId};
use rolldock_trajectory::{Prompt, Request, Sampled, TrajectoryError};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use crate::answer::Answer;
use crate::calls::{CallError, EngineCalls, Model};
use crate::config::GatewayConfig;
use crate::refusal::Refusal;
use crate::surfaces::Asked;
use crate::trajectories::{Admitted, One};

use known::KnownParams;

pub(crate) use commit::commit;

/// Makes turns on a fleet of servers.
#[derive(Debug)]
pub(crate) struct Maker {
    calls: EngineCalls,
    balancer: LoadBalancer,
    /// What is known of each server, by its base URL.
    facts: Mutex<HashMap<String, Facts>>,
    known: KnownParams,
    config: GatewayConfig,
}

/// What is known of a server.
#[derive(Debug, Clone)]
struct Facts {
    model: Model,
    /// Whether the server has render, generate and derender.
    takes_ids: bool,
}

/// A call for which a turn is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) one: &'a Arc<One>,
    pub(crate) asked: &'a Asked,
    pub(crate) request: &'a Request,
    pub(crate) admitted: Admitted,
}

/// A whole turn, which is not recorded yet.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) prompt: Prompt,
    pub(crate) sampled: Sampled,
    pub(crate) answer: Answer,
    /// The name of the server.
    pub(crate) server: Arc<str>,
    pub(crate) is_fallback: bool,
}

/// Why an attempt gave no turn.
#[derive(Debug)]
enum Failed {
    /// The call to the engine failed.
    Call(CallError),
    /// The engine ended the turn's requests early, and the gateway does not continue the turn.
    Aborted,
    /// The server was lost while it worked on the request.
    Revoked,
    /// The server takes no token ids. It can be asked again, in its other dialect.
    OtherDialect,
    /// No attempt can succeed.
    Refused(Refusal),
}

impl From<CallError> for Failed {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl From<TrajectoryError> for Failed {
    fn from(error: TrajectoryError) -> Self {
        Self::Refused(Refusal::bad_request(error.to_string()))
    }
}

impl Maker {
    pub(crate) fn new(calls: EngineCalls, balancer: LoadBalancer, config: GatewayConfig) -> Self {
        Self { calls, balancer, facts: Mutex::default(), known: KnownParams::default(), config }
    }

    /// Makes a turn. Cancel-safe: the engine stops, the permit is returned, and nothing is recorded.
    pub(crate) async fn make(&self, job: Job<'_>) -> Result<Made, Refusal> {
        let mut failed_on: Vec<ServerId> = Vec::new();
        let deadline = Instant::now() + self.config.call_timeout;
        let mut attempt = 1;
        loop {
            let permit = self.permit(job, &failed_on).await?;
            failed_on.push(permit.server());
            let made = tokio::time::timeout_at(deadline, self.attempt(job, permit, attempt)).await;
            let failed = match made {
                Ok(Ok(made)) => return Ok(made),
                Ok(Err(Failed::OtherDialect)) => {
                    failed_on.pop();
                    continue;
                }
                Ok(Err(failed)) => failed,
                Err(_elapsed) => {
                    let seconds = self.config.call_timeout.as_secs_f64();
                    return Err(Refusal::Engine(format!("no answer of an engine within {seconds} s")));
                }
            };
            metrics::counter!("rolldock_gateway_attempts_failed_total").increment(1);
            let refusal = failed.into_refusal()?;
            tracing::debug!(trajectory = job.one.spec.uid, attempt, %refusal, "an attempt has failed");
            if attempt >= self.config.attempts_max {
                return Err(refusal);
            }
            attempt += 1;
        }
    }

    async fn permit(&self, job: Job<'_>, failed_on: &[ServerId]) -> Result<Permit, Refusal> {
        let began = Instant::now();
        let request = PermitRequest {
            expected_tokens: 0,
            group: Some(xxh3_64(job.one.spec.uid.as_bytes())),
            priority: job.one.priority(),
            exclude: failed_on.to_vec(),
            deadline: Some(began + self.config.permit_wait),
            ..PermitRequest::new(1)
        };
        let permit = self.balancer.acquire(request).await;
        metrics::histogram!("rolldock_gateway_permit_seconds").record(began.elapsed().as_secs_f64());
        if permit.is_ok() {
            job.one.permitted(began.elapsed());
        }
        permit.map_err(|error| match error {
            BalancerError::TooHeavy { .. } | BalancerError::Weightless => {
                Refusal::bad_request(error.to_string())
            }
            error => Refusal::Busy { reason: error.to_string(), retry_after: None },
        })
    }

    /// What is known of a server. The first call asks the server.
    async fn facts(&self, base: &str) -> Result<Facts, CallError> {
        if let Some(facts) = self.facts.lock().get(base) {
            return Ok(facts.clone());
        }
        let model = self.calls.model(base).await?;
        let name = self.config.model.clone().unwrap_or(model.name);
        let facts = Facts { model: Model { name, ..model }, takes_ids: true };
        self.facts.lock().insert(base.to_owned(), facts.clone());
        Ok(facts)
    }

    /// Notes that a server does not have the endpoints that take ids.
    fn takes_no_ids(&self, base: &str) {
        if let Some(facts) = self.facts.lock().get_mut(base)
            && std::mem::replace(&mut facts.takes_ids, false)
        {
            tracing::warn!(
                server = base,
                "the server takes no token ids (expected vLLM with --enable-scale-out): it encodes each \
                 conversation itself, so its turns may not continue the ids that were sampled"
            );
        }
    }

    /// The model that agents see: the model of any known server, or else of the first server that answers.
    pub(crate) async fn model(&self) -> Result<Model, Refusal> {
        let known = self.facts.lock().values().next().map(|facts| facts.model.clone());
        if let Some(model) = known {
            return Ok(model);
        }
        let urls: Vec<Arc<str>> =
            self.balancer.snapshot().servers.iter().filter_map(|server| server.url.clone()).collect();
        let mut refusal = Refusal::Busy { reason: "the fleet has no server".to_owned(), retry_after: None };
        for url in urls {
            match self.facts(&url).await {
                Ok(facts) => return Ok(facts.model),
                Err(error) => refusal = error.into(),
            }
        }
        Err(refusal)
    }
}

impl Failed {
    /// Returns the refusal that the agent gets if there is no further attempt. Returns it as `Err` if no
    /// attempt can succeed.
    fn into_refusal(self) -> Result<Refusal, Refusal> {
        match self {
            Self::Call(error @ CallError::Refused { .. }) => Err(error.into()),
            Self::Call(error) => Ok(error.into()),
            Self::Aborted => {
                let reason = "the engine ended the request early; weights may be updated".to_owned();
                Ok(Refusal::Busy { reason, retry_after: None })
            }
            Self::Revoked | Self::OtherDialect => Ok(Refusal::Engine("the server was lost".to_owned())),
            Self::Refused(refusal) => Err(refusal),
        }
    }

    /// What the failed attempt shows about the server.
    fn outcome(&self) -> Outcome {
        match self {
            Self::Call(CallError::Busy { retry_after, .. }) => {
                Outcome::Backpressure { retry_after: *retry_after }
            }
            Self::Call(CallError::Refused { .. } | CallError::Missing { .. })
            | Self::Refused(_)
            | Self::OtherDialect => Outcome::ClientError,
            Self::Call(_) | Self::Revoked => Outcome::Fault,
            Self::Aborted => Outcome::Cancelled,
        }
    }
}
