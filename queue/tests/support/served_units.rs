//! A controller and its storage units. Each of them is a separate server.
#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, ListArray, RecordBatch};
use rolldock_queue::{
    PartitionSpec, PartitionStats, Queue, QueueConfig, RemoteConfig, RemoteQueue, ServiceConfig,
    TransferQueue, UnitConfig, UnitStatus, run_unit, serve,
};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// The partition in which a unit keeps all of its rows.
pub(crate) const BLOBS: &str = "_blobs";

/// A served queue. The server ends when this is dropped.
pub(crate) struct Server {
    pub(crate) queue: TransferQueue,
    pub(crate) address: SocketAddr,
    pub(crate) end: CancellationToken,
    pub(crate) tasks: Vec<AbortOnDropHandle<()>>,
}

pub(crate) fn open(dir: Option<&Path>) -> TransferQueue {
    TransferQueue::open(QueueConfig { dir: dir.map(Path::to_owned), ..QueueConfig::default() }).unwrap()
}

pub(crate) async fn served(dir: Option<&Path>) -> Server {
    served_with(dir, ServiceConfig::default()).await
}

pub(crate) async fn served_with(dir: Option<&Path>, config: ServiceConfig) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (queue, address, end) = (open(dir), listener.local_addr().unwrap(), CancellationToken::new());
    let serving = serve(queue.clone(), listener, config, end.clone());
    let task = TaskTracker::new().spawn(async move { serving.await.unwrap() });
    Server { queue, address, end, tasks: vec![AbortOnDropHandle::new(task)] }
}

impl Server {
    pub(crate) fn client(&self) -> RemoteQueue {
        RemoteQueue::new(RemoteConfig::new(format!("http://{}", self.address))).unwrap()
    }

    pub(crate) async fn unit(controller: &Server, dir: Option<PathBuf>) -> Server {
        Self::unit_with(controller, dir, Duration::from_millis(200)).await
    }

    pub(crate) async fn unit_with(controller: &Server, dir: Option<PathBuf>, orphan_age: Duration) -> Server {
        let mut unit = served(dir.as_deref()).await;
        let config = UnitConfig {
            orphan_age,
            ..UnitConfig::new(controller.client(), format!("http://{}", unit.address))
        };
        let (queue, end) = (unit.queue.clone(), unit.end.clone());
        let running = async move { run_unit(&queue, dir.as_deref(), config, &end).await.unwrap() };
        unit.tasks.push(AbortOnDropHandle::new(TaskTracker::new().spawn(running)));
        unit
    }

    /// Ends the server. Its directory can be opened again afterwards.
    pub(crate) async fn die(self) {
        self.end.cancel();
        for task in self.tasks {
            task.await.unwrap();
        }
        self.queue.close();
    }
}

pub(crate) fn spec() -> PartitionSpec {
    PartitionSpec::new("train", ["train"], 1000)
}

pub(crate) fn batch(first: i64, rows: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows));
    let tokens = (first..first + rows).map(|id| Some((0..id % 5).map(Some)));
    let tokens: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(tokens));
    RecordBatch::try_from_iter([("id", ids), ("tokens", tokens)]).unwrap()
}

pub(crate) fn names(rows: i64) -> RecordBatch {
    let names = (0..rows).map(|row| format!("n{row}"));
    RecordBatch::try_from_iter([("name", Arc::new(arrow_array::StringArray::from_iter_values(names)) as _)])
        .unwrap()
}

pub(crate) async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(20);
    while !holds().await {
        assert!(Instant::now() < give_up, "it never came about");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn until_live(client: &RemoteQueue, count: usize) {
    until(async || {
        let units = client.units().await.unwrap();
        units.iter().filter(|unit| unit.status == UnitStatus::Live).count() == count
    })
    .await;
}

pub(crate) async fn stats(client: &RemoteQueue) -> PartitionStats {
    client.status("train").await.unwrap()
}
