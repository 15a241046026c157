//! The queue through shared memory: the same trait, the same errors, nothing copied by sockets, nothing left behind.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Float32Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::Field;
use rolldock_queue::{
    Lease, LocalConfig, LocalListener, LocalQueue, LocalServiceConfig, PartitionSpec, Put, Queue,
    QueueConfig, QueueError, Regions, Take, TransferQueue, serve_local,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use support::tour::{batch, soon, tour};

struct Served {
    queue: TransferQueue,
    regions: Regions,
    path: PathBuf,
    end: CancellationToken,
    task: AbortOnDropHandle<std::io::Result<()>>,
    dir: tempfile::TempDir,
}

fn serve_in(dir: tempfile::TempDir, queue: TransferQueue, config: LocalServiceConfig) -> Served {
    let path = dir.path().join("queue.sock");
    let listener = LocalListener::bind(&path, config).unwrap();
    let (regions, end) = (listener.regions(), CancellationToken::new());
    let serving = serve_local(queue.clone(), listener, end.clone());
    let task = AbortOnDropHandle::new(TaskTracker::new().spawn(serving));
    Served { queue, regions, path, end, task, dir }
}

fn served() -> Served {
    let queue = TransferQueue::open(QueueConfig { dir: None, ..QueueConfig::default() }).unwrap();
    serve_in(tempfile::tempdir().unwrap(), queue, LocalServiceConfig::default())
}

impl Served {
    fn client(&self) -> LocalQueue {
        LocalQueue::new(LocalConfig::new(&self.path)).unwrap()
    }

    async fn declared(&self) -> LocalQueue {
        let client = self.client();
        client.declare(PartitionSpec::new("train", ["train"], 1 << 16)).await.unwrap();
        client
    }
}

/// Waits for what happens soon, on the other side of a socket.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < give_up, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Rows of about 12 KB.
fn large(seed: i64, rows: usize) -> RecordBatch {
    let list = |values: ArrayRef| -> ArrayRef {
        let item = Arc::new(Field::new_list_field(values.data_type().clone(), false));
        let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(1000, rows));
        Arc::new(ListArray::new(item, offsets, values, None))
    };
    let tokens = Int64Array::from_iter_values((0..rows as i64 * 1000).map(|at| at * 31 + seed));
    let logprobs = Float32Array::from_iter_values((0..rows * 1000).map(|at| -(at as f32)));
    let words = StringArray::from_iter((0..rows).map(|row| (row % 7 != 3).then(|| format!("{seed}/{row}"))));
    RecordBatch::try_from_iter_with_nullable([
        ("tokens", list(Arc::new(tokens)), false),
        ("logprobs", list(Arc::new(logprobs)), false),
        ("words", Arc::new(words) as _, true),
    ])
    .unwrap()
}

async fn take(client: &LocalQueue) -> Lease {
    let take = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(10));
    client.take("train", &take).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_local_queue_and_one_in_process_do_the_same() {
    tour(&TransferQueue::open(QueueConfig { dir: None, ..QueueConfig::default() }).unwrap()).await;
    let served = served();
    tour(&served.client()).await;
    assert_eq!(served.queue.partition("train").unwrap().records(), ["step 1, ünïcode & more"]);
}

#[tokio::test]
async fn large_rows_stay_in_the_region_that_they_were_put_in() {
    let served = served();
    let client = served.declared().await;
    let batch = large(1, 400);
    let handles = client.put("train", Put::group("a", batch.clone()), None).await.unwrap();
    let stats = served.regions.stats();
    assert_eq!((stats.in_use, stats.idle), (1, 0), "the chunk lies in the region");
    assert!(served.queue.inspect().payload_bytes > 4_000_000);

    let lease = take(&client).await;
    assert_eq!(lease.concat().unwrap(), batch);
    assert_eq!(served.regions.stats(), stats, "a take of it needs no other");
    lease.nack().await.unwrap();

    // Cuts, projections, and columns that came later.
    let advantage = Float32Array::from_iter_values((0..400).map(|row| row as f32));
    let advantage = RecordBatch::try_from_iter([("advantage", Arc::new(advantage) as _)]).unwrap();
    client.write_columns("train", &handles, advantage).await.unwrap();
    let columns = Some(["words", "tokens", "advantage"].map(str::to_owned).to_vec());
    for first in [0, 100, 200, 300] {
        let some = Take { columns: columns.clone(), ..Take::rows("train", 100) };
        let lease = client.take("train", &some).await.unwrap().unwrap();
        let rows = lease.concat().unwrap();
        assert_eq!(rows.column(0), &batch.column(2).slice(first, 100));
        assert_eq!(rows.column(1), &batch.column(0).slice(first, 100));
        assert_eq!(rows.num_columns(), 3);
        let kept = lease.batches()[0].clone();
        lease.ack().await.unwrap();
        // Rows that are still read keep what they lie in, whatever becomes of the queue's.
        assert_eq!(kept.column(1), &batch.column(0).slice(first, 100));
    }
    until("the region is idle", || served.regions.stats().in_use == 0).await;
}

