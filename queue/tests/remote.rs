//! The queue over HTTP: the same trait, the same errors, and nothing lost with a connection.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{RecordBatch, StringArray};
use rolldock_queue::{
    ExportFormat, PartitionSpec, Put, Queue, QueueConfig, QueueError, RemoteConfig, RemoteQueue, RowHandle,
    ServiceConfig, Take, TransferQueue, serve,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use support::tour::{batch, soon, tour};

struct Served {
    queue: TransferQueue,
    address: std::net::SocketAddr,
    end: CancellationToken,
    task: AbortOnDropHandle<std::io::Result<()>>,
}

async fn served(config: ServiceConfig) -> Served {
    let queue = TransferQueue::open(QueueConfig { dir: None, ..QueueConfig::default() }).unwrap();
    serve_at(queue, TcpListener::bind("127.0.0.1:0").await.unwrap(), config)
}

fn serve_at(queue: TransferQueue, listener: TcpListener, config: ServiceConfig) -> Served {
    let address = listener.local_addr().unwrap();
    let end = CancellationToken::new();
    let serving = serve(queue.clone(), listener, config, end.clone());
    Served { queue, address, end, task: AbortOnDropHandle::new(TaskTracker::new().spawn(serving)) }
}

impl Served {
    fn client(&self) -> RemoteQueue {
        RemoteQueue::new(RemoteConfig::new(format!("http://{}", self.address))).unwrap()
    }

    async fn stop(self) {
        self.end.cancel();
        self.task.await.unwrap().unwrap();
        self.queue.close();
    }
}

fn spec() -> PartitionSpec {
    PartitionSpec::new("train", ["train"], 64)
}

#[tokio::test]
async fn a_served_queue_and_one_in_process_do_the_same() {
    tour(&TransferQueue::open(QueueConfig { dir: None, ..QueueConfig::default() }).unwrap()).await;
    let served = served(ServiceConfig::default()).await;
    tour(&served.client()).await;
    assert_eq!(served.queue.partition("train").unwrap().records(), ["step 1, ünïcode & more"]);
}

#[tokio::test]
async fn rows_with_different_columns_come_under_one_schema_with_nulls() {
    let served = served(ServiceConfig::default()).await;
    let client = served.client();
    client.declare(spec()).await.unwrap();
    client.put("train", Put::group("a", batch(0, 1)), soon()).await.unwrap();
    client.put("train", Put::group("b", batch(1, 1).project(&[0]).unwrap()), soon()).await.unwrap();
    let lease = client.take("train", &Take::groups("train", 2)).await.unwrap().unwrap();
    let rows = lease.concat().unwrap();
    let words = rows.column_by_name("word").unwrap();
    assert_eq!((words.len(), words.null_count()), (2, 1));
    assert_eq!(client.get("train", &[], None).await.unwrap(), []);
}

#[tokio::test]
async fn large_rows_arrive_in_pieces_and_whole() {
    let served = served(ServiceConfig::default()).await;
    let client = served.client();
    client.declare(PartitionSpec::new("train", ["train"], 4_096)).await.unwrap();
    let large = StringArray::from_iter_values((0..700).map(|row| format!("{row} ").repeat(2_000)));
    let large = RecordBatch::try_from_iter([("text", Arc::new(large) as _)]).unwrap();
    client.put("train", Put::group("a", large.clone()), soon()).await.unwrap();
    let lease = client.take("train", &Take::groups("train", 1)).await.unwrap().unwrap();
    assert!(lease.batches().len() > 2, "{} pieces", lease.batches().len());
    assert_eq!(lease.rows().len(), 700);
    assert_eq!(lease.concat().unwrap(), large);
}

#[tokio::test]
async fn a_dropped_lease_and_a_client_that_goes_away_give_their_rows_back() {
    let served = served(ServiceConfig::default()).await;
    let client = served.client();
    client.declare(spec()).await.unwrap();
    client.put("train", Put::group("a", batch(0, 4)), soon()).await.unwrap();
    drop(client.take("train", &Take::groups("train", 1)).await.unwrap().unwrap());
    let again = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(10));
    drop(client.take("train", &again).await.unwrap().unwrap());
    client.close().await;
    assert_eq!(served.queue.partition("train").unwrap().stats().tasks[0].ready_groups, 1);

    // A waiting take whose client is gone takes nothing.
    let partition = served.queue.partition("train").unwrap();
    partition.take(&Take::groups("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
    let mut gone = TcpStream::connect(served.address).await.unwrap();
    let body = r#"{"task":"train","groups":1,"wait_ms":60000}"#;
    let request = format!(
        "POST /v1/partitions/train/take HTTP/1.1\r\nhost: q\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    gone.write_all(request.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(gone);
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.put("train", Put::group("b", batch(9, 1)), soon()).await.unwrap();
    let lease = client.take("train", &Take::groups("train", 1)).await.unwrap().unwrap();
    assert_eq!(lease.groups(), ["b"]);
}

#[tokio::test]
async fn acks_and_puts_can_be_repeated_and_an_earlier_lifes_lease_is_gone() {
    let served = served(ServiceConfig::default()).await;
    let client = served.client();
    client.declare(spec()).await.unwrap();
    let put = Put { token: Some("t".to_owned()), ..Put::group("a", batch(0, 2)) };
    let first = client.put("train", put.clone(), soon()).await.unwrap();
    assert_eq!(client.put("train", put, soon()).await.unwrap(), first);

    let raw = reqwest::Client::new();
    let url = |what: &str| format!("http://{}/v1/partitions/train/{what}", served.address);
    let take = || raw.post(url("take")).body(r#"{"task":"train","groups":1}"#);
    let answer = take().send().await.unwrap();
    let lease = answer.headers()["rolldock-lease"].to_str().unwrap().to_owned();
    answer.bytes().await.unwrap();
    for _ in 0..2 {
        let acked = raw.post(url(&format!("leases/{lease}/ack"))).send().await.unwrap();
        assert_eq!(acked.status(), 200, "{}", acked.text().await.unwrap());
    }
    assert_eq!(take().send().await.unwrap().status(), 204);
    let other_life = format!("{:016x}-{}", u64::MAX, lease.split_once('-').unwrap().1);
    let gone = raw.post(url(&format!("leases/{other_life}/ack"))).send().await.unwrap();
    assert_eq!(gone.status(), 410);
    let words: serde_json::Value = gone.json().await.unwrap();
    assert_eq!(
        (words["error"]["code"].as_str(), words["error"]["class"].as_str()),
        (Some("lease_gone"), Some("retryable"))
    );
}

#[tokio::test]
async fn a_client_waits_for_a_server_that_starts_late_or_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = RemoteQueue::new(RemoteConfig::new(format!("http://{address}"))).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let config = QueueConfig { dir: Some(dir.path().to_owned()), ..QueueConfig::default() };
        TransferQueue::open(config).unwrap()
    };
    let starting = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        serve_at(open(), TcpListener::bind(address).await.unwrap(), ServiceConfig::default())
    };
    let (declared, served) = tokio::join!(client.declare(spec()), starting);
    declared.unwrap();
    client.put("train", Put::group("a", batch(0, 2)), soon()).await.unwrap();

    served.stop().await;
    let starting = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        serve_at(open(), TcpListener::bind(address).await.unwrap(), ServiceConfig::default())
    };
    let take = Take::groups("train", 1);
    let (taken, _served) = tokio::join!(client.take("train", &take), starting);
    let lease = taken.unwrap().unwrap();
    assert_eq!(lease.concat().unwrap(), batch(0, 2));
    lease.ack().await.unwrap();
}

