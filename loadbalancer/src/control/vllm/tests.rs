#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::{Json, Router};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;

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
    let load = parse_metrics(text).unwrap();
    assert_eq!((load.running, load.waiting, load.generation_tokens_total), (7, 2, Some(1500)));
    assert!((load.kv_cache_usage - 0.6).abs() < 1e-12);
}

#[test]
fn a_real_servers_metrics_are_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/vllm/captures/metrics.txt");
    let Ok(text) = std::fs::read_to_string(path) else {
        eprintln!("skipped: {path} does not exist");
        return;
    };
    let load = parse_metrics(&text).unwrap();
    assert!(load.generation_tokens_total > Some(0), "{load:?}");
    assert!((0.0..=1.0).contains(&load.kv_cache_usage), "{load:?}");
}

#[test]
fn garbage_is_no_load() {
    assert_eq!(parse_metrics("vllm:num_requests_running\nvllm:\nx y z\n"), None);
    assert_eq!(parse_metrics("other:num_requests_running 3\n"), None, "the page of another server");
}

type Heard = Arc<Mutex<Vec<(String, Value)>>>;

/// Records a call and answers as vLLM 0.32 does.
async fn hear(State(heard): State<Heard>, uri: Uri, body: Bytes) -> (StatusCode, Json<Value>) {
    let path = uri.path_and_query().unwrap().to_string();
    heard.lock().push((path.clone(), serde_json::from_slice(&body).unwrap_or_default()));
    let (status, answer) = match &*path {
        "/is_paused" => (200, json!({ "is_paused": true })),
        "/weight_info" => (200, json!({ "weight_version": "step-6" })),
        "/reset_prefix_cache" => (200, json!({ "success": true })),
        "/reset_prefix_cache?reset_running_requests=true" => (200, json!({ "success": false })),
        "/update_weights" => (500, json!({ "error": "Weight transfer not configured" })),
        "/pause?mode=keep" => (404, json!({ "detail": "Not Found" })),
        _ => (200, json!({ "results": [null] })),
    };
    (StatusCode::from_u16(status).unwrap(), Json(answer))
}

async fn engine() -> (ServerRef, Heard, CancellationToken) {
    let heard = Heard::default();
    let router = Router::new().fallback(hear).with_state(Arc::clone(&heard));
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let end = CancellationToken::new();
    let served = axum::serve(socket, router).with_graceful_shutdown(end.clone().cancelled_owned());
    TaskTracker::new().spawn(async move { served.await.unwrap() });
    (ServerRef { name: "a".into(), url: Some(url.into()) }, heard, end)
}

#[tokio::test]
async fn each_call_about_weights_goes_to_its_endpoint() {
    let (server, heard, end) = engine().await;
    let control = VllmControl::new(Duration::from_secs(10), None).unwrap();
    let mut kwargs = Map::new();
    kwargs.insert("weights_path".into(), "/w".into());
    control.collective_rpc(&server, "reload_weights", &kwargs).await.unwrap();
    control.start_weight_update(&server).await.unwrap();
    let failed = control.update_weights(&server, &json!({ "update_info": {} })).await.unwrap_err();
    assert!(failed.to_string().contains("Weight transfer not configured"), "{failed}");
    control.finish_weight_update(&server, Some("step-7")).await.unwrap();
    control.finish_weight_update(&server, None).await.unwrap();
    control.set_weight_version(&server, "step-7").await.unwrap();
    let sent = heard.lock().clone();
    let expected = [
        ("/collective_rpc", json!({ "method": "reload_weights", "kwargs": { "weights_path": "/w" } })),
        ("/start_weight_update", Value::Null),
        ("/update_weights", json!({ "update_info": {} })),
        ("/finish_weight_update", json!({ "weight_version": "step-7" })),
        ("/finish_weight_update", json!({})),
        ("/update_weight_version", json!({ "new_version": "step-7" })),
    ];
    assert_eq!(sent, expected.map(|(path, body)| (path.to_owned(), body)));
    end.cancel();
}

#[tokio::test]
async fn answers_about_weights_and_the_cache_are_understood() {
    let (server, _, end) = engine().await;
    let control = VllmControl::new(Duration::from_secs(10), None).unwrap();
    assert!(control.is_paused(&server).await.unwrap());
    assert_eq!(&*control.weight_version(&server).await.unwrap(), "step-6");
    control.reset_prefix_cache(&server).await.unwrap();
    let held = control.recompute_running(&server).await.unwrap_err().to_string();
    assert!(held.contains("blocks of its cache are held"), "{held}");
    let missing = control.pause(&server, PauseMode::Keep).await.unwrap_err();
    assert!(matches!(missing, ControlError::Unsupported { .. }), "{missing}");
    end.cancel();
}

/// Answers one request on each connection with status 500, and resets the connection when a second request
/// arrives. vLLM does this after a failure of an endpoint of its development mode.
async fn serve_one_each(socket: tokio::net::TcpListener) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    while let Ok((mut connection, _)) = socket.accept().await {
        let mut request = vec![0; 4096];
        let read = connection.read(&mut request).await.unwrap();
        assert!(read > 0 && read < request.len());
        let answer = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\nno";
        connection.write_all(answer.as_bytes()).await.unwrap();
        let second = connection.read(&mut request).await.unwrap_or(0);
        assert_eq!(second, 0, "a second request on a connection that vLLM resets");
    }
}

#[tokio::test]
async fn a_call_after_one_that_failed_has_a_fresh_connection() {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let server = ServerRef { name: "a".into(), url: Some(url.into()) };
    let serving = TaskTracker::new().spawn(serve_one_each(socket));
    let control = VllmControl::new(Duration::from_secs(10), None).unwrap();
    for _ in 0..3 {
        for error in [
            control.pause(&server, PauseMode::Keep).await.unwrap_err(),
            control.recompute_running(&server).await.unwrap_err(),
            control.resume(&server).await.unwrap_err(),
        ] {
            assert!(error.to_string().contains("status 500"), "{error}");
        }
    }
    assert!(!serving.is_finished());
    serving.abort();
}

/// The recorded OpenAPI description of a real server contains every path and field that this module uses.
#[test]
fn a_real_server_has_these_endpoints_and_fields() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/vllm/captures/openapi_scaleout.json");
    let Ok(text) = std::fs::read_to_string(path) else {
        eprintln!("skipped: {path} does not exist");
        return;
    };
    for endpoint in [
        "/pause",
        "/resume",
        "/is_paused",
        "/collective_rpc",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/update_weight_version",
        "/weight_info",
        "/reset_prefix_cache",
    ] {
        assert!(text.contains(&format!("\"{endpoint}\"")), "{endpoint}");
    }
    for field in ["reset_running_requests", "weight_version", "new_version", "update_info"] {
        assert!(text.contains(&format!("\"{field}\"")), "{field}");
    }
}

#[tokio::test]
async fn an_abort_names_every_id_that_the_engine_may_use_for_the_request() {
    let (server, heard, end) = engine().await;
    let control = VllmControl::new(Duration::from_secs(10), None).unwrap();
    let ids = ["x", "cmpl-y", "chatcmpl-z"].map(str::to_owned);
    control.abort_many(&server, &ids).await.unwrap();
    let (path, body) = heard.lock()[0].clone();
    assert_eq!(path, "/inference/v1/abort_requests");
    let expected = json!([
        "x",
        "generate-tokens-x",
        "chatcmpl-x",
        "cmpl-x",
        "cmpl-x-0",
        "cmpl-y",
        "cmpl-y-0",
        "chatcmpl-z"
    ]);
    assert_eq!(body["request_ids"], expected);
    end.cancel();
}