#[tokio::test]
async fn rows_that_are_read_are_never_written_over() {
    let served = served();
    let client = served.declared().await;
    let first = large(1, 200);
    client.put("train", Put::group("a", first.clone()), None).await.unwrap();
    let lease = take(&client).await;
    let read = lease.batches()[0].clone();
    lease.ack().await.unwrap();
    assert_eq!(served.queue.partition("train").unwrap().stats().rows, 0);
    for round in 0..4 {
        client.put("train", Put::group(format!("{round}"), large(round + 2, 200)), None).await.unwrap();
        take(&client).await.ack().await.unwrap();
    }
    assert_eq!(read, first);
    let stats = served.regions.stats();
    assert!(stats.in_use <= 2 && stats.in_use + stats.idle <= 3, "{stats:?}");
    drop(read);
    until("the region is idle", || served.regions.stats().in_use == 0).await;
}

#[tokio::test]
async fn a_queue_on_disk_gives_its_rows_through_a_region() {
    let dir = tempfile::tempdir().unwrap();
    let config = QueueConfig { dir: Some(dir.path().join("queue")), ..QueueConfig::default() };
    let served = serve_in(dir, TransferQueue::open(config).unwrap(), LocalServiceConfig::default());
    let client = served.declared().await;
    let batch = large(3, 300);
    client.put("train", Put::group("a", batch.clone()), None).await.unwrap();
    until("the rows are on disk", || served.regions.stats().in_use == 0).await;
    let lease = take(&client).await;
    assert_eq!(served.regions.stats().in_use, 1);
    assert_eq!(lease.concat().unwrap(), batch);
    lease.ack().await.unwrap();
    until("the region is idle", || served.regions.stats().in_use == 0).await;
    let other = served.client();
    other.put("train", Put::group("b", batch.clone()), None).await.unwrap();
    let some = other.take("train", &Take::rows("train", 100)).await.unwrap().unwrap();
    assert_eq!(some.concat().unwrap(), batch.slice(0, 100));
}

