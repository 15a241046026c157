//! The interface between the rollout core and inference servers, with its implementations.
//!
//! The core works with token ids in flat buffers, and is independent of JSON, HTTP and simulation. The core
//! calls an [`Engine`], and the permit of a request names the server. [`http`] talks to real servers.
//! [`simulated`] talks to a simulated fleet in the same process, in real or virtual time.
//!
//! # Invariants
//! - **Architecture Invariant:** in this crate, only [`http`] parses or writes an engine's wire format.
//! - Dropping the future of [`Engine::generate`] frees the engine's slots: the HTTP implementation closes the
//!   connection, and the simulation frees the sequences.
//! - A [`Generation`] that is returned has passed every check of its bytes. An answer that fails a check is
//!   an [`EngineError`] with a reason, never an incomplete sample.
//! - The tokens that a cut-off request leaves in its [`Progress`] have passed these checks too.
//!
//! # Deliberately absent
//! The engine does not retry. The rollout core, which owns attempts and permits, decides whether, where and
//! how often a request is tried again. [`EngineError::admission`] only tells which retries are safe.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

mod error;
pub mod http;
mod progress;
pub mod simulated;
mod soundness;

pub use error::{Admission, EngineError, ErrorClass};
pub use progress::{Generated, Progress};
pub use rolldock_dispatch::{FinishReason, PartialOutput, VersionSpan};

/// Sampling parameters, under the names that papers and engines use.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingParams {
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// Nucleus mass in (0, 1].
    pub top_p: f32,
    /// Number of most probable tokens that are kept; -1 keeps all.
    pub top_k: i32,
    /// Token ids that end a response, in addition to the model's own stop tokens.
    pub stop_token_ids: Vec<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: -1, stop_token_ids: Vec::new() }
    }
}

/// One request for `n` samples of one prompt.
///
/// Sample `i` of the answer is drawn with seed `seed + i`, because the engine derives the seeds of a request
/// with `n > 1` in this way. One request for n samples therefore gives the same samples as n requests for one
/// sample each.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// The request's id, unique over the run and all its dispatches. The engine can abort the request by this
    /// id.
    pub request_id: Arc<str>,
    /// The token ids of the prompt. The samples of a group share them.
    pub prompt_ids: Arc<[u32]>,
    /// The prompt as text, for servers that take no ids.
    pub prompt_text: Arc<str>,
    /// Number of samples asked for.
    pub n: u32,
    /// Seed of the first sample.
    pub seed: u64,
    /// Maximum number of tokens a sample may have.
    pub max_tokens: u32,
    /// The sampling parameters, which all requests of a step share.
    pub sampling: Arc<SamplingParams>,
    /// Receives the tokens of a request that does not succeed, and the number of generated tokens. If absent,
    /// both are lost.
    pub progress: Option<Progress>,
    /// Whether tokens are added to `progress` as they arrive. Otherwise they are added only if the engine
    /// ends the request early. The answer is the same in both cases.
    pub stream: bool,
    /// Set if `prompt_ids` ends in tokens of the sample itself. Only the simulation reads it: a real model
    /// needs only the tokens.
    pub resumed: Option<Resumed>,
    /// Keeps prefix caches apart, for example the caches of different weights. Only requests with the same
    /// salt share a cache. It is sent only in dialects that support it.
    pub cache_salt: Option<Arc<str>>,
}

/// The point from which a sample that was cut off continues. Its request asks for one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumed {
    /// Number of tokens at the end of `prompt_ids` that are the sample's own earlier tokens.
    pub tokens: u32,
    /// The seed of the sample's first segment.
    pub seed: u64,
}

/// One finished sample.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleOutput {
    /// Token ids, the stop token included.
    pub response_ids: Vec<u32>,
    /// Log-probability of each token of `response_ids`. It is empty only if the server returns text without
    /// token ids and log-probabilities.
    pub logprobs: Vec<f32>,
    /// Why the sample ended.
    pub finish_reason: FinishReason,
    /// Spans that cover all tokens; empty if the dialect does not report them.
    pub version_spans: Vec<VersionSpan>,
}

/// The samples of one request, in order of their index: exactly `n`.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// One per requested sample.
    pub samples: Vec<SampleOutput>,
}

/// A fleet of servers that generate.
///
/// A server has the same name as in the load balancer, which owns the membership of the fleet.
///
/// ```
/// use std::sync::Arc;
///
/// use rolldock_engine::simulated::SimulatedEngine;
/// use rolldock_engine::{Engine, GenerateRequest, SamplingParams};
/// use rolldock_scope::Scope;
/// use rolldock_simengine::{NoAnswers, ServerConfig, SimServer, Workload, WorkloadConfig};
///
/// # let mut runtime = tokio::runtime::Builder::new_current_thread();
/// # let runtime = runtime.enable_time().start_paused(true).build().unwrap();
/// # runtime.block_on(async {
/// let scope = Scope::new();
/// let config = ServerConfig { name: "s0".to_owned(), ..ServerConfig::default() };
/// let workload = Arc::new(Workload::new(WorkloadConfig::default()));
/// let server =
///     SimServer::start(config, workload, Arc::new(NoAnswers), scope.tracker(), scope.token().clone())?;
/// let engine: Arc<dyn Engine> = Arc::new(SimulatedEngine::new([server]));
///
/// let request = GenerateRequest {
///     request_id: "r0".into(),
///     prompt_ids: [1, 2, 3].into(),
///     prompt_text: "".into(),
///     n: 2,
///     seed: 7,
///     max_tokens: 100,
///     sampling: Arc::new(SamplingParams::default()),
///     progress: None,
///     stream: false,
///     resumed: None,
///     cache_salt: None,
/// };
/// let generation = engine.generate("s0", request).await?;
/// assert_eq!(generation.samples.len(), 2);
/// for sample in &generation.samples {
///     assert_eq!(sample.logprobs.len(), sample.response_ids.len());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub trait Engine: Send + Sync + 'static {
    /// Runs one request to its end on the server called `server`.
    ///
    /// Cancel-safe: dropping the future frees the request's resources on the engine. The only time-out in
    /// this call is the connect time-out. The caller handles deadlines and stalls.
    fn generate<'a>(
        &'a self,
        server: &'a str,
        request: GenerateRequest,
    ) -> BoxFuture<'a, Result<Generation, EngineError>>;

    /// Asks the engine to end a request that `generate` is still running, so that `generate` soon returns
    /// [`EngineError::Aborted`] and the request's [`Progress`] has its tokens.
    ///
    /// An abort within 10 ms of its request is usually lost. The abort is therefore repeated until the
    /// request returns, up to a bounded number of times. All of these aborts may fail, so the caller has to
    /// drop `generate` after a time limit. Cancel-safe.
    fn interrupt(&self, server: &str, request_id: &Arc<str>) -> BoxFuture<'_, ()>;

    /// Tells the engine that the request's future was dropped. The request is aborted by id if the engine
    /// offers aborts.
    ///
    /// Returns immediately. The aborts that it starts are bounded in number and time, and end with the
    /// engine's scope.
    fn cancelled(&self, server: &str, request_id: &Arc<str>);

    /// Number of tokens that servers have generated so far for probes. A probe checks a server that joins.
    /// The tokens of requests are not counted.
    fn probe_tokens(&self) -> u64 {
        0
    }

    /// Waits until the aborts that [`Engine::cancelled`] started have ended, for at most `limit`.
    ///
    /// Cancel-safe.
    fn settle(&self, limit: Duration) -> BoxFuture<'_, ()>;
}

#[cfg(test)]
mod tests;