#[tokio::test]
async fn waiting_takes_are_told_when_the_server_ends() {
    let served = served(ServiceConfig::default()).await;
    let config = RemoteConfig::new(format!("http://{}", served.address));
    let client = RemoteQueue::new(RemoteConfig { patience: Duration::ZERO, ..config }).unwrap();
    client.declare(spec()).await.unwrap();
    let until = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(30));
    let ending = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        served.end.cancel();
    };
    let (taken, ()) = tokio::join!(client.take("train", &until), ending);
    assert_eq!(taken.map(drop), Err(QueueError::Stopping));
}

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
    // A body that breaks off.
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
    let health = reqwest::get(format!("http://{}/health", served.address)).await.unwrap();
    assert_eq!(health.status(), 200);
}

#[tokio::test]
async fn the_openapi_document_has_the_paths_that_are_served() {
    let served = served(ServiceConfig::default()).await;
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
    assert_eq!(paths.len(), 33);
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
    // Every reference is to something.
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
}

#[tokio::test]
async fn a_clients_lease_outlives_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let config =
            QueueConfig { dir: Some(dir.path().to_owned()), journal_bytes: 1024, ..QueueConfig::default() };
        TransferQueue::open(config).unwrap()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let first = serve_at(open(), listener, ServiceConfig::default());
    let client = first.client();
    client.declare(spec()).await.unwrap();
    for group in ["a", "b", "c", "d"] {
        client.put("train", Put::group(group, batch(0, 2)), soon()).await.unwrap();
    }
    let take = Take::groups("train", 1);
    let (acked, held, nacked) = (
        client.take("train", &take).await.unwrap().unwrap(),
        client.take("train", &take).await.unwrap().unwrap(),
        client.take("train", &take).await.unwrap().unwrap(),
    );
    assert_eq!((acked.groups()[0].as_str(), held.groups()[0].as_str()), ("a", "b"));
    acked.ack().await.unwrap();
    nacked.nack().await.unwrap();
    first.stop().await;

    let served = serve_at(open(), TcpListener::bind(address).await.unwrap(), ServiceConfig::default());
    // Held rows are not given to others; what was given back is.
    let others = served.client().take("train", &Take::groups("train", 9)).await.unwrap().unwrap();
    assert_eq!(others.groups(), ["c", "c", "d", "d"]);
    held.renew().await.unwrap();
    held.ack().await.unwrap();
    assert_eq!(served.client().status("train").await.unwrap().dispositions.acked, 4);
}

