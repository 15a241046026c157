//! Bad input through every door: each a typed error with its stable code, and the queue as it was.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use futures::FutureExt;
use futures::future::BoxFuture;
use rolldock_queue::{
    LocalConfig, LocalListener, LocalQueue, LocalServiceConfig, PartitionSpec, Put, Queue, QueueConfig,
    QueueError, RemoteConfig, RemoteQueue, RowHandle, SamplePart, ServiceConfig, Share, Take, TransferQueue,
    Unfinished, serve, serve_local,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

const BODY_BYTES_MAX: usize = 100_000;
/// Whoever is in the process has no body.
const WIRE_ONLY: [&str; 2] = ["a body that is too long", "a column of the wire's"];

/// One queue behind three doors.
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

fn misnamed(batch: &RecordBatch) -> RecordBatch {
    RecordBatch::try_from_iter([("text", batch.column(0).clone())]).unwrap()
}

fn soon() -> Option<Duration> {
    Some(Duration::from_millis(20))
}

/// A call that has to fail.
type Attempt = for<'a> fn(&'a dyn Queue, RowHandle) -> BoxFuture<'a, Result<(), QueueError>>;

fn attempt_put<'a>(
    queue: &'a dyn Queue,
    partition: &'static str,
    put: Put,
) -> BoxFuture<'a, Result<(), QueueError>> {
    async move { queue.put(partition, put, soon()).await.map(drop) }.boxed()
}

fn attempt_take(queue: &dyn Queue, take: Take) -> BoxFuture<'_, Result<(), QueueError>> {
    async move { queue.take("p", &take).await.map(drop) }.boxed()
}

