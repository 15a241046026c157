//! vLLM's control endpoints.
//!
//! Facts that shape this module, seen on 0.32: `/health` and `/metrics` need no key; aborts go by the id that the
//! engine gave the request, which is ours with a prefix and, for completions, the prompt's index behind it; the
//! scale-out abort is there only with `--enable-scale-out`, the other one only in development mode; both answer
//! "aborted" for ids they have never seen.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;

use super::http::HttpControl;
use super::{ControlError, EngineControl, EngineLoad, PauseMode, ServerRef};

/// Control over HTTP, with a connection pool of its own.
#[derive(Debug, Clone)]
pub struct VllmControl {
    http: HttpControl,
    /// For what takes as long as what runs.
    patient: HttpControl,
}

/// Pausing in [`PauseMode::Wait`] waits for what runs.
const WAIT_MAX: Duration = Duration::from_secs(3600);

impl VllmControl {
    /// `deadline` bounds every call but those that wait for what runs; `api_key` is sent as a bearer token.
    pub fn new(deadline: Duration, api_key: Option<Arc<str>>) -> Result<Self, ControlError> {
        let patient = HttpControl::new(WAIT_MAX, api_key.clone())?;
        Ok(Self { http: HttpControl::new(deadline, api_key)?, patient })
    }

    async fn metrics(&self, server: &ServerRef) -> Result<EngineLoad, ControlError> {
        let text = self.http.get(server, "metrics", "/metrics").await?;
        Ok(parse_metrics(&String::from_utf8_lossy(&text)))
    }

    async fn paused(&self, server: &ServerRef) -> Option<bool> {
        let body = self.http.get(server, "is_paused", "/is_paused").await.ok()?;
        let body: serde_json::Value = serde_json::from_slice(&body).ok()?;
        body.get("is_paused")?.as_bool()
    }

    async fn abort_by_id(&self, server: &ServerRef, request_id: &str) -> Result<(), ControlError> {
        let ids = ["generate-tokens-", "chatcmpl-", "cmpl-"].map(|prefix| format!("{prefix}{request_id}"));
        let [generate, chat, completion] = ids;
        let body = json!({ "request_ids": [generate, chat, format!("{completion}-0"), completion] });
        let mut last = ControlError::Unsupported { server: Arc::clone(&server.name), what: "abort" };
        for path in ["/inference/v1/abort_requests", "/abort_requests"] {
            match self.http.post(server, "abort", path, Some(&body)).await {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl EngineControl for VllmControl {
    fn health<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        async move { self.http.get(server, "health", "/health").await.map(drop) }.boxed()
    }

    fn load<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<EngineLoad, ControlError>> {
        async move {
            let load = self.metrics(server).await?;
            Ok(EngineLoad { paused: self.paused(server).await, ..load })
        }
        .boxed()
    }

    fn abort<'a>(
        &'a self,
        server: &'a ServerRef,
        request_id: &'a str,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        self.abort_by_id(server, request_id).boxed()
    }

    fn probe<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        self.http.generate_one(server).boxed()
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
        self.http.post(server, "reset_prefix_cache", "/reset_prefix_cache", None).boxed()
    }

    fn set_weight_version<'a>(
        &'a self,
        server: &'a ServerRef,
        version: &'a str,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        async move {
            let body = json!({ "new_version": version });
            self.http.post(server, "update_weight_version", "/update_weight_version", Some(&body)).await
        }
        .boxed()
    }
}

/// Sums over the engines of a server (data parallelism has one series each).
fn parse_metrics(text: &str) -> EngineLoad {
    let mut load = EngineLoad::default();
    let mut usages = 0_u32;
    for line in text.lines() {
        let Some(series) = line.strip_prefix("vllm:") else { continue };
        let name_end = series.find(['{', ' ']).unwrap_or(series.len());
        let Some(value) = series.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()) else {
            continue;
        };
        match &series[..name_end] {
            "num_requests_running" => load.running += value as u64,
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
    load
}

#[cfg(test)]
mod tests {
    use super::parse_metrics;

    #[test]
    fn series_of_several_engines_add_up() {
        let text = "# HELP vllm:num_requests_running x\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"a b\"} 3.0\n\
            vllm:num_requests_running{engine=\"1\",model_name=\"a b\"} 4.0\n\
            vllm:num_requests_waiting_by_reason{engine=\"0\"} 9.0\n\
            vllm:num_requests_waiting{engine=\"0\"} 2.0\n\
            vllm:generation_tokens_total{engine=\"0\"} 1.5e+03\n\
            vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n\
            vllm:kv_cache_usage_perc{engine=\"1\"} 0.7\n";
        let load = parse_metrics(text);
        assert_eq!((load.running, load.waiting, load.generation_tokens_total), (7, 2, Some(1500)));
        assert!((load.kv_cache_usage - 0.6).abs() < 1e-12);
    }

    #[test]
    fn a_real_servers_metrics_are_read() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/vllm/captures/metrics.txt");
        let Ok(text) = std::fs::read_to_string(path) else {
            eprintln!("skipped: {path} is not there");
            return;
        };
        let load = parse_metrics(&text);
        assert!(load.generation_tokens_total > Some(0), "{load:?}");
        assert!((0.0..=1.0).contains(&load.kv_cache_usage), "{load:?}");
    }

    #[test]
    fn garbage_is_no_load() {
        assert_eq!(parse_metrics("vllm:num_requests_running\nvllm:\nx y z\n"), super::EngineLoad::default());
    }
}