#[tokio::test]
async fn a_snapshot_goes_over_http_both_ways() {
    let source = served(ServiceConfig::default()).await;
    // A snapshot may be far larger than a body that is held in memory.
    let target = served(ServiceConfig { body_bytes_max: 1_000, ..ServiceConfig::default() }).await;
    let (from, to) = (source.client(), target.client());
    from.declare(PartitionSpec::new("train", ["train"], 4_096)).await.unwrap();
    for group in 0..40 {
        from.put("train", Put::group(format!("g{group}"), batch(group * 50, 50)), soon()).await.unwrap();
    }
    from.declare(PartitionSpec::new("other/one", ["train"], 8)).await.unwrap();
    let mut bytes = Vec::new();
    let length = from.snapshot(None, &mut bytes).await.unwrap();
    assert!(length == bytes.len() as u64 && length > 10_000, "{length}");
    let counts = to.restore(std::io::Cursor::new(bytes.clone())).await.unwrap();
    assert_eq!((counts.partitions, counts.rows, counts.chunks), (2, 2_000, 1));
    let taken = to.take("train", &Take::groups("train", 40)).await.unwrap().unwrap();
    assert_eq!(taken.concat().unwrap(), batch(0, 2_000));
    taken.nack().await.unwrap();
    assert!(to.verify().await.unwrap().is_sound());

    let again = to.restore(std::io::Cursor::new(bytes.clone())).await;
    assert_eq!(again, Err(QueueError::PartitionExists { name: "other/one".to_owned() }));
    assert_eq!(to.clear_all("train").await.unwrap(), 2_000);
    assert_eq!(target.queue.partition("train").unwrap().stats().dispositions.cleared, 2_000);
    to.remove("train").await.unwrap();
    to.remove("other/one").await.unwrap();
    assert!(matches!(to.remove("train").await, Err(QueueError::UnknownPartition { .. })));
    let cut = to.restore(std::io::Cursor::new(bytes[..bytes.len() / 2].to_vec())).await;
    assert!(matches!(cut, Err(QueueError::BadSnapshot { .. })), "{cut:?}");
    let none = to.restore(std::io::Cursor::new(vec![b'x'; 3 << 20])).await;
    assert!(matches!(none, Err(QueueError::BadSnapshot { offset: 0, .. })), "{none:?}");
    assert!(target.queue.partitions().is_empty());

    let mut one = Vec::new();
    from.snapshot(Some("other/one"), &mut one).await.unwrap();
    assert_eq!(to.restore(std::io::Cursor::new(one)).await.unwrap().partitions, 1);
    let nobody = from.snapshot(Some("nobody"), &mut Vec::new()).await;
    assert!(matches!(nobody, Err(QueueError::UnknownPartition { .. })));

    // A connection that is lost in the middle restores nothing.
    let mut broken = TcpStream::connect(target.address).await.unwrap();
    let head = format!("POST /v1/restore HTTP/1.1\r\nhost: q\r\ncontent-length: {}\r\n\r\n", bytes.len());
    broken.write_all(head.as_bytes()).await.unwrap();
    broken.write_all(&bytes[..bytes.len() - 10]).await.unwrap();
    broken.shutdown().await.unwrap();
    broken.read_to_end(&mut Vec::new()).await.unwrap();
    assert_eq!(target.queue.partitions().len(), 1);
}

