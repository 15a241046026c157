//! Tests of connections: clients that wait or go away, and servers that do not answer.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rolldock_queue::{
    LocalConfig, LocalListener, LocalQueue, LocalServiceConfig, PartitionSpec, Put, Queue, QueueConfig,
    QueueError, Take, TransferQueue,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::support::tour::{batch, soon};
use super::{framed, large, serve_in, served, take, until};

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

    // Rows that a client still reads keep its connection open. A dead process no longer reads rows.
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
    // The region that was lent to the dead client is not lent again. Its leased rows can be taken.
    for _ in 0..2 {
        let lease = take(&keeper).await;
        assert_eq!(lease.concat().unwrap(), large(1, 200));
        lease.ack().await.unwrap();
    }
    until("nothing is in use", || served.regions.stats().in_use == 0).await;
    assert!(served.regions.stats().idle <= 1, "{:?}", served.regions.stats());
}

#[tokio::test]
async fn garbage_closes_only_its_connection() {
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
        // The server sends its hello and then closes the connection.
        peer.read_to_end(&mut Vec::new()).await.ok();
        client.put("train", Put::group("a", batch(0, 1)), soon()).await.unwrap();
        take(&client).await.ack().await.unwrap();
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
async fn waiting_takes_end_when_the_server_ends() {
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
    let held = take(&client).await;

    served.end.cancel();
    served.task.await.unwrap().unwrap();
    served.queue.close();
    drop(served.queue);
    let starting = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        serve_in(served.dir, open(), LocalServiceConfig::default())
    };
    let renewing = async { held.renew().await };
    let (renewed, _served) = tokio::join!(renewing, starting);
    renewed.unwrap();
    assert_eq!(held.batches()[0], large(2, 100), "rows outlive their server");
    held.nack().await.unwrap();
    let lease = take(&client).await;
    assert_eq!(lease.concat().unwrap(), large(2, 100));
    lease.ack().await.unwrap();
    let away = LocalConfig { patience: Duration::ZERO, ..LocalConfig::new("/nowhere/queue.sock") };
    let refused = LocalQueue::new(away).unwrap().inspect().await;
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
    // The server accepts connections but never answers.
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
    // A new server replaces the socket of a dead server. It never removes a file that is not a socket.
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
