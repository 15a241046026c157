//! Sends bad requests through every interface of the queue. Each of them must fail with a typed error and
//! its stable code, and must leave the queue unchanged.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod cases;
mod errors;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use cases::cases;
use rolldock_queue::{
    LocalConfig, LocalListener, LocalQueue, LocalServiceConfig, PartitionSpec, Put, Queue, QueueConfig,
    QueueError, RemoteConfig, RemoteQueue, RowHandle, SamplePart, ServiceConfig, TransferQueue, Unfinished,
    serve, serve_local,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

const BODY_BYTES_MAX: usize = 100_000;

/// The case that applies only to requests with bodies, and not to calls within the process.
const WIRE_ONLY: &str = "a body that is too long";

/// One queue with three interfaces: calls in this process, HTTP and the local socket.
struct Doors {
    queue: TransferQueue,
    url: String,
    socket: std::path::PathBuf,
    _dir: tempfile::TempDir,
    _served: [AbortOnDropHandle<std::io::Result<()>>; 2],
}

impl Doors {
    async fn open() -> Self {
        let queue =
            TransferQueue::open(QueueConfig { dir: None, create_on_put: false, ..QueueConfig::default() })
                .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("queue.sock");
        let config = LocalServiceConfig { put_bytes_max: BODY_BYTES_MAX, ..LocalServiceConfig::default() };
        let local = LocalListener::bind(&socket, config).unwrap();
        let config = ServiceConfig { body_bytes_max: BODY_BYTES_MAX, ..ServiceConfig::default() };
        let (end, tasks) = (CancellationToken::new(), TaskTracker::new());
        let served = [
            AbortOnDropHandle::new(tasks.spawn(serve(queue.clone(), listener, config, end.clone()))),
            AbortOnDropHandle::new(tasks.spawn(serve_local(queue.clone(), local, end))),
        ];
        Self { queue, url, socket, _dir: dir, _served: served }
    }

    fn remote(&self) -> RemoteQueue {
        RemoteQueue::new(RemoteConfig::new(&self.url)).unwrap()
    }

    fn local(&self) -> LocalQueue {
        LocalQueue::new(LocalConfig::new(&self.socket)).unwrap()
    }
}

fn tensors(shape: &str) -> RecordBatch {
    let values: ArrayRef = Arc::new(Float32Array::from_iter_values((0..8).map(|value| value as f32)));
    let item = Arc::new(Field::new_list_field(DataType::Float32, false));
    let lists = FixedSizeListArray::new(Arc::clone(&item), 4, values, None);
    let field = Field::new("image", DataType::FixedSizeList(item, 4), false).with_metadata(HashMap::from([
        ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
        ("ARROW:extension:metadata".to_owned(), format!(r#"{{"shape":{shape}}}"#)),
    ]));
    RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![Arc::new(lists)]).unwrap()
}

fn ids(first: i64, rows: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows));
    RecordBatch::try_from_iter([("id", ids)]).unwrap()
}

fn text(bytes: usize) -> RecordBatch {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(bytes)]));
    RecordBatch::try_from_iter([("text", texts)]).unwrap()
}

async fn furnish(queue: &TransferQueue) -> RowHandle {
    let fields = [ids(0, 1), text(1), tensors("[2,2]")];
    let columns = fields.iter().map(|batch| {
        let field = batch.schema_ref().field(0);
        let extension = field.metadata().get("ARROW:extension:name").map(|name| {
            let metadata = field.metadata()["ARROW:extension:metadata"].clone();
            rolldock_queue::ExtensionSpec { name: name.clone(), metadata }
        });
        rolldock_queue::ColumnSpec {
            extension,
            ..rolldock_queue::ColumnSpec::new(field.name(), field.data_type().clone())
        }
    });
    let small = |name: &str| PartitionSpec::new(name, ["train"], 8);
    let spec = PartitionSpec {
        columns: columns.collect(),
        capacity_bytes: Some(10 << 10),
        row_bytes_max: Some(2_000),
        ..small("p")
    };
    let partition = queue.declare(spec).await.unwrap();
    let keys = vec!["k0".to_owned(), "k1".to_owned()];
    let rows = partition.put(Put { keys, ..Put::group("there", ids(0, 2)) }, None).await.unwrap();
    for (group, uid) in [("closed", "c"), ("sampled", "s")] {
        let sample = Some(SamplePart { uid: uid.to_owned(), is_last: true });
        partition.put(Put { sample, group_size: 2, ..Put::group(group, ids(2, 1)) }, None).await.unwrap();
        if group == "closed" {
            let closed = partition.close_groups(Duration::ZERO, Unfinished::Drop).await.unwrap();
            assert_eq!(closed.len(), 1);
        }
    }
    let brief = queue.declare(PartitionSpec { lease_ms: 30, ..small("brief") }).await.unwrap();
    brief.put(Put::group("a", ids(0, 1)), None).await.unwrap();
    let refusing = PartitionSpec { on_full: rolldock_queue::OnFull::Refuse, ..small("refusing") };
    queue.declare(refusing).await.unwrap().put(Put::group("a", ids(0, 7)), None).await.unwrap();
    queue.declare(small("ended")).await.unwrap().end_of_puts();
    let recorded = queue.declare(small("recorded")).await.unwrap();
    for group in 0..4 {
        let record = Some("x".repeat(64 << 20));
        recorded.put(Put { record, ..Put::group(format!("{group}"), ids(0, 1)) }, None).await.unwrap();
    }
    rows[0]
}

