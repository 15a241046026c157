#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::*;
use crate::control::openai::OpenAiControl;
use crate::control::vllm::VllmControl;
use crate::{ControlError, EngineControl};

/// A server that requires a key for every call, like a server behind a gateway.
async fn locked() -> (ServerRef, AbortOnDropHandle<()>) {
    let answer = |headers: HeaderMap| async move {
        match headers.get("authorization").and_then(|key| key.to_str().ok()) {
            Some("Bearer right") => (StatusCode::OK, "{\"data\":[{\"id\":\"m\"}]}"),
            _ => (StatusCode::UNAUTHORIZED, "{\"error\":\"Unauthorized\"}"),
        }
    };
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let router = Router::new().fallback(answer);
    let serving = TaskTracker::new().spawn(async move { axum::serve(socket, router).await.unwrap() });
    (ServerRef { name: "a".into(), url: Some(url.into()) }, AbortOnDropHandle::new(serving))
}

fn http(key: Option<&str>) -> HttpControl {
    HttpControl::new(Duration::from_secs(5), key.map(Arc::from)).unwrap()
}

#[tokio::test]
async fn a_server_that_wants_a_key_is_alive() {
    let (server, _serving) = locked().await;
    for key in [None, Some("wrong"), Some("right")] {
        OpenAiControl(http(key)).health(&server).await.unwrap();
    }
    let unknown = http(None).generate_one(&server).await.unwrap_err();
    assert!(matches!(unknown, ControlError::Unsupported { .. }), "the probe has no result: {unknown}");
    http(Some("right")).generate_one(&server).await.unwrap();
    let absent = ServerRef { name: "b".into(), url: Some("http://127.0.0.1:9".into()) };
    assert!(OpenAiControl(http(None)).health(&absent).await.is_err());
}

#[test]
fn a_complaint_is_made_once_for_each_server() {
    let http = http(None);
    let [left, right] = ["a", "b"].map(|name| ServerRef { name: name.into(), url: None });
    assert!(http.is_first_time(&left, "load") && !http.clone().is_first_time(&left, "load"));
    assert!(http.is_first_time(&right, "load") && http.is_first_time(&left, "key"));
}

#[tokio::test]
async fn a_server_without_metrics_is_no_failure() {
    let router = Router::new();
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server =
        ServerRef { name: "a".into(), url: Some(format!("http://{}", socket.local_addr().unwrap()).into()) };
    let serving = TaskTracker::new().spawn(async move { axum::serve(socket, router).await.unwrap() });
    let _serving = AbortOnDropHandle::new(serving);
    let control = VllmControl::new(Duration::from_secs(5), None).unwrap();
    let missing = control.load(&server).await.unwrap_err();
    assert!(matches!(missing, ControlError::Unsupported { .. }), "{missing}");
    let deaf = control.abort_many(&server, &["a".to_owned()]).await.unwrap_err();
    assert!(matches!(deaf, ControlError::Unsupported { .. }), "{deaf}");
}
