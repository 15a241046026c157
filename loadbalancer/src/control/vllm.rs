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
use reqwest::{Client, RequestBuilder, Response, StatusCode};

use super::{ControlError, EngineControl, EngineLoad, ServerRef};

/// Metrics of a busy server with many series stay far below.
const METRICS_BYTES_MAX: usize = 16 << 20;

/// Control over HTTP, with a connection pool of its own.
#[derive(Debug, Clone)]
pub struct VllmControl {
    client: Client,
    api_key: Option<Arc<str>>,
}

impl VllmControl {
    /// `deadline` bounds every call; `api_key` is sent as a bearer token.
    pub fn new(deadline: Duration, api_key: Option<Arc<str>>) -> Result<Self, ControlError> {
        // Idle connections are closed by the engine after 5 s: let go of them before.
        let client = Client::builder()
            .timeout(deadline)
            .pool_idle_timeout(Duration::from_secs(4))
            .no_proxy()
            .build()
            .map_err(|error| ControlError::Failed {
                server: "client".into(),
                what: "start",
                reason: error.to_string(),
            })?;
        Ok(Self { client, api_key })
    }

    fn url(&self, server: &ServerRef, path: &str) -> Result<String, ControlError> {
        let unsupported = || ControlError::Unsupported { server: Arc::clone(&server.name), what: "HTTP" };
        let base = server.url.as_deref().ok_or_else(unsupported)?;
        Ok(format!("{}{path}", base.trim_end_matches('/')))
    }

    async fn send(
        &self,
        server: &ServerRef,
        what: &'static str,
        request: RequestBuilder,
    ) -> Result<Response, ControlError> {
        let request = match &self.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let response = request.send().await.map_err(|error| failed(server, what, &error.to_string()))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if matches!(status, StatusCode::NOT_FOUND | StatusCode::FORBIDDEN | StatusCode::METHOD_NOT_ALLOWED) {
            return Err(ControlError::Unsupported { server: Arc::clone(&server.name), what });
        }
        Err(failed(server, what, &format!("status {status}")))
    }

    async fn metrics(&self, server: &ServerRef) -> Result<EngineLoad, ControlError> {
        let url = self.url(server, "/metrics")?;
        let mut response = self.send(server, "metrics", self.client.get(url)).await?;
        let mut text = Vec::new();
        while let Some(chunk) =
            response.chunk().await.map_err(|error| failed(server, "metrics", &error.to_string()))?
        {
            if text.len() + chunk.len() > METRICS_BYTES_MAX {
                return Err(failed(server, "metrics", "more than 16 MiB"));
            }
            text.extend_from_slice(&chunk);
        }
        Ok(parse_metrics(&String::from_utf8_lossy(&text)))
    }

    async fn paused(&self, server: &ServerRef) -> Option<bool> {
        let url = self.url(server, "/is_paused").ok()?;
        let response = self.send(server, "is_paused", self.client.get(url)).await.ok()?;
        let body: serde_json::Value = response.json().await.ok()?;
        body.get("is_paused")?.as_bool()
    }

    async fn abort_by_id(&self, server: &ServerRef, request_id: &str) -> Result<(), ControlError> {
        let ids = [format!("generate-tokens-{request_id}"), format!("cmpl-{request_id}-0")];
        let body = serde_json::json!({ "request_ids": ids });
        let mut last = ControlError::Unsupported { server: Arc::clone(&server.name), what: "abort" };
        for path in ["/inference/v1/abort_requests", "/abort_requests"] {
            let url = self.url(server, path)?;
            match self.send(server, "abort", self.client.post(url).json(&body)).await {
                Ok(_) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn failed(server: &ServerRef, what: &'static str, reason: &str) -> ControlError {
    ControlError::Failed { server: Arc::clone(&server.name), what, reason: reason.to_owned() }
}

impl EngineControl for VllmControl {
    fn health<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        async move {
            let url = self.url(server, "/health")?;
            self.send(server, "health", self.client.get(url)).await.map(drop)
        }
        .boxed()
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
