//! Damaged bytes at every door: the journal, the file of leases, snapshots, HTTP bodies, the socket of this host. What comes in is
//! rows that were put, or an error; never a panic, never a row that nobody put, never a server that is gone.
//!
//! Each door gets a few seconds (`ROLLDOCK_FUZZ_SECONDS` asks for more). The damage is drawn from a seed, which a failure
//! prints; `ROLLDOCK_FUZZ_SEED` runs it again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, ListArray, NullArray, RecordBatch, StringArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::Field;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rolldock_queue::{
    Durability, LocalListener, LocalServiceConfig, PartitionSpec, Put, QueueConfig, ServiceConfig, Take,
    TransferQueue, serve, serve_local,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

fn seconds() -> Duration {
    let asked = std::env::var("ROLLDOCK_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs_f64(asked.unwrap_or(2.0))
}

/// Random damage, and the seed that makes it again.
struct Damage {
    rng: SmallRng,
    until: Instant,
    rounds: u64,
    what: &'static str,
}

impl Damage {
    fn new(what: &'static str) -> Self {
        let seed = std::env::var("ROLLDOCK_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(rand::random);
        eprintln!("{what}: ROLLDOCK_FUZZ_SEED={seed}");
        Self { rng: SmallRng::seed_from_u64(seed), until: Instant::now() + seconds(), rounds: 0, what }
    }

    fn goes_on(&mut self) -> bool {
        self.rounds += 1;
        let goes_on = Instant::now() < self.until;
        if !goes_on {
            eprintln!("{}: {} rounds", self.what, self.rounds);
        }
        goes_on
    }

    /// Flips, cuts, doubles, inserts, overwrites.
    fn of(&mut self, sound: &[u8]) -> Vec<u8> {
        let mut bytes = sound.to_vec();
        for _ in 0..self.rng.random_range(1..4) {
            if bytes.is_empty() {
                break;
            }
            let at = self.rng.random_range(0..bytes.len());
            let length = self.rng.random_range(0..=(bytes.len() - at).min(64));
            match self.rng.random_range(0..6) {
                0 => bytes[at] ^= 1 << self.rng.random_range(0..8),
                1 => bytes[at] = self.rng.random(),
                2 => bytes.truncate(at),
                3 => drop(bytes.drain(at..at + length)),
                4 => {
                    let piece = bytes[at..at + length].to_vec();
                    bytes.splice(at..at, piece);
                }
                _ => bytes[at..at + length].fill(self.rng.random()),
            }
        }
        bytes
    }
}

fn batch(first: i64, rows: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows));
    let names: ArrayRef =
        Arc::new(StringArray::from_iter_values((first..first + rows).map(|id| format!("n{id}"))));
    RecordBatch::try_from_iter([("id", ids), ("name", names)]).unwrap()
}

fn open(dir: &Path) -> TransferQueue {
    let config =
        QueueConfig { dir: Some(dir.to_owned()), durability: Durability::Os, ..QueueConfig::default() };
    TransferQueue::open(config).unwrap()
}

async fn fill(queue: &TransferQueue) {
    let partition = queue.declare(PartitionSpec::new("p", ["a", "b"], 64)).await.unwrap();
    for group in 0..6 {
        let put =
            Put { token: Some(format!("t{group}")), ..Put::group(format!("g{group}"), batch(group * 4, 4)) };
        partition.put(put, None).await.unwrap();
    }
    partition.take(&Take::groups("a", 2)).await.unwrap().unwrap().ack().await.unwrap();
    partition.take(&Take::groups("b", 1)).await.unwrap().unwrap().ack().await.unwrap();
}

/// Whatever is given out was put.
async fn check_rows(queue: &TransferQueue) {
    for partition in queue.partitions() {
        let Ok(Some(lease)) = partition.take(&Take::rows("a", 64)).await else { continue };
        for batch in lease.batches() {
            let Some(ids) = batch.column_by_name("id").and_then(|ids| ids.as_primitive_opt::<Int64Type>())
            else {
                continue;
            };
            let names = batch["name"].as_string::<i32>();
            for row in 0..batch.num_rows() {
                assert_eq!(names.value(row), format!("n{}", ids.value(row)));
                assert!((0..24).contains(&ids.value(row)));
            }
        }
    }
}

