//! Tests of the HTTP server over loopback sockets.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{KEEP_ALIVE_S, serve};
use crate::codec::{Codec, GuessingKey, TextCodec};
use crate::{Fault, NoAnswers, ServerConfig, SimServer, Workload, WorkloadConfig};

mod agents;
mod recorded;

struct Fixture {
    server: SimServer,
    base: String,
    client: reqwest::Client,
    _cancel: tokio_util::sync::DropGuard,
}

/// A server of the same size as the real vLLM server whose traffic was recorded, but a thousand times as
/// fast.
fn small() -> ServerConfig {
    ServerConfig {
        model: "tiny-qwen3".to_owned(),
        max_model_len: 2_048,
        time_scale: 0.001,
        abort_race_ms: 0,
        ..ServerConfig::default()
    }
}

async fn start(config: ServerConfig) -> Fixture {
    let tracker = TaskTracker::new();
    let cancel = CancellationToken::new();
    let text = TextCodec::builtin().unwrap();
    let workload = WorkloadConfig { filler_ids: text.filler_ids(), ..WorkloadConfig::default() };
    let codec: Arc<dyn Codec> = Arc::new(text);
    let key = Arc::new(GuessingKey::new(Arc::new(NoAnswers), Arc::clone(&codec)));
    let workload = Arc::new(Workload::new(workload));
    let server = SimServer::start(config, workload, key, &tracker, cancel.clone()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = serve(server.clone(), codec, listener, 1_700_000_000, &tracker, cancel.clone()).unwrap();
    Fixture {
        server,
        base: format!("http://{addr}"),
        client: reqwest::Client::new(),
        _cancel: cancel.drop_guard(),
    }
}

impl Fixture {
    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.client.post(format!("{}{path}", self.base)).json(body).send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let response = self.client.get(format!("{}{path}", self.base)).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// Waits until the engine is empty. This wait has no time limit of its own; the test runner has one.
    async fn until_idle(&self) {
        loop {
            let stats = self.server.stats();
            if stats.running + stats.waiting + stats.held == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn keys_guard_the_api_and_nothing_else() {
    let fixture = start(ServerConfig { api_key: Some("secret".to_owned()), ..small() }).await;
    let (status, body) = fixture.post("/inference/v1/generate", &json!({})).await;
    assert_eq!((status, body), (401, json!({ "error": "Unauthorized" })));
    assert_eq!(fixture.get("/v1/models").await.0, 401);
    assert_eq!(fixture.get("/health").await.0, 200);
    assert_eq!(fixture.post("/pause?mode=keep", &Value::Null).await, (200, json!({ "status": "paused" })));
}

#[tokio::test]
async fn the_token_endpoints_are_off_without_scale_out() {
    let fixture = start(ServerConfig { scale_out: false, ..small() }).await;
    let (status, body) = fixture.post("/inference/v1/generate", &json!({})).await;
    assert_eq!(status, 403);
    assert_eq!(body["error"]["type"], "PermissionDeniedError");
}

#[tokio::test]
async fn both_dialects_say_the_same_tokens() {
    let fixture = start(small()).await;
    let completion = json!({ "prompt": [5, 6, 7], "n": 2, "max_tokens": 300, "seed": 9, "logprobs": 0,
        "return_token_ids": true });
    let (_, by_text) = fixture.post("/v1/completions", &completion).await;
    let generate = json!({ "token_ids": [5, 6, 7],
        "sampling_params": { "n": 2, "max_tokens": 300, "seed": 9, "logprobs": 0 } });
    let (_, by_tokens) = fixture.post("/inference/v1/generate", &generate).await;
    for index in 0..2 {
        let (text, tokens) = (&by_text["choices"][index], &by_tokens["choices"][index]);
        assert_eq!(text["token_ids"], tokens["token_ids"]);
        assert_eq!(text["finish_reason"], tokens["finish_reason"]);
        let count = tokens["token_ids"].as_array().unwrap().len();
        assert_eq!(tokens["weight_versions"], json!([{ "version": "default", "start": 0, "end": count }]));
        let content = tokens["logprobs"]["content"].as_array().unwrap();
        let logprobs: Vec<&Value> = content.iter().map(|entry| &entry["logprob"]).collect();
        assert_eq!(
            logprobs,
            text["logprobs"]["token_logprobs"].as_array().unwrap().iter().collect::<Vec<_>>()
        );
    }
}

#[tokio::test]
async fn a_completion_without_a_limit_has_16_tokens() {
    let fixture = start(small()).await;
    for (limit, tokens) in [
        (json!({}), 16),
        (json!({ "max_tokens": 5 }), 5),
        (json!({ "max_completion_tokens": 5 }), 16),
        (json!({ "max_tokens": null }), small().max_model_len - 2),
    ] {
        let mut ask = json!({ "prompt": [5, 6], "ignore_eos": true });
        ask.as_object_mut().unwrap().extend(limit.as_object().unwrap().clone());
        let (_, answer) = fixture.post("/v1/completions", &ask).await;
        assert_eq!(answer["usage"]["completion_tokens"], tokens, "{limit}");
    }
}

#[tokio::test]
async fn a_stream_has_the_tokens_of_the_whole_answer() {
    let fixture = start(small()).await;
    let mut ask = json!({ "prompt": [[5, 6, 7], [8]], "n": 2, "max_tokens": 200, "seed": 3, "logprobs": 1,
        "return_token_ids": true, "stream_options": { "include_usage": true, "continuous_usage_stats": true } });
    let (_, whole) = fixture.post("/v1/completions", &ask).await;
    ask["stream"] = json!(true);
    let (status, text) = fixture.post("/v1/completions", &ask).await;
    assert_eq!(status, 200);
    let events: Vec<&str> = text.as_str().unwrap().trim().split("\n\n").collect();
    assert_eq!(events.last(), Some(&"data: [DONE]"));
    let mut tokens = vec![Vec::new(); 4];
    let mut reasons = vec![Value::Null; 4];
    for event in &events[..events.len() - 1] {
        let parsed: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        for choice in parsed["choices"].as_array().unwrap() {
            let index = choice["index"].as_u64().unwrap() as usize;
            assert_eq!(choice["prompt_token_ids"].is_null(), !tokens[index].is_empty());
            tokens[index].extend(choice["token_ids"].as_array().unwrap().iter().cloned());
            reasons[index] = choice["finish_reason"].clone();
        }
    }
    for index in 0..4 {
        assert_eq!(Value::Array(tokens[index].clone()), whole["choices"][index]["token_ids"]);
        assert_eq!(reasons[index], whole["choices"][index]["finish_reason"]);
    }
}

#[tokio::test]
async fn stop_strings_cut_the_text_and_keep_the_token() {
    let fixture = start(small()).await;
    let ask = json!({ "prompt": [5], "max_tokens": 2000, "seed": 1, "return_token_ids": true });
    let (_, free) = fixture.post("/v1/completions", &ask).await;
    let word = free["choices"][0]["text"].as_str().unwrap().split(' ').nth(3).unwrap().to_owned();
    let mut stopped = ask.clone();
    stopped["stop"] = json!([word]);
    let (_, answer) = fixture.post("/v1/completions", &stopped).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["stop_reason"], json!(word));
    assert!(!choice["text"].as_str().unwrap().contains(&word));
    assert!(choice["token_ids"].as_array().unwrap().len() <= 4);
}

#[tokio::test]
async fn a_client_that_disconnects_frees_its_places() {
    let fixture = start(ServerConfig { time_scale: 1.0, ..small() }).await;
    let ask =
        json!({ "token_ids": [1, 2], "sampling_params": { "n": 4, "max_tokens": 2000, "ignore_eos": true } });
    for stream in [false, true] {
        let mut body = ask.clone();
        body["stream"] = json!(stream);
        let url = format!("{}/inference/v1/generate", fixture.base);
        let call = fixture.client.post(url).json(&body).send();
        if stream {
            let response = call.await.unwrap();
            assert_eq!(fixture.server.stats().running, 4);
            drop(response);
        } else {
            assert!(tokio::time::timeout(Duration::from_millis(100), call).await.is_err());
        }
        fixture.until_idle().await;
    }
}

#[tokio::test]
async fn aborts_answer_with_partial_tokens_and_lie_about_unknown_ids() {
    let fixture = start(ServerConfig { time_scale: 1.0, ..small() }).await;
    let ask = json!({ "prompt": [1, 2], "max_tokens": 2000, "ignore_eos": true, "request_id": "r7",
        "return_token_ids": true });
    let abort = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let unknown = fixture.post("/abort_requests", &json!({ "request_ids": ["r7", "cmpl-r7"] })).await;
        assert_eq!(unknown, (200, json!({ "status": "aborted", "aborted": 2 })));
        assert_eq!(fixture.server.stats().running, 1);
        fixture.post("/abort_requests", &json!({ "request_ids": ["cmpl-r7-0"] })).await
    };
    let ((_, answer), aborted) = tokio::join!(fixture.post("/v1/completions", &ask), abort);
    assert_eq!(aborted, (200, json!({ "status": "aborted", "aborted": 1 })));
    assert_eq!(answer["choices"][0]["finish_reason"], "abort");
    assert!(!answer["choices"][0]["token_ids"].as_array().unwrap().is_empty());
    let empty = fixture.client.post(format!("{}/abort_requests", fixture.base)).send().await.unwrap();
    assert_eq!(empty.status(), 400);
    let body: Value = empty.json().await.unwrap();
    assert_eq!(body["error"]["message"], "Invalid JSON format");
}

#[tokio::test]
async fn idle_connections_are_closed_after_the_keep_alive() {
    let fixture = start(small()).await;
    let mut socket = TcpStream::connect(fixture.base.strip_prefix("http://").unwrap()).await.unwrap();
    let mut bytes = [0_u8; 1024];
    for _ in 0..2 {
        socket.write_all(b"GET /health HTTP/1.1\r\nhost: sim\r\n\r\n").await.unwrap();
        assert!(socket.read(&mut bytes).await.unwrap() > 0);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let idle = tokio::time::Instant::now();
    assert_eq!(socket.read(&mut bytes).await.unwrap(), 0, "the connection ends without a further byte");
    let waited = idle.elapsed() + Duration::from_millis(300);
    assert!(waited > Duration::from_secs(KEEP_ALIVE_S - 1), "{waited:?}");
    assert!(waited < Duration::from_secs(KEEP_ALIVE_S + 2), "{waited:?}");
}

#[tokio::test]
async fn nan_log_probabilities_are_answered_as_in_each_dialect() {
    let fixture = start(small()).await;
    fixture.server.inject(Fault::Nan { share: 1.0 });
    let completion = json!({ "prompt": [1], "max_tokens": 2, "logprobs": 0 });
    let (status, body) = fixture.post("/v1/completions", &completion).await;
    assert_eq!(status, 400);
    assert_eq!(body["error"]["message"], "Out of range float values are not JSON compliant");
    let generate = json!({ "token_ids": [1], "sampling_params": { "max_tokens": 2, "logprobs": 0 } });
    let (_, tokens) = fixture.post("/inference/v1/generate", &generate).await;
    let entry = &tokens["choices"][0]["logprobs"]["content"][0];
    assert_eq!(entry["logprob"], json!(-9999.0));
    assert_eq!(entry["rank"], Value::Null);
}

#[tokio::test]
async fn a_dead_server_refuses_connections_until_it_is_healed() {
    let fixture = start(small()).await;
    assert_eq!(fixture.get("/health").await.0, 200);
    fixture.server.inject(Fault::Die);
    // The port is closed after three simulated seconds, which are three milliseconds here.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(reqwest::get(format!("{}/health", fixture.base)).await.is_err());
    fixture.server.heal();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(reqwest::get(format!("{}/health", fixture.base)).await.unwrap().status(), 200);
}

#[tokio::test]
async fn an_injected_reset_breaks_the_connection() {
    let fixture = start(small()).await;
    fixture.server.inject(Fault::Reset { share: 1.0 });
    let generate = json!({ "token_ids": [1], "sampling_params": { "max_tokens": 2 } });
    let url = format!("{}/inference/v1/generate", fixture.base);
    assert!(fixture.client.post(url).json(&generate).send().await.is_err());
    assert_eq!(fixture.server.stats().ended_total, 1);
}