fn code(error: &QueueError) -> String {
    serde_json::to_value(error).unwrap()["code"].as_str().unwrap().to_owned()
}

/// The statistics of a queue without the revision, which every change increases.
fn state(queue: &TransferQueue) -> String {
    let stats = queue.partitions().into_iter().map(|partition| {
        let mut stats = partition.stats();
        stats.revision = 0;
        stats
    });
    format!("{:?}", stats.collect::<Vec<_>>())
}

#[tokio::test]
async fn bad_input_has_one_code_over_every_transport_and_changes_nothing() {
    let doors = Doors::open().await;
    let there = furnish(&doors.queue).await;
    let before = state(&doors.queue);
    let (remote, local) = (doors.remote(), doors.local());
    for (what, expected, attempt) in cases() {
        let doors: [(&str, &dyn Queue); 3] =
            [("in process", &doors.queue), ("http", &remote), ("shared memory", &local)];
        for (door, queue) in doors {
            if door == "in process" && what == WIRE_ONLY {
                continue;
            }
            let outcome = attempt(queue, there).await;
            let found = outcome.as_ref().err().map_or_else(|| "none".to_owned(), code);
            assert_eq!(found, expected, "{what}, {door}: {outcome:?}");
        }
    }
    assert_eq!(state(&doors.queue), before);
}

fn framed(words: &str, tail: &[u8]) -> Vec<u8> {
    let mut frame = (words.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&(tail.len() as u32).to_le_bytes());
    frame.extend_from_slice(words.as_bytes());
    frame.extend_from_slice(tail);
    frame
}

#[tokio::test]
async fn truncated_rows_are_refused_over_every_transport() {
    let doors = Doors::open().await;
    doors.queue.declare(PartitionSpec::new("p", ["train"], 8)).await.unwrap();
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &ids(0, 4).schema()).unwrap();
    writer.write(&ids(0, 4)).unwrap();
    let stream = writer.into_inner().unwrap();
    for length in [1, 100, stream.len() / 2, stream.len() - 20] {
        let body = stream[..length].to_vec();
        let url = format!("{}/v1/partitions/p/rows?group=g", doors.url);
        let answer = reqwest::Client::new().post(url).body(body.clone()).send().await.unwrap();
        assert_eq!(answer.status(), 400);
        let words: serde_json::Value = answer.json().await.unwrap();
        assert_eq!(words["error"]["code"], "bad_request", "{length}: {words}");

        let ask = r#"{"Call":{"id":1,"ask":{"Put":{"partition":"p","query":{"group":"g"},"rows":"Tail"}}}}"#;
        let mut peer = UnixStream::connect(&doors.socket).await.unwrap();
        peer.write_all(&framed(ask, &body)).await.unwrap();
        peer.shutdown().await.unwrap();
        let mut answers = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(5), peer.read_to_end(&mut answers)).await;
        let answers = String::from_utf8_lossy(&answers).into_owned();
        assert!(answers.is_empty() || !answers.contains("Answer"), "{length}: {answers}");
        assert_eq!(doors.queue.partition("p").unwrap().stats().rows, 0);
    }
    // The body ends before its declared length, and the client waits for the answer.
    let mut broken = TcpStream::connect(doors.url.strip_prefix("http://").unwrap()).await.unwrap();
    let head = b"POST /v1/partitions/p/rows?group=a HTTP/1.1\r\nhost: q\r\ncontent-length: 5000\r\n\r\nabc";
    broken.write_all(head).await.unwrap();
    broken.shutdown().await.unwrap();
    let mut answer = String::new();
    broken.read_to_string(&mut answer).await.unwrap();
    assert!(answer.is_empty() || answer.contains("\"code\":\"bad_request\""), "{answer}");
    assert_eq!(doors.queue.partition("p").unwrap().stats().rows, 0);
}

#[tokio::test]
async fn an_unknown_name_on_the_server_is_an_error_with_a_code() {
    let doors = Doors::open().await;
    doors.queue.declare(PartitionSpec::new("p", ["train"], 8)).await.unwrap();
    let client = reqwest::Client::new();
    let cases = [
        ("GET", "/", 404, "unknown_path"),
        ("GET", "/v2/partitions", 404, "unknown_path"),
        ("POST", "/v1/partitions/p/nothing", 404, "unknown_path"),
        ("PUT", "/v1/partitions", 405, "wrong_method"),
        ("GET", "/v1/partitions/p/take", 405, "wrong_method"),
        ("POST", "/health", 405, "wrong_method"),
        ("GET", "/v1/partitions/%ff", 400, "bad_request"),
        ("POST", "/v1/partitions/%C3%28/take", 400, "bad_request"),
        ("GET", "/v1/partitions/p?after=x", 400, "bad_request"),
        ("GET", "/v1/partitions/p?who=x", 400, "bad_request"),
        ("POST", "/v1/partitions/p/leases/x/ack", 400, "bad_request"),
        ("GET", "/v1/partitions/p/export?format=xml", 400, "bad_request"),
    ];
    for (method, path, status, code) in cases {
        let url = format!("{}{path}", doors.url);
        let answer = client.request(method.parse().unwrap(), url).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{method} {path}");
        let words: serde_json::Value = answer.json().await.unwrap();
        assert_eq!(words["error"]["code"], code, "{method} {path}: {words}");
    }
}
