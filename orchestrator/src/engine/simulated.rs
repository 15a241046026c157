//! A simulated fleet in the same process: no sockets, and on a paused clock no real time.
//!
//! One [`SimulatedEngine`] is both faces of the fleet, as a real server has both: it generates for the rollout
//! core and answers the load balancer's control. Answers pass the same checks as those of real servers, so that an
//! injected fault takes the path that the real one would.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use rolldock_loadbalancer::{ControlError, EngineControl, EngineLoad, PauseMode, ServerRef};
use rolldock_simengine as sim;
use rolldock_simengine::{Phase, SimError, SimRequest, SimServer};

use super::soundness::{is_poisoned, spans_cover};
use super::{Engine, EngineError, FinishReason, GenerateRequest, Generation, SampleOutput, VersionSpan};

/// What is waited after each abort of an interrupt, before it is sent again: the simulation too loses those that
/// come too early.
const INTERRUPT_PAUSES: [Duration; 4] = [
    Duration::from_millis(1),
    Duration::from_millis(15),
    Duration::from_millis(60),
    Duration::from_millis(250),
];

/// Simulated servers by the names of their configurations.
#[derive(Clone)]
pub struct SimulatedEngine {
    servers: Arc<BTreeMap<String, SimServer>>,
}

impl std::fmt::Debug for SimulatedEngine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_set().entries(self.servers.keys()).finish()
    }
}

impl SimulatedEngine {
    /// Of servers with different names; of two with the same name the later counts.
    pub fn new(servers: impl IntoIterator<Item = SimServer>) -> Self {
        let by_name = servers.into_iter().map(|server| (server.config().name.clone(), server)).collect();
        Self { servers: Arc::new(by_name) }
    }

    /// A server, to read its counters or to injure it.
    pub fn server(&self, name: &str) -> Option<&SimServer> {
        self.servers.get(name)
    }

    /// In order of their names.
    pub fn servers(&self) -> impl Iterator<Item = &SimServer> {
        self.servers.values()
    }

    /// Cancel-safe: dropping the future frees the sequences at once.
    async fn request(&self, name: &str, request: GenerateRequest) -> Result<Generation, EngineError> {
        let server =
            self.server(name).ok_or_else(|| EngineError::UnknownServer { server: name.to_owned() })?;
        let n = request.n as usize;
        let asked = SimRequest {
            n: request.n,
            max_tokens: Some(request.max_tokens),
            stop_token_ids: request.sampling.stop_token_ids.clone(),
            ..SimRequest::new(request.request_id, request.prompt_ids, request.seed)
        };
        let answer = server.generate(asked).await.map_err(|error| engine_error(name, &error))?;
        let aborted = answer.choices.iter().any(|choice| choice.finish_reason == sim::FinishReason::Abort);
        if aborted {
            let tokens = answer.choices.iter().map(|choice| choice.token_ids.len() as u64).sum();
            return Err(EngineError::Aborted { server: name.to_owned(), tokens });
        }
        if answer.choices.len() != n {
            let reason = format!("expected choices={n}, found={}", answer.choices.len());
            return Err(EngineError::BadAnswer { server: name.to_owned(), reason });
        }
        let samples = answer.choices.into_iter().map(|choice| sample(name, choice));
        Ok(Generation { samples: samples.collect::<Result<_, _>>()? })
    }

    fn controlled(&self, server: &ServerRef, what: &'static str) -> Result<&SimServer, ControlError> {
        self.server(&server.name).ok_or_else(|| failed(server, what, "there is no such server"))
    }
}

/// A choice that passed its checks; the caller has dealt with aborts.
fn sample(server: &str, choice: sim::SimChoice) -> Result<SampleOutput, EngineError> {
    let bad_answer = |reason: String| EngineError::BadAnswer { server: server.to_owned(), reason };
    let finish_reason = match choice.finish_reason {
        sim::FinishReason::Stop => FinishReason::Stop,
        sim::FinishReason::Length => FinishReason::Length,
        sim::FinishReason::Abort => {
            return Err(bad_answer("choice ended with finish_reason=abort".to_owned()));
        }
    };
    let tokens = choice.token_ids.len();
    if choice.logprobs.len() != tokens {
        return Err(bad_answer(format!("logprobs={} for tokens={tokens}", choice.logprobs.len())));
    }
    if let Some(token) = choice.logprobs.iter().position(|logprob| is_poisoned(*logprob)) {
        return Err(bad_answer(format!("poisoned logprob at token={token}")));
    }
    let span =
        |span: sim::VersionSpan| VersionSpan { version: span.version, start: span.start, end: span.end };
    let version_spans: Vec<VersionSpan> = choice.version_spans.into_iter().map(span).collect();
    if !spans_cover(&version_spans, tokens) {
        return Err(bad_answer(format!("weight versions do not cover tokens={tokens}")));
    }
    Ok(SampleOutput {
        response_ids: choice.token_ids,
        logprobs: choice.logprobs,
        finish_reason,
        version_spans,
    })
}

