//! vLLM's control endpoints.
//!
//! Facts that shape this module, observed with vLLM 0.32:
//! - `/health` and `/metrics` need no key.
//! - An abort names the id that the engine gave the request: the client's id with a prefix and, for
//!   completions, the prompt's index as a suffix.
//! - There are two abort calls. One call exists only with `--enable-scale-out`, the other only in development
//!   mode. Both answer "aborted" for ids that they have never seen.
//! - Calls for pauses and weights exist only in development mode (`VLLM_SERVER_DEV_MODE=1`) and need no key.
//!   The module `bodies` builds the bodies of these requests.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::check::check_generation;
use super::http::{HttpControl, failed};
use super::{ControlError, EngineControl, EngineLoad, PauseMode, ServerRef};

/// Control of vLLM servers over HTTP, with a connection pool of its own.
#[derive(Debug, Clone)]
pub struct VllmControl {
    http: HttpControl,
    /// The client for calls that wait until running requests have ended or weights have been loaded.
    patient: HttpControl,
}

/// Deadline of calls that wait until running requests have ended or weights have been loaded. Callers have
/// shorter deadlines of their own.
const WAIT_MAX: Duration = Duration::from_secs(3600);

impl VllmControl {
    /// `deadline` bounds every call, except for calls that wait until running requests have ended or weights
    /// have been loaded. `api_key` is sent as a bearer token.
    pub fn new(deadline: Duration, api_key: Option<Arc<str>>) -> Result<Self, ControlError> {
        let patient = HttpControl::new(WAIT_MAX, api_key.clone())?;
        Ok(Self { http: HttpControl::new(deadline, api_key)?, patient })
    }

    async fn metrics(&self, server: &ServerRef) -> Result<EngineLoad, ControlError> {
        let text = self.http.get(server, "metrics", "/metrics").await?;
        parse_metrics(&String::from_utf8_lossy(&text))
            .ok_or_else(|| ControlError::Unsupported { server: Arc::clone(&server.name), what: "load" })
    }

    async fn paused(&self, server: &ServerRef) -> Result<bool, ControlError> {
        let answer = self.http.get(server, "is_paused", "/is_paused").await?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        answer["is_paused"]
            .as_bool()
            .ok_or_else(|| failed(server, "is_paused", "expected is_paused to be true or false"))
    }

    /// Resets the prefix cache. Fails if blocks are in use; the server then answers with status 200 and
    /// `success: false`.
    async fn reset(&self, server: &ServerRef, path: &str) -> Result<(), ControlError> {
        let what = "reset_prefix_cache";
        let answer = self.http.post_for(server, what, path, None).await?;
        // Older servers answer without a body.
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        match answer["success"].as_bool() {
            Some(false) => Err(failed(server, what, "blocks of its cache are held")),
            _ => Ok(()),
        }
    }

    async fn abort_ids<Id: AsRef<str>>(&self, server: &ServerRef, ids: &[Id]) -> Result<(), ControlError> {
        let ids: Vec<String> = ids.iter().flat_map(|id| engine_ids(id.as_ref())).collect();
        let body = json!({ "request_ids": ids });
        let mut failed = None;
        for path in ABORT_PATHS {
            match self.http.post_often(server, "abort", path, Some(&body)).await {
                Ok(()) => return Ok(()),
                Err(ControlError::Unsupported { .. }) => {}
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or(ControlError::Unsupported { server: Arc::clone(&server.name), what: "abort" }))
    }
}

/// The paths of the two abort calls. The first one exists with `--enable-scale-out`, the second one in
/// development mode.
const ABORT_PATHS: [&str; 2] = ["/inference/v1/abort_requests", "/abort_requests"];

/// All ids that the engine may have given to the request of `id`. `id` may be the engine's own id, the id in
/// the engine's answer, or the id that the request was sent with. The id in the answer lacks the prompt's
/// index, and the id of the request lacks the prefix. The engine ignores ids that it does not know.
fn engine_ids(id: &str) -> Vec<String> {
    let mut ids = vec![id.to_owned()];
    if id.starts_with("cmpl-") {
        ids.push(format!("{id}-0"));
    } else if !id.starts_with("chatcmpl-") && !id.starts_with("generate-tokens-") {
        ids.extend(["generate-tokens-", "chatcmpl-", "cmpl-"].map(|prefix| format!("{prefix}{id}")));
        ids.push(format!("cmpl-{id}-0"));
    }
    ids
}

impl EngineControl for VllmControl {
    fn health<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        async move { self.http.get(server, "health", "/health").await.map(drop) }.boxed()
    }

    fn load<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<EngineLoad, ControlError>> {
        async move {
            let load = self.metrics(server).await;
            let counts = load.as_ref().map(|load| load.generation_tokens_total.is_some());
            if matches!(counts, Ok(false) | Err(ControlError::Unsupported { .. }))
                && self.http.is_first_time(server, "load")
            {
                tracing::warn!(
                    server = %server.name,
                    "expected vllm:generation_tokens_total at /metrics: without it stalls are not noticed and permits are not measured"
                );
            }
            let load = load?;
            Ok(EngineLoad { paused: self.paused(server).await.ok(), ..load })
        }
        .boxed()
    }