/// Calls with the codes that they are refused with. The partition `p` has one group of two rows and room for six more;
/// `there` is one of them.
fn cases() -> Vec<(&'static str, &'static str, Attempt)> {
    vec![
        ("a row that is too long", "row_too_long", |queue, _| {
            attempt_put(queue, "p", Put::group("new", text(3_000)))
        }),
        ("more bytes than fit", "too_many_bytes", |queue, _| {
            let many: ArrayRef = Arc::new(StringArray::from_iter_values((0..6).map(|_| "x".repeat(1_900))));
            let batch = RecordBatch::try_from_iter([("text", many)]).unwrap();
            attempt_put(queue, "p", Put::group("new", batch))
        }),
        ("more rows than fit", "too_large", |queue, _| attempt_put(queue, "p", Put::group("new", ids(0, 9)))),
        ("a body that is too long", "body_too_large", |queue, _| {
            attempt_put(queue, "p", Put::group("new", text(BODY_BYTES_MAX + 1)))
        }),
        ("no room", "deadline", |queue, _| attempt_put(queue, "p", Put::group("new", ids(0, 7)))),
        ("no room, and it refuses", "full", |queue, _| {
            attempt_put(queue, "refusing", Put::group("n", ids(0, 2)))
        }),
        ("more rows than the group has", "group_overflow", |queue, _| {
            attempt_put(queue, "p", Put { group_size: 1, ..Put::group("new", ids(0, 2)) })
        }),
        ("no rows", "empty", |queue, _| attempt_put(queue, "p", Put::group("new", ids(0, 0)))),
        ("another type", "wrong_type", |queue, _| {
            attempt_put(queue, "p", Put::group("new", misnamed(&ids(0, 1))))
        }),
        ("another shape", "wrong_type", |queue, _| {
            attempt_put(queue, "p", Put::group("new", tensors("[4]")))
        }),
        ("a column of the wire's", "bad_request", |queue, _| {
            let batch = RecordBatch::try_from_iter([("_group", ids(0, 1).column(0).clone())]).unwrap();
            attempt_put(queue, "p", Put::group("new", batch))
        }),
        ("half of the keys", "bad_request", |queue, _| {
            attempt_put(queue, "p", Put { keys: vec!["a".to_owned()], ..Put::group("new", ids(0, 2)) })
        }),
        ("a key that is taken", "key_exists", |queue, _| {
            attempt_put(queue, "p", Put { keys: vec!["k0".to_owned()], ..Put::group("new", ids(0, 1)) })
        }),
        ("rows for a sample that is whole", "sample_closed", |queue, _| {
            let sample = Some(SamplePart { uid: "s".to_owned(), is_last: false });
            attempt_put(queue, "p", Put { sample, group_size: 2, ..Put::group("sampled", ids(0, 1)) })
        }),
        ("rows for a closed group", "group_closed", |queue, _| {
            let sample = Some(SamplePart { uid: "late".to_owned(), is_last: false });
            attempt_put(queue, "p", Put { sample, group_size: 2, ..Put::group("closed", ids(0, 1)) })
        }),
        ("too many records", "records_full", |queue, _| {
            attempt_put(
                queue,
                "recorded",
                Put { record: Some("more".to_owned()), ..Put::group("n", ids(0, 1)) },
            )
        }),
        ("a put after the end", "closed", |queue, _| {
            attempt_put(queue, "ended", Put::group("new", ids(0, 1)))
        }),
        ("no such partition", "unknown_partition", |queue, _| {
            async move { queue.status("nobody's").await.map(drop) }.boxed()
        }),
        ("declared otherwise", "declared_otherwise", |queue, _| {
            queue.declare(PartitionSpec::new("p", ["train"], 99))
        }),
        ("no such task", "unknown_task", |queue, _| attempt_take(queue, Take::groups("nobody", 1))),
        ("no such column", "unknown_column", |queue, _| {
            attempt_take(queue, Take { columns: Some(vec!["none".to_owned()]), ..Take::groups("train", 1) })
        }),
        ("nothing at all", "empty", |queue, _| attempt_take(queue, Take::groups("train", 0))),
        ("a rank that is none", "bad_request", |queue, _| {
            attempt_take(queue, Take { share: Some(Share::of(2, 2)), ..Take::groups("train", 1) })
        }),
        ("more ranks than there are machines", "bad_request", |queue, _| {
            attempt_take(queue, Take { share: Some(Share::of(0, u32::MAX)), ..Take::groups("train", 1) })
        }),
        ("nothing is ready", "deadline", |queue, _| {
            let take = Take { at_least: 50, ..Take::groups("train", 60) };
            attempt_take(queue, take.until(tokio::time::Instant::now() + Duration::from_millis(20)))
        }),
        ("a lease that expired", "lease_gone", |queue, _| {
            async move {
                let lease = queue.take("brief", &Take::groups("train", 1)).await?.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
                lease.ack().await
            }
            .boxed()
        }),
        ("a handle of a row that is gone", "stale_handle", |queue, _| {
            async move { queue.clear("p", &[RowHandle { slot: 0, generation: 77 }]).await }.boxed()
        }),
        ("a column that is there", "column_exists", |queue, there| {
            async move { queue.write_columns("p", &[there], ids(0, 1)).await }.boxed()
        }),
        ("a column that is not there yet", "column_missing", |queue, there| {
            async move { queue.get("p", &[there], Some(&["none".to_owned()])).await.map(drop) }.boxed()
        }),
        ("no such key", "unknown_key", |queue, _| {
            async move { queue.find("p", Some(&["none".to_owned()])).await.map(drop) }.boxed()
        }),
        ("no such sample", "unknown_sample", |queue, _| queue.end_sample("p", "none")),
        ("no task to reset", "unknown_task", |queue, _| {
            async move { queue.reset("p", "nobody").await.map(drop) }.boxed()
        }),
    ]
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

/// What clients see of a queue, but for the counts of its changes.
fn state(queue: &TransferQueue) -> String {
    let stats = queue.partitions().into_iter().map(|partition| {
        let mut stats = partition.stats();
        stats.revision = 0;
        stats
    });
    format!("{:?}", stats.collect::<Vec<_>>())
}

#[tokio::test]
async fn bad_input_has_the_same_code_through_every_door_and_changes_nothing() {
    let doors = Doors::open().await;
    let there = furnish(&doors.queue).await;
    let before = state(&doors.queue);
    let (remote, local) = (doors.remote(), doors.local());
    for (what, expected, attempt) in cases() {
        let doors: [(&str, &dyn Queue); 3] =
            [("in process", &doors.queue), ("http", &remote), ("shared memory", &local)];
        for (door, queue) in doors {
            if door == "in process" && WIRE_ONLY.contains(&what) {
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
async fn rows_that_are_cut_are_refused_through_every_door() {
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
    // A body that breaks off, while the client listens on.
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
async fn what_the_server_does_not_have_is_an_error_with_a_code() {
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

/// One of each. A new variant does not compile until it is here.
fn all_errors() -> Vec<QueueError> {
    let text = || "x".to_owned();
    let all = vec![
        QueueError::InUse { dir: "x".into(), owner: text() },
        QueueError::NoQueue { dir: "x".into() },
        QueueError::UnknownPartition { name: text() },
        QueueError::PartitionExists { name: text() },
        QueueError::BadSnapshot { offset: 1, reason: text() },
        QueueError::UnknownTask { partition: text(), task: text(), tasks: text() },
        QueueError::UnknownColumn { partition: text(), column: text() },
        QueueError::DeclaredOtherwise { name: text(), what: text() },
        QueueError::WrongType { column: text(), expected: text(), found: text() },
        QueueError::ColumnExists { column: text() },
        QueueError::ColumnMissing { column: text() },
        QueueError::GroupOverflow { group: text(), size: 1, rows: 2 },
        QueueError::TooLarge { rows: 2, capacity: 1 },
        QueueError::Full { partition: text(), capacity: 1 },
        QueueError::KeyExists { key: text() },
        QueueError::UnknownKey { partition: text(), key: text() },
        QueueError::RowTooLong { row: 1, bytes: 2, bytes_max: 1 },
        QueueError::TooManyBytes { bytes: 2, capacity_bytes: 1 },
        QueueError::RowConsumed { task: text(), slot: 1, generation: 1 },
        QueueError::GroupClosed { group: text() },
        QueueError::SampleClosed { sample: text() },
        QueueError::UnknownSample { partition: text(), sample: text() },
        QueueError::StepDiffers { trajectory: text(), step: 1 },
        QueueError::RecordsFull { partition: text(), bytes: 2, bytes_max: 1 },
        QueueError::ChunkGone { chunk: 1 },
        QueueError::Deadline { what: "x".into(), partition: text(), state: text() },
        QueueError::StaleHandle { slot: 1, generation: 1 },
        QueueError::LeaseGone { lease: 1 },
        QueueError::Closed { partition: text() },
        QueueError::Empty,
        QueueError::ReadOnly,
        QueueError::Corrupt { file: "x".into(), offset: 1, reason: text() },
        QueueError::Io { what: "x".into(), path: "x".into(), reason: text() },
        QueueError::BadRequest { reason: text() },
        QueueError::UnknownPath { path: text() },
        QueueError::WrongMethod { method: text(), path: text() },
        QueueError::BodyTooLarge { bytes_max: 1 },
        QueueError::Unauthorized,
        QueueError::UnknownUnit { unit: text() },
        QueueError::UnitAway { unit: text() },
        QueueError::Stopping,
        QueueError::Unreachable { url: text(), reason: text() },
        QueueError::Arrow { reason: text() },
    ];
    for error in &all {
        match error {
            QueueError::InUse { .. }
            | QueueError::NoQueue { .. }
            | QueueError::UnknownPartition { .. }
            | QueueError::PartitionExists { .. }
            | QueueError::BadSnapshot { .. }
            | QueueError::UnknownTask { .. }
            | QueueError::UnknownColumn { .. }
            | QueueError::DeclaredOtherwise { .. }
            | QueueError::WrongType { .. }
            | QueueError::ColumnExists { .. }
            | QueueError::ColumnMissing { .. }
            | QueueError::GroupOverflow { .. }
            | QueueError::TooLarge { .. }
            | QueueError::Full { .. }
            | QueueError::KeyExists { .. }
            | QueueError::UnknownKey { .. }
            | QueueError::RowTooLong { .. }
            | QueueError::TooManyBytes { .. }
            | QueueError::RowConsumed { .. }
            | QueueError::GroupClosed { .. }
            | QueueError::SampleClosed { .. }
            | QueueError::UnknownSample { .. }
            | QueueError::StepDiffers { .. }
            | QueueError::RecordsFull { .. }
            | QueueError::ChunkGone { .. }
            | QueueError::Deadline { .. }
            | QueueError::StaleHandle { .. }
            | QueueError::LeaseGone { .. }
            | QueueError::Closed { .. }
            | QueueError::Empty
            | QueueError::ReadOnly
            | QueueError::Corrupt { .. }
            | QueueError::Io { .. }
            | QueueError::BadRequest { .. }
            | QueueError::UnknownPath { .. }
            | QueueError::WrongMethod { .. }
            | QueueError::BodyTooLarge { .. }
            | QueueError::Unauthorized
            | QueueError::UnknownUnit { .. }
            | QueueError::UnitAway { .. }
            | QueueError::Stopping
            | QueueError::Unreachable { .. }
            | QueueError::Arrow { .. } => {}
        }
    }
    all
}

/// Codes with their HTTP statuses, in the table of the operators' page.
fn documented() -> BTreeMap<String, String> {
    let page = include_str!("../../docs/src/queue-operations.md");
    let (_, section) = page.split_once("## What an error means").unwrap();
    let rows = section.lines().filter_map(|line| {
        let cell = line.strip_prefix("| ")?.split(" | ").nth(1)?;
        let (code, status) = cell.strip_prefix('`')?.split_once("`, ")?;
        Some((code.to_owned(), status.to_owned()))
    });
    rows.collect()
}

#[test]
fn every_error_has_its_code_in_the_contract_and_on_the_operators_page() {
    let contract: serde_json::Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
    let error = &contract["components"]["schemas"]["Error"]["properties"]["error"]["properties"];
    let mut promised: Vec<String> = serde_json::from_value(error["code"]["enum"].clone()).unwrap();
    promised.sort_unstable();
    let mut codes: Vec<String> = all_errors().iter().map(code).collect();
    codes.sort_unstable();
    assert_eq!(codes, promised);
    let documented: Vec<String> = documented().into_keys().collect();
    assert_eq!(codes, documented);
    for error in all_errors() {
        let words = serde_json::to_string(&error).unwrap();
        assert_eq!(serde_json::from_str::<QueueError>(&words).unwrap(), error, "{words}");
    }
}