#[tokio::test]
async fn different_columns_come_under_one_schema_with_nulls() {
    let served = served();
    let client = served.declared().await;
    client.put("train", Put::group("a", batch(0, 1)), soon()).await.unwrap();
    client.put("train", Put::group("b", batch(1, 1).project(&[0]).unwrap()), soon()).await.unwrap();
    let lease = client.take("train", &Take::groups("train", 2)).await.unwrap().unwrap();
    let rows = lease.concat().unwrap();
    assert_eq!((rows.num_rows(), rows.column_by_name("word").unwrap().null_count()), (2, 1));
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_nothing_behind() {
    let served = served();
    let keeper = served.declared().await;
    for group in ["a", "b"] {
        keeper.put("train", Put::group(group, large(1, 200)), None).await.unwrap();
    }
    let client = served.client();
    let lease = take(&client).await;
    let partition = served.queue.partition("train").unwrap();
    assert_eq!(partition.stats().leases, 1);

    // Rows that are read keep the connection; a process that dies has no such rows any more.
    let mut dead = UnixStream::connect(&served.path).await.unwrap();
    let words = br#"{"Call":{"id":1,"ask":{"Room":{"bytes":5000000}}}}"#;
    let taking =
        br#"{"Call":{"id":2,"ask":{"Take":{"partition":"train","take":{"task":"train","groups":1}}}}}"#;
    let waiting = br#"{"Call":{"id":3,"ask":{"Take":{"partition":"train","take":{"task":"train","groups":1,"wait_ms":60000}}}}}"#;
    for words in [words.as_slice(), taking, waiting] {
        dead.write_all(&framed(words)).await.unwrap();
    }
    until("both groups are leased", || partition.stats().leases == 2).await;
    until("a region is lent", || served.regions.stats().in_use == 3).await;
    drop(dead);
    until("its lease has ended", || partition.stats().leases == 1).await;
    until("its region is gone", || served.regions.stats().in_use == 2).await;
    assert_eq!(served.regions.stats().idle, 0, "{:?}", served.regions.stats());
    assert_eq!(partition.stats().tasks[0].ready_groups, 1);
    assert_eq!(partition.stats().rows_reserved, 0);

    let read = lease.batches()[0].clone();
    drop((lease, client));
    until("a dropped lease gives its rows back", || partition.stats().leases == 0).await;
    assert_eq!(read, large(1, 200));
    drop(read);
    // What the dead client had is not lent again; the rows in it are given all the same.
    for _ in 0..2 {
        let lease = take(&keeper).await;
        assert_eq!(lease.concat().unwrap(), large(1, 200));
        lease.ack().await.unwrap();
    }
    until("nothing is in use", || served.regions.stats().in_use == 0).await;
    assert!(served.regions.stats().idle <= 1, "{:?}", served.regions.stats());
}

fn framed(words: &[u8]) -> Vec<u8> {
    let mut frame = (words.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&0_u32.to_le_bytes());
    frame.extend_from_slice(words);
    frame
}

#[tokio::test]
async fn garbage_closes_its_own_connection_only() {
    let served = served();
    let client = served.declared().await;
    let truncated = framed(br#"{"Cancel":{"id":1}}"#)[..15].to_vec();
    let cases = [
        framed(b"{"),
        framed(br#"{"Call":{"id":1,"ask":"Nonsense"}}"#),
        vec![0xff; 64],
        truncated,
        vec![0; 3],
    ];
    for bytes in cases {
        let mut peer = UnixStream::connect(&served.path).await.unwrap();
        peer.write_all(&bytes).await.unwrap();
        peer.shutdown().await.unwrap();
        // The hello, and the end.
        peer.read_to_end(&mut Vec::new()).await.ok();
        client.put("train", Put::group("a", batch(0, 1)), soon()).await.unwrap();
        take(&client).await.ack().await.unwrap();
    }
}

#[tokio::test]
async fn a_damaged_stream_in_a_region_changes_nothing() {
    let served = served();
    let client = served.declared().await;
    client.put("train", Put::group("a", large(5, 200)), None).await.unwrap();
    take(&client).await.ack().await.unwrap();
    until("the region is idle", || served.regions.stats().in_use == 0).await;
    // A region that holds zeros, an earlier stream that is cut, lengths beyond it, and loans that are none.
    let mut peer = UnixStream::connect(&served.path).await.unwrap();
    let room = br#"{"Call":{"id":1,"ask":{"Room":{"bytes":1000}}}}"#;
    peer.write_all(&framed(room)).await.unwrap();
    let rows = [(1, 0), (1, 1), (1, 64), (1, 5000), (1, 1 << 20), (1, 1 << 30), (2, 100)];
    for (call, (id, length)) in rows.into_iter().enumerate() {
        let words = format!(
            r#"{{"Call":{{"id":{},"ask":{{"Put":{{"partition":"train","query":{{"group":"g"}},"rows":{{"Loan":{{"id":{id},"length":{length}}}}}}}}}}}}}"#,
            call + 10
        );
        peer.write_all(&framed(words.as_bytes())).await.unwrap();
    }
    let mut answers = String::new();
    while answers.matches("Refusal").count() < 7 {
        // Not `read`: a read that ends where descriptors begin is short, and that is no sign of there being no more.
        let mut some = vec![0; 4096];
        match peer.try_read(&mut some) {
            Ok(count) => {
                assert!(count > 0, "{answers}");
                answers.push_str(&String::from_utf8_lossy(&some[..count]));
            }
            Err(_) => peer.readable().await.unwrap(),
        }
    }
    let stats = served.queue.partition("train").unwrap().stats();
    assert_eq!((stats.rows, stats.rows_reserved, stats.groups), (0, 0, 0));
    drop(peer);
    until("its region is gone", || served.regions.stats().in_use == 0).await;
}

#[tokio::test]
async fn memory_stays_bounded_over_many_rounds() {
    let queue = TransferQueue::open(QueueConfig { dir: None, ..QueueConfig::default() }).unwrap();
    let idle_bytes_max = 12 << 20;
    let config = LocalServiceConfig { idle_bytes_max, ..LocalServiceConfig::default() };
    let served = serve_in(tempfile::tempdir().unwrap(), queue, config);
    let producer = served.declared().await;
    let consumer = served.client();
    let whole = large(1, 500);
    let mut most = 0;
    for round in 0..2000_usize {
        let rows = 1 + (round * 7919) % if round % 50 == 0 { 500 } else { 40 };
        let batch = whole.slice((round * 31) % (501 - rows), rows);
        producer.put("train", Put::group(format!("{round}"), batch.clone()), None).await.unwrap();
        let lease = take(&consumer).await;
        assert_eq!(lease.rows().len(), rows);
        if round % 100 == 0 {
            assert_eq!(lease.concat().unwrap(), batch);
        }
        lease.ack().await.unwrap();
        let stats = served.regions.stats();
        assert!(stats.idle_bytes <= idle_bytes_max, "{stats:?}");
        most = most.max(stats.in_use_bytes + stats.idle_bytes);
    }
    assert!(most <= 40 << 20, "{most}");
    until("nothing is in use", || served.regions.stats().in_use == 0).await;
    // Whoever is passed over keeps no mapping of what is gone.
    until("clients have forgotten", || mapped() <= 3 * 16).await;
}

/// Mappings of regions in this process.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("rolldock-rows")).count()
}

#[tokio::test]
async fn beyond_the_regions_that_may_be_in_use_rows_are_copied() {
    let queue = TransferQueue::open(QueueConfig { dir: None, ..QueueConfig::default() }).unwrap();
    let config = LocalServiceConfig { regions_max: 2, ..LocalServiceConfig::default() };
    let served = serve_in(tempfile::tempdir().unwrap(), queue, config);
    let client = served.declared().await;
    for group in 0..6 {
        client.put("train", Put::group(format!("{group}"), large(group, 20)), None).await.unwrap();
    }
    assert_eq!(served.regions.stats().in_use, 2);
    for group in 0..6 {
        let lease = take(&client).await;
        assert_eq!(lease.concat().unwrap(), large(group, 20));
        lease.ack().await.unwrap();
    }
}

#[tokio::test]
async fn waiting_calls_do_not_keep_others_and_cancelled_ones_take_nothing() {
    let served = served();
    let client = served.declared().await;
    let take_one = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(30));
    let cancelled = tokio::time::timeout(Duration::from_millis(50), client.take("train", &take_one)).await;
    assert!(cancelled.is_err());
    let waiting = client.take("train", &take_one);
    let putting = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        client.put("train", Put::group("a", batch(1, 1)), soon()).await.unwrap();
    };
    let (lease, ()) = tokio::join!(waiting, putting);
    let lease = lease.unwrap().unwrap();
    assert_eq!(lease.groups(), ["a"]);
    lease.ack().await.unwrap();
    assert_eq!(served.queue.partition("train").unwrap().stats().leases, 0);
}