    fn abort<'a>(
        &'a self,
        server: &'a ServerRef,
        request_id: &'a str,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        async move { self.abort_ids(server, &[request_id]).await }.boxed()
    }

    fn abort_many<'a>(
        &'a self,
        server: &'a ServerRef,
        request_ids: &'a [String],
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        self.abort_ids(server, request_ids).boxed()
    }

    fn probe<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        self.http.generate_one(server).boxed()
    }

    fn check_generation<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        check_generation(&self.patient, server).boxed()
    }

    fn pause<'a>(
        &'a self,
        server: &'a ServerRef,
        mode: PauseMode,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        let http = if mode == PauseMode::Wait { &self.patient } else { &self.http };
        async move { http.post(server, "pause", &format!("/pause?mode={}", mode.as_str()), None).await }
            .boxed()
    }

    fn is_paused<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<bool, ControlError>> {
        self.paused(server).boxed()
    }

    fn resume<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        self.http.post(server, "resume", "/resume", None).boxed()
    }

    fn sleep<'a>(&'a self, server: &'a ServerRef, level: u8) -> BoxFuture<'a, Result<(), ControlError>> {
        async move { self.http.post(server, "sleep", &format!("/sleep?level={level}"), None).await }.boxed()
    }

    fn wake<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        self.http.post(server, "wake_up", "/wake_up", None).boxed()
    }

    fn reset_prefix_cache<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        self.reset(server, "/reset_prefix_cache").boxed()
    }

    fn recompute_running<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        self.reset(server, "/reset_prefix_cache?reset_running_requests=true").boxed()
    }

    fn collective_rpc<'a>(
        &'a self,
        server: &'a ServerRef,
        method: &'a str,
        kwargs: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        async move {
            let body = bodies::collective_rpc(method, kwargs);
            self.patient.post(server, "collective_rpc", "/collective_rpc", Some(&body)).await
        }
        .boxed()
    }

    fn start_weight_update<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        self.patient.post(server, "start_weight_update", "/start_weight_update", None).boxed()
    }

    fn update_weights<'a>(
        &'a self,
        server: &'a ServerRef,
        body: &'a Value,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        self.patient.post(server, "update_weights", "/update_weights", Some(body)).boxed()
    }

    fn finish_weight_update<'a>(
        &'a self,
        server: &'a ServerRef,
        version: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        async move {
            let body = bodies::finish_weight_update(version);
            self.patient.post(server, "finish_weight_update", "/finish_weight_update", Some(&body)).await
        }
        .boxed()
    }

    fn weight_version<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<Arc<str>, ControlError>> {
        async move {
            let answer = self.http.get(server, "weight_info", "/weight_info").await?;
            let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
            let version = answer["weight_version"].as_str().map(Arc::from);
            version.ok_or_else(|| failed(server, "weight_info", "expected a weight_version, found none"))
        }
        .boxed()
    }

    fn set_weight_version<'a>(
        &'a self,
        server: &'a ServerRef,
        version: &'a str,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        async move {
            let body = bodies::update_weight_version(version);
            self.http.post(server, "update_weight_version", "/update_weight_version", Some(&body)).await
        }
        .boxed()
    }
}

/// Request bodies, as vLLM 0.32 reads them.
mod bodies {
    use super::{Map, Value, json};

    /// A call of the workers' `method` with keyword arguments.
    pub(super) fn collective_rpc(method: &str, kwargs: &Map<String, Value>) -> Value {
        json!({ "method": method, "kwargs": kwargs })
    }

    /// Ends a weight update and names the weights. Without a version the weights keep their name.
    pub(super) fn finish_weight_update(version: Option<&str>) -> Value {
        match version {
            Some(version) => json!({ "weight_version": version }),
            None => json!({}),
        }
    }

    pub(super) fn update_weight_version(version: &str) -> Value {
        json!({ "new_version": version })
    }
}

/// Reads the load from Prometheus text. With data parallelism a server has several engines, each with its own
/// series: counts are added up, and the KV cache usage is the mean.
fn parse_metrics(text: &str) -> Option<EngineLoad> {
    let mut load = EngineLoad::default();
    let mut usages = 0_u32;
    let mut is_of_vllm = false;
    for line in text.lines() {
        let Some(series) = line.strip_prefix("vllm:") else { continue };
        let name_end = series.find(['{', ' ']).unwrap_or(series.len());
        let Some(value) = series.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()) else {
            continue;
        };
        match &series[..name_end] {
            "num_requests_running" => {
                load.running += value as u64;
                is_of_vllm = true;
            }
            "num_requests_waiting" => load.waiting += value as u64,
            "generation_tokens_total" => {
                *load.generation_tokens_total.get_or_insert_default() += value as u64;
            }
            "num_preemptions_total" => {
                *load.preemptions_total.get_or_insert_default() += value as u64;
            }
            "kv_cache_usage_perc" => {
                load.kv_cache_usage += value;
                usages += 1;
            }
            _ => {}
        }
    }
    load.kv_cache_usage /= f64::from(usages.max(1));
    is_of_vllm.then_some(load)
}

#[cfg(test)]
mod tests;
