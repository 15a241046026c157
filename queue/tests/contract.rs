//! The contract over HTTP: makes every call of `openapi.json`, and checks that all requests and answers match
//! this document.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/contract.rs"]
mod support;

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use rolldock_listener::RenderMetrics;
use rolldock_queue::{
    ColumnSpec, ExportFormat, LocalPlace, OnFull, PartitionSpec, Put, Queue, QueueClient, QueueConfig,
    QueueError, RemoteConfig, RemoteQueue, SamplePart, Sampler, ServiceConfig, Share, Stale, Take, TaskSpec,
    TransferQueue, TransportChoice, Unfinished, UnitConfig, run_unit, serve,
};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

const DOCUMENT: &str = include_str!("../openapi.json");

async fn served() -> (TransferQueue, String, AbortOnDropHandle<std::io::Result<()>>) {
    let queue = TransferQueue::open(QueueConfig { dir: None, ..QueueConfig::default() }).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let metrics = RenderMetrics(Arc::new(|| "rolldock_queue_rows 0\n".to_owned()));
    let place = LocalPlace { socket: "@nowhere".to_owned(), life: 1 };
    let config = ServiceConfig { metrics: Some(metrics), local: Some(place), ..ServiceConfig::default() };
    let serving = serve(queue.clone(), listener, config, CancellationToken::new());
    (queue, url, AbortOnDropHandle::new(TaskTracker::new().spawn(serving)))
}

fn batch(first: i64, rows: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows));
    let words: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("w{row}"))));
    RecordBatch::try_from_iter([("id", ids), ("word", words)]).unwrap()
}

fn advantages(rows: i64) -> RecordBatch {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    RecordBatch::try_from_iter([("advantage", column)]).unwrap()
}

fn soon() -> Option<Duration> {
    Some(Duration::from_secs(5))
}

async fn puts_and_takes(client: &RemoteQueue) {
    let spec = PartitionSpec {
        tasks: vec![
            TaskSpec { name: "train".to_owned(), columns: Vec::new() },
            TaskSpec { name: "score".to_owned(), columns: vec!["advantage".to_owned()] },
        ],
        columns: vec![ColumnSpec::new("id", arrow_schema::DataType::Int64)],
        length_columns: vec!["id".to_owned()],
        capacity_bytes: Some(1 << 20),
        on_full: OnFull::DropOldest,
        ..PartitionSpec::new("p", ["train"], 100)
    };
    client.declare(spec).await.unwrap();
    let full = Put {
        keys: vec!["a".to_owned(), "b".to_owned()],
        tags: vec![serde_json::json!({ "x": 1 }), serde_json::Value::Null],
        record: Some("words".to_owned()),
        policy_version: 3,
        priority: -1,
        token: Some("token".to_owned()),
        ..Put::group("g", batch(0, 2))
    };
    let rows = client.put("p", full, soon()).await.unwrap();
    client.put("p", Put::group("h", batch(2, 2)), soon()).await.unwrap();
    client.write_columns("p", &rows, advantages(2)).await.unwrap();
    client.overwrite_columns("p", &rows, advantages(2)).await.unwrap();
    let sample = |uid: &str, is_last| Some(SamplePart { uid: uid.to_owned(), is_last });
    let sampled = Put { sample: sample("s", false), group_size: 2, ..Put::group("sampled", batch(4, 1)) };
    client.put("p", sampled, soon()).await.unwrap();
    client.end_sample("p", "s").await.unwrap();
    assert_eq!(client.close_groups("p", Duration::ZERO, Unfinished::Give).await.unwrap().len(), 1);
    client.announce("p", 4).await.unwrap();

    let take = Take {
        columns: Some(vec!["id".to_owned()]),
        max_staleness: Some(9),
        stale: Stale::Deliver,
        sampler: Sampler::Random { seed: 3 },
        ..Take::groups("train", 1)
    };
    let lease = client.take("p", &take).await.unwrap().unwrap();
    lease.renew().await.unwrap();
    lease.nack().await.unwrap();
    let only = Take { only: Some(rows.clone()), ..Take::rows("score", 2) };
    client.take("p", &only).await.unwrap().unwrap().ack().await.unwrap();
    assert_eq!(client.reset("p", "score").await.unwrap(), 2);
    let shared = Take { share: Some(Share::of(0, 1)), ..Take::tokens("train", 9) };
    drop(client.take("p", &shared.until(Instant::now() + Duration::from_secs(5))).await.unwrap().unwrap());
    assert!(client.take("p", &Take::groups("score", 9)).await.unwrap().is_some());
    let late = Take::rows("score", 9).until(Instant::now() + Duration::from_millis(20));
    let late = Take { at_least: 9, ..late };
    assert!(matches!(client.take("p", &late).await, Err(QueueError::Deadline { .. })));

    assert_eq!(client.get("p", &rows, None).await.unwrap().len(), 1);
    client.find("p", Some(&["a".to_owned()])).await.unwrap();
    assert_eq!(client.find("p", None).await.unwrap().len(), 2);
    client.set_tags("p", vec![(rows[0], serde_json::json!([1, "x"]))]).await.unwrap();
    let stats = client.status("p").await.unwrap();
    client.status_after("p", stats.revision - 1, Duration::from_secs(1)).await.unwrap();
    assert_eq!(client.names().await.unwrap(), ["p"]);
    client.inspect().await.unwrap();
    client.clear("p", &rows[..1]).await.unwrap();
    assert!(matches!(client.clear("p", &rows[..1]).await, Err(QueueError::StaleHandle { .. })));
}

