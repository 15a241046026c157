//! If a queue has filled its disk, consuming the rows is enough to free space, even after a restart. The queue
//! then accepts puts again.
//!
//! The disk is a small tmpfs in the mount namespace of a child process. If the system does not allow such a
//! mount, the test prints a note and is skipped. `journal/writer/tests.rs` tests the same rule with an
//! injected limit.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use rolldock_queue::{
    PartitionSpec, Put, Queue, QueueConfig, QueueError, RemoteConfig, RemoteQueue, ServiceConfig, Take,
    TransferQueue, serve,
};
use support::rows;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// The environment variable that tells the child the directory of the small disk.
const DISK: &str = "ROLLDOCK_TEST_SMALL_DISK";
const DISK_BYTES: usize = 16 << 20;
/// The number of rows of each put.
const ROWS: i64 = 4;

/// A queue on the small disk. Remote clients use the queue, so the queue writes the leases to the disk, too.
struct Served {
    queue: TransferQueue,
    client: RemoteQueue,
    end: CancellationToken,
    serving: AbortOnDropHandle<std::io::Result<()>>,
}

impl Served {
    async fn open(disk: &Path) -> Self {
        let config = QueueConfig { dir: Some(disk.join("queue")), ..QueueConfig::default() };
        let queue = TransferQueue::open(config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let end = CancellationToken::new();
        let serving = serve(queue.clone(), listener, ServiceConfig::default(), end.clone());
        let serving = AbortOnDropHandle::new(TaskTracker::new().spawn(serving));
        let client = RemoteQueue::new(RemoteConfig::new(url)).unwrap();
        Self { queue, client, end, serving }
    }

    async fn put(&self, round: &str, number: i64) -> Result<(), QueueError> {
        let put = Put::group(format!("{round}-{number}"), rows(number * ROWS, ROWS, 2048));
        self.client.put("train", put, None).await.map(drop)
    }

    /// Puts until the disk is full, and returns the number of acknowledged puts.
    async fn fill(&self, round: &str) -> i64 {
        for number in 0..10_000 {
            match self.put(round, number).await {
                Ok(()) => {}
                Err(QueueError::DiskFull { dir, reason }) => {
                    assert!(dir.ends_with("queue"), "{reason}");
                    return number;
                }
                Err(error) => panic!("put={number}: {error}"),
            }
        }
        panic!("the disk is never full");
    }

    /// Takes and acks the rows one by one, which needs the most journal space. Returns the ids of the rows.
    async fn drain(&self) -> Vec<i64> {
        let mut ids = Vec::new();
        while let Some(lease) = self.client.take("train", &Take::rows("train", 1)).await.unwrap() {
            ids.push(lease.batches()[0]["id"].as_primitive::<Int64Type>().value(0));
            lease.ack().await.unwrap();
        }
        ids
    }

    async fn close(self) {
        self.end.cancel();
        self.serving.await.unwrap().unwrap();
        self.client.close().await;
        self.queue.close();
    }
}

/// Fills the rest of the disk, as another program may do.
fn take_the_rest(disk: &Path) {
    let mut file = OpenOptions::new().create(true).append(true).open(disk.join("another")).unwrap();
    for piece in [1 << 16, 1 << 12, 1] {
        while file.write_all(&vec![0; piece]).is_ok() {}
    }
}

/// Runs in the child process.
#[tokio::test]
#[ignore = "the child of the test below"]
async fn on_the_small_disk() {
    let Some(disk) = std::env::var_os(DISK) else { return };
    let disk = Path::new(&disk);
    let served = Served::open(disk).await;
    served.client.declare(PartitionSpec::new("train", ["train"], 65_536)).await.unwrap();

    let puts = served.fill("first").await;
    take_the_rest(disk);
    let expected: Vec<i64> = (0..puts * ROWS).collect();
    assert!(puts > 100, "puts={puts}");
    assert!(matches!(served.put("first", puts).await, Err(QueueError::DiskFull { .. })));
    assert_eq!(served.drain().await, expected, "every row is consumed on the full disk");
    for number in 0..puts / 2 {
        served.put("second", number).await.expect("consuming made room, without a restart");
    }
    served.client.clear_all("train").await.unwrap();

    let puts = served.fill("third").await;
    take_the_rest(disk);
    served.close().await;
    let served = Served::open(disk).await;
    let lease = served.client.take("train", &Take::rows("train", 3)).await.unwrap().unwrap();
    assert_eq!(lease.rows().len(), 3);
    drop(lease);
    let mut drained = served.drain().await;
    drained.sort_unstable();
    assert_eq!(drained, (0..puts * ROWS).collect::<Vec<_>>(), "after a restart on the full disk");
    served.put("fourth", 0).await.unwrap();
    assert!(served.queue.verify().await.unwrap().is_sound());
    served.queue.remove("train").await.unwrap();
    served.close().await;
}

#[test]
fn a_queue_that_has_filled_its_disk_is_drained_by_consuming_alone_and_goes_on() {
    let disk = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size={DISK_BYTES} none \"${DISK}\" || exit 1");
    let script = format!("{mount}; exec \"$0\" --exact on_the_small_disk --ignored");
    for namespaces in ["--user --map-root-user --mount", "--mount"] {
        let child = Command::new("unshare")
            .args(namespaces.split(' '))
            .args(["sh", "-c", &script])
            .arg(std::env::current_exe().unwrap())
            .env(DISK, disk.path())
            .output();
        let Ok(child) = child else { break };
        let said =
            format!("{}{}", String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
        match child.status.code() {
            Some(0) => {
                assert!(said.contains("1 passed"), "{said}");
                return;
            }
            // The namespaces or the mount are not allowed here.
            Some(1) => println!("unshare {namespaces}: {said}"),
            _ => panic!("{said}"),
        }
    }
    println!("skipped: a test cannot mount a small tmpfs on this machine");
}
