//! Tests of the queue over HTTP. They check that this queue implements the trait and returns the same errors
//! as the other queues, and that no rows are lost with a connection.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod away;
mod files;
mod limits;
mod load;
mod requests;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{RecordBatch, StringArray};
use rolldock_queue::{
    PartitionSpec, Put, Queue, QueueConfig, RemoteConfig, RemoteQueue, ServiceConfig, Take, TransferQueue,
    serve,
};
use tokio::io::AsyncWriteExt;
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

    // A waiting take leases nothing after its client has gone.
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

/// A caller may drop its take after the server has granted the lease and before the answer has arrived. The
/// client must then end the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_that_is_dropped_at_any_moment_leaves_no_row_leased() {
    let served = served(ServiceConfig::default()).await;
    let client = served.client();
    client.declare(spec()).await.unwrap();
    client.put("train", Put::group("a", batch(0, 4)), soon()).await.unwrap();
    let mut dropped_early = 0;
    for moment in 0..400 {
        let after = Duration::from_micros(moment * 5);
        let started = Instant::now();
        let gone = async {
            while started.elapsed() < after {
                tokio::task::yield_now().await;
            }
        };
        let take = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(60));
        tokio::select! {
            biased;
            () = gone => dropped_early += 1,
            taken = client.take("train", &take) => taken.unwrap().unwrap().nack().await.unwrap(),
        }
    }
    client.close().await;
    // A take that had no answer ends when the server notices that the client's connection has ended.
    let mut leased = 1;
    for _ in 0..1_000 {
        let inspection = client.inspect().await.unwrap();
        leased = inspection.partitions[0].leases.len();
        if leased == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(leased, 0, "{dropped_early} takes were dropped before they had an outcome");
    assert!(dropped_early > 0, "every take had an outcome before it was dropped");
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