/// What a real client would have seen.
fn engine_error(name: &str, error: &SimError) -> EngineError {
    let server = name.to_owned();
    let reason = error.to_string();
    match error {
        SimError::BadRequest { .. } => EngineError::Refused { server, status: 400, reason },
        SimError::Busy { .. } => EngineError::Busy { server, retry_after: None, reason },
        SimError::Unreachable { .. } => EngineError::Unreachable { server, reason },
        SimError::EngineDead { .. }
        | SimError::Internal { .. }
        | SimError::ConnectionReset { .. }
        | SimError::Stopped { .. }
        | SimError::Config { .. }
        | SimError::Tokenizer { .. }
        | SimError::Listen { .. } => EngineError::Failed { server, reason },
    }
}

fn failed(server: &ServerRef, what: &'static str, reason: &str) -> ControlError {
    ControlError::Failed { server: Arc::clone(&server.name), what, reason: reason.to_owned() }
}

impl Engine for SimulatedEngine {
    fn generate<'a>(
        &'a self,
        server: &'a str,
        request: GenerateRequest,
    ) -> BoxFuture<'a, Result<Generation, EngineError>> {
        self.request(server, request).boxed()
    }

    fn interrupt(&self, server: &str, request_id: &Arc<str>) -> BoxFuture<'_, ()> {
        let Some(found) = self.server(server) else { return future::ready(()).boxed() };
        let request_id = Arc::clone(request_id);
        async move {
            for pause in INTERRUPT_PAUSES {
                found.abort(&[&request_id]);
                tokio::time::sleep(pause).await;
                if !found.is_known(&request_id) {
                    return;
                }
            }
        }
        .boxed()
    }

    /// Nothing is left to do: dropping the future has freed the sequences.
    fn cancelled(&self, _server: &str, _request_id: &Arc<str>) {}

    fn settle(&self, _limit: Duration) -> BoxFuture<'_, ()> {
        future::ready(()).boxed()
    }
}

impl EngineControl for SimulatedEngine {
    fn health<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        let health = self.controlled(server, "health").and_then(|found| match found.phase() {
            Phase::Serving => Ok(()),
            phase => Err(failed(server, "health", &format!("the server is {phase:?}"))),
        });
        future::ready(health).boxed()
    }

    fn load<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<EngineLoad, ControlError>> {
        let load = self.controlled(server, "load").map(|found| {
            let stats = found.stats();
            EngineLoad {
                running: u64::from(stats.running),
                waiting: u64::from(stats.waiting),
                generation_tokens_total: Some(stats.generation_tokens_total),
                preemptions_total: Some(stats.preemptions_total),
                kv_cache_usage: stats.kv_cache_usage,
                paused: Some(found.is_paused()),
            }
        });
        future::ready(load).boxed()
    }

    fn abort<'a>(
        &'a self,
        server: &'a ServerRef,
        request_id: &'a str,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        future::ready(self.controlled(server, "abort").map(|found| found.abort(&[request_id]))).boxed()
    }

    fn pause<'a>(
        &'a self,
        server: &'a ServerRef,
        mode: PauseMode,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        let mode = match mode {
            PauseMode::Abort => sim::PauseMode::Abort,
            PauseMode::Keep => sim::PauseMode::Keep,
            PauseMode::Wait => sim::PauseMode::Wait,
        };
        async move {
            self.controlled(server, "pause")?.pause(mode).await;
            Ok(())
        }
        .boxed()
    }

    fn resume<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        future::ready(self.controlled(server, "resume").map(|found| found.resume())).boxed()
    }

    fn reset_prefix_cache<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        let found = self.controlled(server, "reset_prefix_cache");
        let reset = found.map(|found| {
            found.reset_prefix_cache(false);
        });
        future::ready(reset).boxed()
    }

    fn set_weight_version<'a>(
        &'a self,
        server: &'a ServerRef,
        version: &'a str,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        let found = self.controlled(server, "update_weight_version");
        future::ready(found.map(|found| found.update_weight_version(version))).boxed()
    }
}

#[cfg(test)]
mod tests;
