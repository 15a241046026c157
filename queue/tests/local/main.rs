//! Tests of the queue over shared memory. They check that this queue implements the trait and returns the
//! same errors as the other queues, that no rows are copied through sockets, and that no memory is left
//! behind.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod connections;
mod deaths;
mod regions;
#[path = "../support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Float32Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::Field;
use rolldock_queue::{
    Lease, LocalConfig, LocalListener, LocalQueue, LocalServiceConfig, PartitionSpec, Put, Queue,
    QueueConfig, Regions, Take, TransferQueue, serve_local,
};
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

/// Waits until a condition holds that depends on the other end of a socket.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < give_up, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Rows of about 12 KB each.
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
async fn different_columns_come_under_one_schema_with_nulls() {
    let served = served();
    let client = served.declared().await;
    client.put("train", Put::group("a", batch(0, 1)), soon()).await.unwrap();
    client.put("train", Put::group("b", batch(1, 1).project(&[0]).unwrap()), soon()).await.unwrap();
    let lease = client.take("train", &Take::groups("train", 2)).await.unwrap().unwrap();
    let rows = lease.concat().unwrap();
    assert_eq!((rows.num_rows(), rows.column_by_name("word").unwrap().null_count()), (2, 1));
}

fn framed(words: &[u8]) -> Vec<u8> {
    let mut frame = (words.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&0_u32.to_le_bytes());
    frame.extend_from_slice(words);
    frame
}