/// Damages one file of a directory again and again, and opens what is left.
async fn open_damaged(what: &'static str, file: &str, prepare: impl AsyncFn(&TransferQueue)) {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path());
    fill(&queue).await;
    prepare(&queue).await;
    queue.close();
    drop(queue);
    let path = dir.path().join(file);
    let sound = std::fs::read(&path).unwrap();
    let mut damage = Damage::new(what);
    while damage.goes_on() {
        std::fs::write(&path, damage.of(&sound)).unwrap();
        if let Ok(queue) = TransferQueue::open_read_only(dir.path()) {
            check_rows(&queue).await;
            let _ = queue.verify().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_damaged_journal_is_an_error_or_what_was_put() {
    open_damaged("journal", "journal.log", async |_| {}).await;
}

#[tokio::test]
async fn a_damaged_segment_is_an_error_or_what_was_put() {
    open_damaged("segment", "segment-00000000.arrow", async |_| {}).await;
}

#[tokio::test]
async fn a_damaged_file_of_leases_only_gives_rows_again() {
    let hold = async |queue: &TransferQueue| {
        let (url, _served) = served(queue.clone()).await;
        let client = reqwest::Client::new();
        for task in ["a", "b"] {
            let take = client.post(format!("{url}/v1/partitions/p/take"));
            take.body(format!(r#"{{"task":"{task}","groups":1}}"#))
                .send()
                .await
                .unwrap()
                .bytes()
                .await
                .unwrap();
        }
    };
    open_damaged("leases", "leases.log", hold).await;
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_damaged_snapshot_restores_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path());
    fill(&queue).await;
    let sink = Sink::default();
    queue.snapshot(None, sink.clone()).await.unwrap();
    let sound = std::mem::take(&mut *sink.0.lock());
    let mut damage = Damage::new("snapshot");
    while damage.goes_on() {
        let target = TransferQueue::open(QueueConfig::default()).unwrap();
        match target.restore(std::io::Cursor::new(damage.of(&sound))).await {
            Ok(_) => check_rows(&target).await,
            Err(_) => assert!(target.partitions().is_empty()),
        }
    }
}

async fn served(queue: TransferQueue) -> (String, AbortOnDropHandle<std::io::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let config = ServiceConfig { body_bytes_max: 1 << 20, ..ServiceConfig::default() };
    let serving = serve(queue, listener, config, CancellationToken::new());
    (url, AbortOnDropHandle::new(TaskTracker::new().spawn(serving)))
}

/// Arrow's reader panics on lengths that lead out of a message. That is caught and is an error; its words would fill the
/// log.
fn pass_over_arrows_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.location().is_some_and(|at| at.file().contains("arrow")) {
            usual(panic);
        }
    }));
}

