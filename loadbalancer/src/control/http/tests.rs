#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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

/// A server that closes each of the first `lost` connections after it has read a request. It counts the
/// connections.
async fn losing(lost: u32) -> (ServerRef, Arc<Mutex<u32>>, AbortOnDropHandle<()>) {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let count = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&count);
    let serving = TaskTracker::new().spawn(async move {
        while let Ok((mut stream, _)) = socket.accept().await {
            let number = {
                let mut count = counted.lock();
                *count += 1;
                *count
            };
            let _ = stream.read(&mut [0; 1024]).await;
            if number > lost {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            }
        }
    });
    (ServerRef { name: "a".into(), url: Some(url.into()) }, count, AbortOnDropHandle::new(serving))
}

#[tokio::test]
async fn a_read_whose_connection_was_lost_is_sent_again_once_and_a_change_is_not() {
    let control = VllmControl::new(Duration::from_secs(5), None).unwrap();
    for (lost, answers) in [(1, true), (2, false)] {
        let (server, connections, _serving) = losing(lost).await;
        assert_eq!(control.health(&server).await.is_ok(), answers, "{lost} connections are lost");
        assert_eq!(*connections.lock(), 2);
    }
    let (server, connections, _serving) = losing(1).await;
    assert!(control.resume(&server).await.is_err());
    assert_eq!(*connections.lock(), 1);
}

#[test]
fn each_server_is_reported_once() {
    let http = http(None);
    let [left, right] = ["a", "b"].map(|name| ServerRef { name: name.into(), url: None });
    assert!(http.is_first_time(&left, "load") && !http.clone().is_first_time(&left, "load"));
    assert!(http.is_first_time(&right, "load") && http.is_first_time(&left, "key"));
}

#[tokio::test]
async fn a_server_without_metrics_does_not_count_as_failed() {
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