#[tokio::test]
async fn waiting_takes_are_told_when_the_server_ends() {
    let served = served();
    drop(served.declared().await);
    let impatient = LocalConfig { patience: Duration::ZERO, ..LocalConfig::new(&served.path) };
    let client = LocalQueue::new(impatient).unwrap();
    let until = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(30));
    let ending = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        served.end.cancel();
    };
    let (taken, ()) = tokio::join!(client.take("train", &until), ending);
    assert_eq!(taken.map(drop), Err(QueueError::Stopping));
    served.task.await.unwrap().unwrap();
    assert!(!served.path.exists(), "the socket's file is removed");
    assert_eq!(std::fs::read_dir(served.dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_client_waits_for_a_server_that_starts_late_or_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("queue.sock");
    let config = QueueConfig { dir: Some(dir.path().join("queue")), ..QueueConfig::default() };
    let open = || TransferQueue::open(config.clone()).unwrap();
    let client = LocalQueue::new(LocalConfig::new(&path)).unwrap();
    let starting = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        serve_in(dir, open(), LocalServiceConfig::default())
    };
    let spec = PartitionSpec::new("train", ["train"], 1 << 16);
    let (declared, served) = tokio::join!(client.declare(spec), starting);
    declared.unwrap();
    client.put("train", Put::group("a", large(2, 100)), None).await.unwrap();
    let stale = take(&client).await;

    served.end.cancel();
    served.task.await.unwrap().unwrap();
    served.queue.close();
    drop(served.queue);
    let starting = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        serve_in(served.dir, open(), LocalServiceConfig::default())
    };
    let (lease, _served) = tokio::join!(take(&client), starting);
    assert_eq!(stale.batches()[0], large(2, 100), "rows outlive their server");
    assert!(matches!(stale.ack().await, Err(QueueError::LeaseGone { .. })));
    assert_eq!(lease.concat().unwrap(), large(2, 100));
    lease.ack().await.unwrap();
    let nobody = LocalConfig { patience: Duration::ZERO, ..LocalConfig::new("/nowhere/queue.sock") };
    let refused = LocalQueue::new(nobody).unwrap().inspect().await;
    assert!(matches!(refused, Err(QueueError::Unreachable { .. })), "{refused:?}");
}