#[tokio::test]
async fn damaged_requests_are_refused_and_the_server_lives() {
    pass_over_arrows_panics();
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    let (url, served) = served(queue.clone()).await;
    let client = reqwest::Client::new();
    let mut stream = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch(0, 4).schema()).unwrap();
    stream.write(&batch(0, 4)).unwrap();
    let rows = stream.into_inner().unwrap();
    let spec = serde_json::to_vec(&PartitionSpec::new("p", ["a", "b"], 64)).unwrap();
    let handle = r#"{"slot":0,"generation":0}"#;
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("/v1/partitions", spec),
        ("/v1/partitions/p/rows?group=g", rows.clone()),
        ("/v1/partitions/p/columns", rows),
        ("/v1/partitions/p/take", br#"{"task":"a","groups":2,"columns":["id"],"min_policy_version":1,"sampler":{"random":{"seed":7}}}"#.to_vec()),
        ("/v1/partitions/p/take", br#"{"task":"b","rows":2,"share":{"rank":0,"ranks":2},"stale":"deliver","max_staleness":2}"#.to_vec()),
        ("/v1/partitions/p/get", format!(r#"{{"rows":[{handle}],"columns":["id"]}}"#).into_bytes()),
        ("/v1/partitions/p/clear", format!(r#"{{"rows":[{handle}]}}"#).into_bytes()),
        ("/v1/partitions/p/tags", format!(r#"{{"tags":[[{handle},{{"x":1}}]]}}"#).into_bytes()),
        ("/v1/partitions/p/find", br#"{"keys":["k"]}"#.to_vec()),
        ("/v1/partitions/p/version", br#"{"policy_version":3}"#.to_vec()),
        ("/v1/units/u/unknown", br#"{"blobs":["x"]}"#.to_vec()),
        ("/v1/restore", b"ROLLDOCK-SNAPSHOT-1\n".to_vec()),
    ];
    queue.declare(PartitionSpec::new("p", ["a", "b"], 64)).await.unwrap();
    let mut damage = Damage::new("requests");
    while damage.goes_on() {
        let (path, sound) = &bodies[damage.rng.random_range(0..bodies.len())];
        let answer = client.post(format!("{url}{path}")).body(damage.of(sound)).send().await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.bytes().await.unwrap();
        if status >= 400 {
            let words: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert!(words["error"]["code"].is_string() && status != 500, "{path}: {status} {words}");
        }
    }
    assert!(!served.is_finished());
    // Other bytes may be sound rows; whatever they are, reading them is safe.
    for partition in queue.partitions() {
        if let Ok(Some(lease)) = partition.take(&Take::rows("a", 64)).await {
            assert!(lease.batches().iter().all(|batch| format!("{batch:?}").len() > 10));
        }
    }
    for partition in queue.partitions() {
        rolldock_queue::invariants::rows_accounted(&partition.inspect()).unwrap();
    }
}

fn stream_of(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn column(name: &str, column: ArrayRef) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([(name, column, true)]).unwrap()
}

/// A frame of the socket's: lengths, words, and what comes behind them.
fn framed(words: &str, tail: &[u8]) -> Vec<u8> {
    let mut frame = (words.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&(tail.len() as u32).to_le_bytes());
    frame.extend_from_slice(words.as_bytes());
    frame.extend_from_slice(tail);
    frame
}

/// Everything that the server says to these bytes, until it has nothing more to say or closes the connection.
async fn say(socket: &Path, bytes: &[u8]) -> String {
    let mut peer = UnixStream::connect(socket).await.unwrap();
    // It may be closed before all is written.
    let _ = peer.write_all(bytes).await;
    let mut said = Vec::new();
    let mut piece = vec![0; 1 << 16];
    let pause = Duration::from_millis(20);
    while let Ok(Ok(count)) = tokio::time::timeout(pause, peer.read(&mut piece)).await {
        if count == 0 {
            break;
        }
        said.extend_from_slice(&piece[..count]);
    }
    String::from_utf8_lossy(&said).into_owned()
}

fn served_here(queue: TransferQueue, socket: &Path) -> AbortOnDropHandle<std::io::Result<()>> {
    let listener = LocalListener::bind(socket, LocalServiceConfig::default()).unwrap();
    let serving = serve_local(queue, listener, CancellationToken::new());
    AbortOnDropHandle::new(TaskTracker::new().spawn(serving))
}

/// Sound calls of a client of this host, with what comes behind them.
fn asks(rows: &[u8]) -> Vec<(String, Vec<u8>)> {
    let handle = r#"{"slot":0,"generation":0}"#;
    let lease = r#"{"partition":"p","life":1,"lease":1,"member":0,"take":3}"#;
    let none: [String; 16] = [
        r#"{"Room":{"bytes":5000}}"#.to_owned(),
        r#"{"Take":{"partition":"p","take":{"task":"a","groups":2,"columns":["id"],"sampler":{"random":{"seed":7}}}}}"#.to_owned(),
        r#"{"Take":{"partition":"p","take":{"task":"b","rows":2,"share":{"rank":0,"ranks":2},"wait_ms":5}}}"#.to_owned(),
        r#"{"Put":{"partition":"p","query":{"group":"g"},"rows":{"Loan":{"id":1,"length":500}}}}"#.to_owned(),
        format!(r#"{{"Get":{{"partition":"p","rows":[{handle}],"columns":["id"]}}}}"#),
        format!(r#"{{"Clear":{{"partition":"p","rows":[{handle}],"token":"t"}}}}"#),
        format!(r#"{{"SetTags":{{"partition":"p","tags":[[{handle},{{"x":1}}]]}}}}"#),
        format!(r#"{{"Ack":{lease}}}"#),
        format!(r#"{{"Nack":{lease}}}"#),
        format!(r#"{{"Renew":{lease}}}"#),
        r#"{"Find":{"partition":"p","keys":["k"]}}"#.to_owned(),
        r#"{"Reset":{"partition":"p","task":"a"}}"#.to_owned(),
        r#"{"StatusAfter":{"partition":"p","revision":3,"wait_ms":5}}"#.to_owned(),
        r#"{"CloseGroups":{"partition":"p","older_than_ms":5,"unfinished":"drop"}}"#.to_owned(),
        r#"{"Declare":{"name":"q","tasks":[{"name":"a"}],"capacity_rows":8}}"#.to_owned(),
        r#""Inspect""#.to_owned(),
    ];
    let mut asks: Vec<_> = none.map(|ask| (ask, Vec::new())).to_vec();
    let put = r#"{"Put":{"partition":"p","query":{"group":"g","token":"t"},"rows":"Tail"}}"#.to_owned();
    asks.push((put, rows.to_vec()));
    asks.push((r#"{"WriteColumns":{"partition":"p","rows":"Tail","token":"t"}}"#.to_owned(), rows.to_vec()));
    asks
}

#[tokio::test]
async fn damaged_words_end_their_own_connection_and_the_server_lives() {
    pass_over_arrows_panics();
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    fill(&queue).await;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("queue.sock");
    let served = served_here(queue.clone(), &socket);
    let rows = stream_of(&batch(0, 4));
    let asks = asks(&rows);
    let mut damage = Damage::new("socket");
    while damage.goes_on() {
        // Some calls on one connection; one of them is damaged, in its frame, its words or what comes behind them.
        let mut bytes = Vec::new();
        for id in 1..=damage.rng.random_range(1..4) {
            let (ask, tail) = &asks[damage.rng.random_range(0..asks.len())];
            let words = format!(r#"{{"Call":{{"id":{id},"ask":{ask}}}}}"#);
            let frame = match damage.rng.random_range(0..4) {
                0 => damage.of(&framed(&words, tail)),
                1 => framed(&String::from_utf8_lossy(&damage.of(words.as_bytes())), tail),
                2 => framed(&words, &damage.of(tail)),
                _ => framed(&words, tail),
            };
            bytes.extend_from_slice(&frame);
        }
        say(&socket, &bytes).await;
    }
    assert!(!served.is_finished());
    let said = say(&socket, &framed(r#"{"Call":{"id":1,"ask":"Inspect"}}"#, &[])).await;
    assert!(said.contains("payload_bytes"), "{said}");
    for partition in queue.partitions() {
        rolldock_queue::invariants::rows_accounted(&partition.inspect()).unwrap();
    }
}

/// Rows that claim more than they bring: numbers without bytes, depths without end.
fn claims() -> Vec<(&'static str, Vec<u8>)> {
    let mut nested: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    for _ in 0..200 {
        let item = Arc::new(Field::new_list_field(nested.data_type().clone(), true));
        nested = Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([1]), nested, None));
    }
    let deep: ArrayRef = Arc::new(StringArray::from(vec!["[".repeat(200_000)]));
    let tagged =
        RecordBatch::try_from_iter([("id", batch(0, 1).column(0).clone()), ("_tags", deep)]).unwrap();
    let nulls = |rows: usize| stream_of(&column("nothing", Arc::new(NullArray::new(rows))));
    vec![
        ("a trillion rows", nulls(1 << 40)),
        ("as many as there are numbers", nulls(i64::MAX as usize)),
        ("a few more than fit", nulls(65)),
        ("tags that are too deep", stream_of(&tagged)),
        ("a type that is too deep", stream_of(&column("nested", nested))),
    ]
}

#[tokio::test]
async fn claims_that_no_bytes_stand_behind_are_refused() {
    pass_over_arrows_panics();
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    let counting = PartitionSpec {
        capacity_bytes: Some(1 << 20),
        row_bytes_max: Some(1 << 10),
        length_columns: vec!["nothing".to_owned()],
        ..PartitionSpec::new("p", ["a"], 64)
    };
    queue.declare(counting).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("queue.sock");
    let here = served_here(queue.clone(), &socket);
    let (url, there) = served(queue.clone()).await;
    let client = reqwest::Client::new();
    let post = async |path: &str, body: Vec<u8>| {
        let answer = client.post(format!("{url}{path}")).body(body).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json::<serde_json::Value>().await.unwrap_or_default())
    };
    for (what, rows) in claims() {
        for path in ["/v1/partitions/p/rows?group=g", "/v1/partitions/p/columns"] {
            let (status, words) = post(path, rows.clone()).await;
            assert!((400..500).contains(&status), "{what}, {path}: {status} {words}");
        }
        for ask in [
            r#"{"Put":{"partition":"p","query":{"group":"g"},"rows":"Tail"}}"#,
            r#"{"WriteColumns":{"partition":"p","rows":"Tail","token":"t"}}"#,
        ] {
            let said = say(&socket, &framed(&format!(r#"{{"Call":{{"id":1,"ask":{ask}}}}}"#), &rows)).await;
            assert!(said.contains("Refusal"), "{what}, {ask}: {said}");
        }
    }
    let most = u64::MAX;
    let deep = "[".repeat(100_000);
    let requests = [
        (
            "/v1/partitions/p/take",
            format!(r#"{{"task":"a","groups":1,"share":{{"rank":0,"ranks":{}}}}}"#, u32::MAX),
        ),
        (
            "/v1/partitions/p/take",
            format!(r#"{{"task":"a","groups":1,"share":{{"rank":0,"ranks":1,"members":{}}}}}"#, u32::MAX),
        ),
        ("/v1/partitions/p/take", format!(r#"{{"task":"a","groups":{most},"at_least":{most}}}"#)),
        (
            "/v1/partitions/p/take",
            format!(r#"{{"task":"a","rows":{most},"min_policy_version":{most},"max_staleness":{most}}}"#),
        ),
        (
            "/v1/partitions/p/take",
            format!(r#"{{"task":"a","tokens":{most},"sampler":{{"random":{{"seed":{most}}}}}}}"#),
        ),
        ("/v1/partitions/p/tags", format!(r#"{{"tags":[[{{"slot":0,"generation":0}},{deep}]]}}"#)),
        ("/v1/partitions/p/groups/close", format!(r#"{{"older_than_ms":{most},"unfinished":"drop"}}"#)),
        ("/v1/partitions/p/version", format!(r#"{{"policy_version":{most}}}"#)),
        (
            "/v1/partitions",
            format!(
                r#"{{"name":"large","tasks":[{{"name":"a"}}],"capacity_rows":{most},"capacity_bytes":{most},"lease_ms":{most}}}"#
            ),
        ),
    ];
    for (path, body) in requests {
        let (status, words) = post(path, body.into_bytes()).await;
        assert!(status < 500, "{path}: {status} {words}");
    }
    let sound = stream_of(&batch(0, 2));
    let largest = format!("group_size={most}&policy_version={most}&priority={}&wait_ms={most}", i64::MIN);
    for partition in ["p", "large"] {
        let path = format!("/v1/partitions/{partition}/rows?group=g&{largest}");
        let (status, words) = post(&path, sound.clone()).await;
        assert!(status < 500, "{path}: {status} {words}");
        let take = format!(r#"{{"task":"a","rows":2,"wait_ms":{most}}}"#);
        if status == 200 {
            let answer = client.post(format!("{url}/v1/partitions/{partition}/take")).body(take).send();
            assert_eq!(answer.await.unwrap().status(), 200);
        }
    }
    assert!(!here.is_finished() && !there.is_finished());
    for partition in queue.partitions() {
        rolldock_queue::invariants::rows_accounted(&partition.inspect()).unwrap();
    }
}
