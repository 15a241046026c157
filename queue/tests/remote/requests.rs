//! HTTP requests in detail: error codes, tokens, paths and lengths.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, NullArray, RecordBatch, StringArray};
use rolldock_listener::RenderMetrics;
use rolldock_queue::{Put, Queue, QueueError, RemoteConfig, RemoteQueue, RowHandle, ServiceConfig, Take};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::support::tour::{batch, soon};
use super::{served, spec};

#[tokio::test]
async fn bad_requests_have_codes_and_change_nothing() {
    let config = ServiceConfig { body_bytes_max: 10_000, ..ServiceConfig::default() };
    let served = served(config).await;
    served.client().declare(spec()).await.unwrap();
    let raw = reqwest::Client::new();
    let handles = serde_json::json!({ "rows": [RowHandle { slot: 1, generation: 2 }] }).to_string();
    let cases: [(&str, Vec<u8>, u16, &str); 12] = [
        ("v1/partitions", b"{".to_vec(), 400, "bad_request"),
        ("v1/partitions", br#"{"name":"","tasks":[],"capacity_rows":0}"#.to_vec(), 409, "declared_otherwise"),
        ("v1/partitions/train/rows", Vec::new(), 400, "bad_request"),
        ("v1/partitions/train/rows?group=a", Vec::new(), 400, "empty"),
        ("v1/partitions/train/rows?group=a&grupp=1", Vec::new(), 400, "bad_request"),
        ("v1/partitions/train/rows?group=a", vec![7; 100], 400, "bad_request"),
        ("v1/partitions/train/rows?group=a", vec![0; 10_001], 413, "body_too_large"),
        ("v1/partitions/train/take", br#"{"task":"train"}"#.to_vec(), 400, "bad_request"),
        ("v1/partitions/train/take", br#"{"task":"train","groups":1,"columns":["x"]}"#.to_vec(), 204, ""),
        ("v1/partitions/train/clear", handles.into_bytes(), 410, "stale_handle"),
        ("v1/partitions/train/leases/7/ack", Vec::new(), 400, "bad_request"),
        ("v1/partitions/none/end", Vec::new(), 404, "unknown_partition"),
    ];
    for (path, body, status, code) in cases {
        let answer = raw.post(format!("http://{}/{path}", served.address)).body(body).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{path}");
        let words: serde_json::Value = answer.json().await.unwrap_or_default();
        assert_eq!(words["error"]["code"].as_str().unwrap_or_default(), code, "{path}: {words}");
        assert_eq!(served.queue.partition("train").unwrap().stats().rows, 0);
    }
    // The body ends before its declared length.
    let mut broken = TcpStream::connect(served.address).await.unwrap();
    broken
        .write_all(
            b"POST /v1/partitions/train/rows?group=a HTTP/1.1\r\nhost: q\r\ncontent-length: 5000\r\n\r\nabc",
        )
        .await
        .unwrap();
    broken.shutdown().await.unwrap();
    broken.read_to_end(&mut Vec::new()).await.unwrap();
    assert_eq!(served.queue.partition("train").unwrap().stats().rows, 0);
}

fn stream_of(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn with_keys(keys: &[&str]) -> RecordBatch {
    let keys: ArrayRef = Arc::new(StringArray::from_iter_values(keys));
    RecordBatch::try_from_iter([("_key", Arc::clone(&keys)), ("word", keys)]).unwrap()
}

#[tokio::test]
async fn a_refused_first_put_makes_no_partition() {
    let config = ServiceConfig { body_bytes_max: 10_000, ..ServiceConfig::default() };
    let served = served(config).await;
    let raw = reqwest::Client::new();
    let rows = stream_of(&batch(0, 2));
    let nulls: ArrayRef = Arc::new(NullArray::new(70_000));
    let cases = [
        ("group=a", vec![7; 100], "bad_request"),
        ("group=a", Vec::new(), "empty"),
        ("group=a", rows[..rows.len() / 2].to_vec(), "bad_request"),
        ("group=a", vec![0; 10_001], "body_too_large"),
        ("group=a", stream_of(&batch(0, 0)), "empty"),
        ("group=a", stream_of(&RecordBatch::try_from_iter([("n", nulls)]).unwrap()), "too_large"),
        ("group=a", stream_of(&with_keys(&["k", "k"])), "key_exists"),
        ("group=a&group_size=1", rows.clone(), "group_overflow"),
        ("", rows.clone(), "bad_request"),
    ];
    for (query, body, code) in cases {
        let url = format!("http://{}/v1/partitions/train/rows?{query}", served.address);
        let words: serde_json::Value = raw.post(url).body(body).send().await.unwrap().json().await.unwrap();
        assert_eq!(words["error"]["code"], code, "{words}");
        assert!(served.queue.partitions().is_empty(), "{code} made a partition");
    }
    let mut cut = TcpStream::connect(served.address).await.unwrap();
    let head =
        "POST /v1/partitions/train/rows?group=a HTTP/1.1\r\nhost: q\r\ncontent-length: 5000\r\n\r\nabc";
    cut.write_all(head.as_bytes()).await.unwrap();
    cut.shutdown().await.unwrap();
    cut.read_to_end(&mut Vec::new()).await.unwrap();
    let deep = (0..100).fold(serde_json::Value::Null, |inner, _| serde_json::json!([inner]));
    let deep = Put { tags: vec![deep], ..Put::group("a", batch(0, 1)) };
    assert!(Queue::put(&served.queue, "train", deep, None).await.is_err());
    assert!(served.queue.partitions().is_empty());
    served.client().declare(spec()).await.unwrap();
    served.client().put("train", Put::group("a", batch(0, 2)), soon()).await.unwrap();
}

#[tokio::test]
async fn without_the_token_nothing_but_health_is_answered() {
    let config = ServiceConfig { token: Some("secret".to_owned()), ..ServiceConfig::default() };
    let served = served(config).await;
    let with = |token: Option<&str>| {
        let url = format!("http://{}", served.address);
        RemoteQueue::new(RemoteConfig { token: token.map(str::to_owned), ..RemoteConfig::new(url) }).unwrap()
    };
    assert_eq!(with(None).declare(spec()).await, Err(QueueError::Unauthorized));
    assert_eq!(with(Some("secre")).inspect().await.unwrap_err(), QueueError::Unauthorized);
    with(Some("secret")).declare(spec()).await.unwrap();
    let at = |path: &str| reqwest::get(format!("http://{}{path}", served.address));
    assert_eq!(at("/health").await.unwrap().status(), 200);
    assert_eq!(at("/metrics").await.unwrap().status(), 401, "the names of partitions are for clients");
}

#[tokio::test]
async fn the_openapi_document_has_the_paths_that_are_served() {
    let metrics = RenderMetrics(Arc::new(|| String::from("rolldock_queue_rows 0\n")));
    let served = served(ServiceConfig { metrics: Some(metrics), ..ServiceConfig::default() }).await;
    let raw = reqwest::Client::new();
    let document: serde_json::Value = raw
        .get(format!("http://{}/openapi.json", served.address))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 35);
    for (path, methods) in paths {
        let concrete = path
            .replace("{partition}", "p")
            .replace("{lease}", "l")
            .replace("{task}", "t")
            .replace("{unit}", "u");
        let url = format!("http://{}{concrete}", served.address);
        for method in ["get", "post", "delete"] {
            let method_name = method.to_uppercase().parse().unwrap();
            let status = raw.request(method_name, &url).send().await.unwrap().status();
            let is_known = status != 404 || path.contains("{partition}") || path.contains("{unit}");
            let is_served = is_known && status != 405;
            assert_eq!(is_served, methods.get(method).is_some(), "{method} {path}: {status}");
        }
    }
    // Every reference has a target.
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
}

#[tokio::test]
async fn records_may_be_of_any_length() {
    let served = served(ServiceConfig::default()).await;
    let client = served.client();
    client.declare(spec()).await.unwrap();
    let long = "ünïcode & more, ".repeat(40_000);
    let put = Put { record: Some(long.clone()), ..Put::group("a", batch(0, 2)) };
    client.put("train", put, soon()).await.unwrap();
    let several = Put {
        batches: vec![batch(2, 1), batch(3, 1)],
        group_size: 2,
        record: Some("short".to_owned()),
        ..Put::group("b", batch(2, 1))
    };
    client.put("train", several, soon()).await.unwrap();
    assert_eq!(served.queue.partition("train").unwrap().records(), [long, "short".to_owned()]);
    let lease = client.take("train", &Take::groups("train", 1)).await.unwrap().unwrap();
    assert_eq!(lease.concat().unwrap(), batch(0, 2), "the rows know nothing of it");

    // A request that cannot be sent is not retried.
    let started = Instant::now();
    let refused = client.put("train", Put::group("g".repeat(100_000), batch(0, 1)), soon()).await;
    assert!(matches!(refused, Err(QueueError::BadRequest { .. })), "{refused:?}");
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}
