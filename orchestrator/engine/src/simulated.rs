//! A simulated fleet in the same process. It opens no sockets, and on a paused clock it takes no real time.
//!
//! Like a real server, a [`SimulatedEngine`] has two sides: it generates for the rollout core, and it answers
//! the control calls of the load balancer. Its answers pass the same checks as those of real servers, so an
//! injected fault takes the same path through the code as a real one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use rolldock_loadbalancer::{ControlError, EngineControl, EngineLoad, PauseMode, ServerRef};
use rolldock_simengine as sim;
use rolldock_simengine::{Phase, SimError, SimRequest, SimServer};
use tokio::sync::mpsc;

use super::{
    Engine, EngineError, GenerateRequest, Generation, PartialOutput, Progress, Resumed, SampleOutput,
};

mod partial;

/// The pauses after which an interrupt repeats its abort while the server still has the request. Like a real
/// server, a simulated server ignores aborts that arrive too early.
const INTERRUPT_PAUSES: [Duration; 4] = [
    Duration::from_millis(1),
    Duration::from_millis(15),
    Duration::from_millis(60),
    Duration::from_millis(250),
];

/// Maximum number of chunks of a streamed request that wait to be received. While this number of chunks
/// waits, further tokens stay in the engine. They are sent with the next chunk.
const CHUNKS_MAX: usize = 16;

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
    /// An engine of these servers. If two servers have the same name, the later one is used.
    pub fn new(servers: impl IntoIterator<Item = SimServer>) -> Self {
        let by_name = servers.into_iter().map(|server| (server.config().name.clone(), server)).collect();
        Self { servers: Arc::new(by_name) }
    }

    /// A server. Callers read its counters or inject faults.
    pub fn server(&self, name: &str) -> Option<&SimServer> {
        self.servers.get(name)
    }

    /// The servers in order of their names.
    pub fn servers(&self) -> impl Iterator<Item = &SimServer> {
        self.servers.values()
    }

    /// Cancel-safe: dropping the future frees the sequences immediately.
    async fn request(&self, name: &str, request: GenerateRequest) -> Result<Generation, EngineError> {
        let server =
            self.server(name).ok_or_else(|| EngineError::UnknownServer { server: name.to_owned() })?;
        let progress = request.progress.unwrap_or_default();
        progress.begin();
        // The server's future is dropped before this value, and then counts the tokens of a dropped request.
        let mut counted = Counted { generated: Arc::default(), is_whole: false, progress: progress.clone() };
        let (stream, chunks) = mpsc::channel(CHUNKS_MAX);
        let resumed = |resumed: Resumed| sim::Resumed { tokens: resumed.tokens, seed: resumed.seed };
        let asked = SimRequest {
            n: request.n,
            max_tokens: Some(request.max_tokens),
            stop_token_ids: request.sampling.stop_token_ids.clone(),
            resumed: request.resumed.map(resumed),
            stream: request.stream.then_some(stream),
            generated: Some(Arc::clone(&counted.generated)),
            ..SimRequest::new(request.request_id, request.prompt_ids, request.seed)
        };
        let parts =
            if request.stream { vec![PartialOutput::default(); request.n as usize] } else { Vec::new() };
        progress.leave(parts);
        let generating = server.generate(asked);
        let answered = if request.stream {
            partial::follow(generating, chunks, &progress).await
        } else {
            generating.await
        };
        // A fault that loses the answer resets the connection when the answer is sent, so all tokens were
        // generated.
        counted.is_whole = matches!(answered, Ok(_) | Err(SimError::ConnectionReset { .. }));
        let answer = answered.map_err(|error| engine_error(name, &error))?;
        let aborted = answer.choices.iter().any(|choice| choice.finish_reason == sim::FinishReason::Abort);
        let tokens = answer.choices.iter().map(|choice| choice.token_ids.len() as u64).sum();
        let parts = partial::checked(answer, request.n);
        if aborted {
            progress.leave(parts.unwrap_or_default());
            return Err(EngineError::Aborted { server: name.to_owned(), tokens });
        }
        progress.leave(Vec::new());
        let bad_answer = |reason: String| EngineError::BadAnswer { server: name.to_owned(), reason };
        let samples = parts.map_err(bad_answer)?.into_iter().map(|part| {
            SampleOutput::finished(part)
                .ok_or_else(|| bad_answer("a choice without an end or without tokens".to_owned()))
        });
        Ok(Generation { samples: samples.collect::<Result<_, _>>()? })
    }

    fn controlled(&self, server: &ServerRef, what: &'static str) -> Result<&SimServer, ControlError> {
        self.server(&server.name).ok_or_else(|| failed(server, what, "there is no such server"))
    }
}

/// Tells the progress how many tokens the server generated, when the request has ended or was dropped.
struct Counted {
    generated: Arc<AtomicU64>,
    is_whole: bool,
    progress: Progress,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.progress.engine_says(self.generated.load(Ordering::Acquire));
        if self.is_whole {
            self.progress.note_whole();
        }
    }
}

/// The error that the client of a real server would return.
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

    /// Does nothing, because dropping the future has freed the sequences.
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

    fn recompute_running<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        let found = self.controlled(server, "recompute_running");
        let reset = found.map(|found| {
            found.reset_prefix_cache(true);
        });
        future::ready(reset).boxed()
    }

    fn weight_version<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<Arc<str>, ControlError>> {
        future::ready(self.controlled(server, "weight_version").map(SimServer::weight_version)).boxed()
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