#[tokio::test]
async fn exports_come_over_http_as_they_are_made_here() {
    let served = served(ServiceConfig::default()).await;
    let client = served.client();
    client.declare(spec()).await.unwrap();
    for group in 0..3 {
        client.put("train", Put::group(group.to_string(), batch(group * 9, 9)), soon()).await.unwrap();
    }
    let partition = served.queue.partition("train").unwrap();
    for format in [ExportFormat::Parquet, ExportFormat::Jsonl, ExportFormat::Arrow] {
        let (mut here, mut there) = (Vec::new(), Vec::new());
        assert_eq!(partition.export(format, &mut here).await.unwrap(), 27);
        client.export("train", format, &mut there).await.unwrap();
        assert!(here == there && here.len() > 500, "{format:?}");
    }
    let mut file = Vec::new();
    client.export("train", ExportFormat::Arrow, &mut file).await.unwrap();
    let reader = arrow_ipc::reader::FileReader::try_new(std::io::Cursor::new(file), None).unwrap();
    assert_eq!(reader.map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 27);
    let unknown = client.export("nobody", ExportFormat::Arrow, Vec::new()).await;
    assert!(matches!(unknown, Err(QueueError::UnknownPartition { .. })));
}

#[tokio::test]
async fn a_dead_controller_hangs_nobody() {
    let served = served(ServiceConfig::default()).await;
    let config = RemoteConfig::new(format!("http://{}", served.address));
    let client_config = RemoteConfig { patience: Duration::from_millis(300), ..config };
    let client = RemoteQueue::new(client_config.clone()).unwrap();
    client.declare(spec()).await.unwrap();
    let forever = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(3600));
    let dying = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        served.stop().await;
    };
    let started = Instant::now();
    let (taken, ()) = tokio::join!(client.take("train", &forever), dying);
    assert!(matches!(taken, Err(QueueError::Stopping | QueueError::Unreachable { .. })), "{taken:?}");
    let put = client.put("train", Put::group("a", batch(0, 2)), None).await;
    assert!(matches!(put, Err(QueueError::Unreachable { .. })), "{put:?}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());

    // The whole of its patience, and no more.
    let patience = Duration::from_secs(2);
    let patient = RemoteQueue::new(RemoteConfig { patience, ..client_config }).unwrap();
    let started = Instant::now();
    let taken = patient.take("train", &forever).await;
    assert!(matches!(taken, Err(QueueError::Unreachable { .. })), "{taken:?}");
    assert!(started.elapsed() < patience + Duration::from_millis(500), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_connections_and_says_nothing_hangs_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = RemoteConfig::new(format!("http://{}", listener.local_addr().unwrap()));
    let client = RemoteQueue::new(RemoteConfig { patience: Duration::from_secs(1), ..config }).unwrap();
    let _silent = AbortOnDropHandle::new(TaskTracker::new().spawn(async move {
        let mut kept = Vec::new();
        loop {
            kept.push(listener.accept().await.unwrap());
        }
    }));
    let status = client.status("train").await;
    assert!(matches!(status, Err(QueueError::Unreachable { .. })), "{status:?}");
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

    // What is no request is not tried again.
    let started = Instant::now();
    let refused = client.put("train", Put::group("g".repeat(100_000), batch(0, 1)), soon()).await;
    assert!(matches!(refused, Err(QueueError::BadRequest { .. })), "{refused:?}");
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

/// How long a call took, with an error of a server that is away.
async fn unanswered<T: std::fmt::Debug>(call: impl Future<Output = Result<T, QueueError>>) -> Duration {
    let started = Instant::now();
    let outcome = call.await;
    assert!(matches!(outcome, Err(QueueError::Unreachable { .. })), "{outcome:?}");
    started.elapsed()
}

/// Calls with deadlines of 100 ms, of a client with patience for 30 s.
async fn deadlines_hold(client: &RemoteQueue) {
    let wait = Duration::from_millis(100);
    let take = Take::groups("train", 1).until(Instant::now() + wait);
    let took = unanswered(client.take("train", &take)).await;
    assert!(took >= wait && took < Duration::from_secs(3), "take: {took:?}");
    let took = unanswered(client.status_after("train", 1, wait)).await;
    assert!(took < Duration::from_secs(3), "watch: {took:?}");
    let took = unanswered(client.put("train", Put::group("a", batch(0, 2)), Some(wait))).await;
    assert!(took < Duration::from_secs(7), "put: {took:?}");
}

#[tokio::test]
async fn deadlines_hold_whatever_the_server_does() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client =
        RemoteQueue::new(RemoteConfig::new(format!("http://{}", listener.local_addr().unwrap()))).unwrap();
    // It takes connections, and says nothing.
    deadlines_hold(&client).await;
    drop(listener);
    deadlines_hold(&client).await;
}