#[tokio::test]
async fn deadlines_hold_whatever_the_server_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("queue.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let client = LocalQueue::new(LocalConfig::new(&path)).unwrap();
    let wait = Duration::from_millis(100);
    let check = async || {
        let take = Take::groups("train", 1).until(Instant::now() + wait);
        let started = Instant::now();
        let taken = client.take("train", &take).await;
        assert!(matches!(taken, Err(QueueError::Unreachable { .. })), "{taken:?}");
        let put = client.put("train", Put::group("a", large(0, 20)), Some(wait)).await;
        assert!(matches!(put, Err(QueueError::Unreachable { .. })), "{put:?}");
        let seen = client.status_after("train", 1, wait).await;
        assert!(matches!(seen, Err(QueueError::Unreachable { .. })), "{seen:?}");
        assert!(started.elapsed() < Duration::from_secs(11), "{:?}", started.elapsed());
    };
    // It takes connections, and says nothing.
    check().await;
    drop(listener);
    check().await;
}

#[tokio::test]
async fn one_live_server_has_the_socket() {
    let served = served();
    let mode = std::fs::metadata(&served.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let config = LocalServiceConfig::default();
    let second = LocalListener::bind(&served.path, config.clone());
    assert!(matches!(second, Err(QueueError::InUse { .. })), "{second:?}");
    // What a dead server left is replaced; what is no socket is nobody's to remove.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    LocalListener::bind(&path, config.clone()).unwrap();
    std::fs::write(&path, "words").unwrap();
    let refused = LocalListener::bind(&path, config);
    assert!(matches!(refused, Err(QueueError::Io { .. })), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "words");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_at_once() {
    const CLIENTS: usize = 64;
    const ROUNDS: usize = 8;
    let served = served();
    served.declared().await;
    let tasks = TaskTracker::new();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = served.client();
            AbortOnDropHandle::new(tasks.spawn(async move {
                let mut taken = 0;
                for round in 0..ROUNDS {
                    let rows = if round % 2 == 0 { 20 } else { 1 };
                    let seed = (number * ROUNDS + round) as i64;
                    let group = format!("{seed}");
                    client.put("train", Put::group(group, large(seed, rows)), None).await.unwrap();
                    let lease = take(&client).await;
                    let seed: i64 = lease.groups()[0].parse().unwrap();
                    assert_eq!(lease.concat().unwrap(), large(seed, lease.rows().len()));
                    taken += lease.rows().len();
                    lease.ack().await.unwrap();
                }
                taken
            }))
        })
        .collect();
    let mut taken = 0;
    for client in clients {
        taken += client.await.unwrap();
    }
    assert_eq!(taken, CLIENTS * ROUNDS / 2 * 21);
    assert_eq!(served.queue.partition("train").unwrap().stats().rows, 0);
    until("nothing is in use", || served.regions.stats().in_use == 0).await;
}