async fn maintenance(client: &RemoteQueue) {
    assert!(client.verify().await.unwrap().is_sound());
    for format in [ExportFormat::Parquet, ExportFormat::Jsonl, ExportFormat::Arrow] {
        client.export("p", format, Vec::new()).await.unwrap();
    }
    let mut snapshot = Vec::new();
    client.snapshot(Some("p"), &mut snapshot).await.unwrap();
    client.snapshot(None, Vec::new()).await.unwrap();
    client.end_of_puts("p").await.unwrap();
    assert!(client.clear_all("p").await.unwrap() > 0);
    assert!(client.take("p", &Take::groups("train", 1)).await.unwrap().is_none());
    client.remove("p").await.unwrap();
    client.restore(Cursor::new(snapshot.clone())).await.unwrap();
    assert!(client.restore(Cursor::new(snapshot)).await.is_err());
}

/// A storage unit that announces itself through the proxy, and a client that puts and takes directly.
async fn units(client: &RemoteQueue) {
    let (unit, url, _served) = served().await;
    let end = CancellationToken::new();
    let config =
        UnitConfig { orphan_age: Duration::from_millis(200), ..UnitConfig::new(client.clone(), url) };
    let announced = unit.clone();
    let running = async move { run_unit(&announced, None, config, &end).await };
    let _announcing = AbortOnDropHandle::new(TaskTracker::new().spawn(running));
    let give_up = Instant::now() + Duration::from_secs(20);
    while client.units().await.unwrap().is_empty() {
        assert!(Instant::now() < give_up, "it does not announce itself");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // After this time the client asks for the units again.
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    client.declare(PartitionSpec::new("away", ["train"], 100)).await.unwrap();
    let put = Put { record: Some("words".to_owned()), ..Put::group("g", batch(0, 3)) };
    let rows = client.put("away", put, soon()).await.unwrap();
    client.write_columns("away", &rows, advantages(3)).await.unwrap();
    assert_eq!(client.get("away", &rows, None).await.unwrap()[0].num_columns(), 3);
    let lease = client.take("away", &Take::groups("train", 1)).await.unwrap().unwrap();
    assert_eq!(lease.concat().unwrap().num_columns(), 3);
    lease.ack().await.unwrap();
    // The unit removes the orphaned row after it has asked the controller about the row.
    let blobs = unit.partition("_blobs").unwrap();
    blobs.put(Put::group("orphan", batch(0, 1)), None).await.unwrap();
    while blobs.stats().rows > 0 {
        assert!(Instant::now() < give_up, "what no table knows stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let name = client.units().await.unwrap()[0].card.unit.clone();
    client.drain_unit(&name).await.unwrap();
    client.forget_unit(&name).await.unwrap();
    assert!(matches!(client.forget_unit("missing").await, Err(QueueError::UnknownUnit { .. })));
}

#[tokio::test]
async fn every_call_and_body_agrees_with_the_contract() {
    let (_queue, target, _served) = served().await;
    let (contract, url, _proxied) = support::proxy(&target, DOCUMENT).await;
    let client = RemoteQueue::new(RemoteConfig::new(&url)).unwrap();
    let raw = reqwest::Client::new();
    for path in ["/health", "/openapi.json", "/metrics"] {
        assert_eq!(raw.get(format!("{url}{path}")).send().await.unwrap().status(), 200);
    }
    puts_and_takes(&client).await;
    maintenance(&client).await;
    units(&client).await;
    let chooses = QueueClient::new(RemoteConfig::new(&url), TransportChoice::Auto).unwrap();
    chooses.names().await.unwrap();
    // Only a client that cannot reach a unit makes this call.
    let suspect = raw.post(format!("{url}/v1/units/u/suspect")).send().await.unwrap();
    assert_eq!(suspect.status(), 200);

    let problems: std::collections::BTreeSet<String> = contract.problems.lock().iter().cloned().collect();
    assert!(problems.is_empty(), "{problems:#?}");
    let unseen: Vec<String> = contract.calls().difference(&contract.seen.lock()).cloned().collect();
    assert!(unseen.is_empty(), "no test makes these calls: {unseen:?}");
}
