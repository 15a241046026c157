//! Clients and servers that run in other processes and are killed, and a measurement with such a server.

use rolldock_queue::{
    LocalConfig, LocalListener, LocalQueue, LocalServiceConfig, PartitionSpec, Put, Queue, QueueConfig,
    QueueError, TransferQueue, serve_local,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{large, serve_in, served, take, until};

/// The client or server that the tests below start in another process. It runs until it is killed.
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

/// A process that is killed with SIGKILL when this is dropped.
struct Victim(std::process::Child);

impl Victim {
    fn start(role: &str, path: &std::path::Path) -> Self {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "deaths::victim"]);
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

/// Measures puts and takes of a large batch, and a `memcpy` for comparison. Run the measurement with
/// `cargo test --profile dist -p rolldock-queue --test local -- --ignored --nocapture speed`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn speed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("queue.sock");
    let _server = Victim::start("server", &path);
    let client = LocalQueue::new(LocalConfig::new(&path)).unwrap();
    client.declare(PartitionSpec::new("train", ["train"], 1 << 16)).await.unwrap();
    // The batch has 29 MB.
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