/// The other side of the tests below, in a process of its own; it ends when it is killed.
#[tokio::test]
#[ignore = "started by the tests that kill it"]
async fn victim() {
    let Ok(path) = std::env::var("ROLLDOCK_TEST_SOCKET") else { return };
    if std::env::var("ROLLDOCK_TEST_ROLE").unwrap() == "server" {
        let queue = TransferQueue::open(QueueConfig { dir: None, ..QueueConfig::default() }).unwrap();
        let listener = LocalListener::bind(path, LocalServiceConfig::default()).unwrap();
        serve_local(queue, listener, CancellationToken::new()).await.unwrap();
        return;
    }
    let client = LocalQueue::new(LocalConfig::new(path)).unwrap();
    let _lease = take(&client).await;
    for group in 1.. {
        client.put("train", Put::group(format!("{group}"), large(group, 200)), None).await.unwrap();
    }
}

/// Killed with -9 when dropped.
struct Victim(std::process::Child);

impl Victim {
    fn start(role: &str, path: &std::path::Path) -> Self {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "victim"]);
        command.env("ROLLDOCK_TEST_SOCKET", path).env("ROLLDOCK_TEST_ROLE", role);
        Self(command.stdout(std::process::Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn a_killed_client_leaves_whole_rows_and_nothing_else() {
    let served = served();
    let client = served.declared().await;
    client.put("train", Put::group("0", large(0, 200)), None).await.unwrap();
    let partition = served.queue.partition("train").unwrap();
    let victim = Victim::start("client", &served.path);
    until("it is at work", || partition.stats().leases == 1 && partition.stats().groups > 5).await;
    drop(victim);
    until("its lease has ended", || partition.stats().leases == 0).await;
    until("its put has ended", || partition.stats().rows_reserved == 0).await;
    let groups = partition.stats().groups;
    until("its loan is gone", || served.regions.stats().in_use == groups).await;
    assert_eq!(partition.stats().tasks[0].ready_groups, groups);
    for _ in 0..groups {
        let lease = take(&client).await;
        let seed: i64 = lease.groups()[0].parse().unwrap();
        assert_eq!(lease.concat().unwrap(), large(seed, 200));
        lease.ack().await.unwrap();
    }
    until("nothing is in use", || served.regions.stats().in_use == 0).await;
}

#[tokio::test]
async fn a_killed_server_leaves_what_was_taken_and_its_socket_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("queue.sock");
    let victim = Victim::start("server", &path);
    let client = LocalQueue::new(LocalConfig::new(&path)).unwrap();
    let spec = PartitionSpec::new("train", ["train"], 1 << 16);
    client.declare(spec.clone()).await.unwrap();
    client.put("train", Put::group("a", large(4, 200)), None).await.unwrap();
    let lease = take(&client).await;
    drop(victim);
    assert!(path.exists());
    let queue = TransferQueue::open(QueueConfig { dir: None, ..QueueConfig::default() }).unwrap();
    let _served = serve_in(dir, queue, LocalServiceConfig::default());
    assert_eq!(lease.batches()[0], large(4, 200), "rows outlive their server");
    assert!(matches!(lease.ack().await, Err(QueueError::LeaseGone { .. })));
    client.declare(spec).await.unwrap();
    client.put("train", Put::group("b", large(5, 200)), None).await.unwrap();
    assert_eq!(take(&client).await.concat().unwrap(), large(5, 200));
}

/// `cargo test --release -p rolldock-queue --test local -- --ignored --nocapture speed`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn speed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("queue.sock");
    let _server = Victim::start("server", &path);
    let client = LocalQueue::new(LocalConfig::new(&path)).unwrap();
    client.declare(PartitionSpec::new("train", ["train"], 1 << 16)).await.unwrap();
    // 29 MB.
    let batch = large(1, 2450);
    let from = vec![1_u8; 29_400_000];
    let mut into = vec![2_u8; 29_400_000];
    let mut times = [(); 3].map(|()| Vec::new());
    for round in 0..20 {
        let started = Instant::now();
        into.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut into);
        times[0].push(started.elapsed());
        let started = Instant::now();
        client.put("train", Put::group(format!("{round}"), batch.clone()), None).await.unwrap();
        times[1].push(started.elapsed());
        let started = Instant::now();
        let lease = take(&client).await;
        times[2].push(started.elapsed());
        assert_eq!(lease.rows().len(), 2450);
        lease.ack().await.unwrap();
    }
    for (what, mut times) in ["memcpy", "put", "take"].into_iter().zip(times) {
        let first = times[0];
        times.sort();
        println!(
            "{what}: first {first:?}, median {:?}, {:.1} GB/s",
            times[10],
            0.0294 / times[10].as_secs_f64()
        );
    }
}
