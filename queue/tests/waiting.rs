//! A client that waits costs one connection and no processor time. This test is alone in its file, because it
//! measures the whole process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use rolldock_listener::{ConnectionLimits, Connections};
use rolldock_queue::{
    PartitionSpec, Put, Queue, QueueConfig, RemoteConfig, RemoteQueue, ServiceConfig, Take, TransferQueue,
    serve,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

const CLIENTS: usize = 2_000;

/// The processor time that this process has used, in seconds.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: f64 = [11, 12].map(|place: usize| fields[place].parse::<f64>().unwrap()).iter().sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// Raises the limit of open files, because both ends of each connection are in this process.
fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    let needed = CLIENTS as u64 * 2 + 200;
    if limit.current.is_some_and(|current| current < needed) {
        let raised = Rlimit { current: Some(needed), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).unwrap();
    }
}

#[tokio::test]
async fn two_thousand_clients_that_wait_cost_no_processor_time() {
    allow_files();
    let queue = TransferQueue::open(QueueConfig { dir: None, ..QueueConfig::default() }).unwrap();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 1 << 12)).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let tasks = TaskTracker::new();
    let limits = ConnectionLimits { max: Some(2 * CLIENTS), ..ConnectionLimits::default() };
    let config =
        ServiceConfig { connections: Connections::new("queue", &limits), ..ServiceConfig::default() };
    let serving = serve(queue.clone(), listener, config, CancellationToken::new());
    let _served = AbortOnDropHandle::new(tasks.spawn(serving));
    let until = Instant::now() + Duration::from_secs(300);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let client = RemoteQueue::new(RemoteConfig::new(&url)).unwrap();
            AbortOnDropHandle::new(tasks.spawn(async move {
                let take = Take::rows("train", 1).until(until);
                client.take("train", &take).await.unwrap().unwrap().ack().await.unwrap();
            }))
        })
        .collect();
    // After this time all clients wait at the server.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = processor();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let used = processor() - before;
    // This is at most 5 % of one core, for the server and all clients together.
    assert!(used < 0.1, "{used} s of processor time in 2 s");
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..CLIENTS as i64));
    let rows = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    partition.put(Put::group("all", rows), None).await.unwrap();
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(partition.stats().dispositions.acked, CLIENTS as u64);
}
