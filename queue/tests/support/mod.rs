//! Queues for tests, and comparisons of the state that a user can see.
#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

pub(crate) mod copied;
pub(crate) mod tour;

use std::io::{Cursor, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, Float32Array, Int64Array, ListArray, RecordBatch};
use parking_lot::Mutex;
use rolldock_queue::{
    Durability, Partition, PartitionSpec, Put, QueueConfig, QueueError, RowHandle, Sampler, Take, TaskSpec,
    TransferQueue,
};

pub(crate) fn rows(first: i64, count: i64, tokens: i32) -> RecordBatch {
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + count));
    let lists = (0..count).map(|row| Some((0..tokens).map(move |at| Some(at + row as i32))));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
    RecordBatch::try_from_iter([("id", id), ("response_ids", lists)]).unwrap()
}

pub(crate) fn advantages(count: usize) -> RecordBatch {
    let column: ArrayRef = Arc::new(Float32Array::from_iter_values((0..count).map(|row| row as f32 / 8.0)));
    RecordBatch::try_from_iter([("advantage", column)]).unwrap()
}

pub(crate) fn in_memory() -> TransferQueue {
    TransferQueue::open(QueueConfig::default()).unwrap()
}

pub(crate) fn on_disk(dir: &Path) -> TransferQueue {
    let config =
        QueueConfig { dir: Some(dir.to_owned()), durability: Durability::Os, ..QueueConfig::default() };
    TransferQueue::open(config).unwrap()
}

pub(crate) fn spec(name: &str, capacity: usize) -> PartitionSpec {
    let mut spec = PartitionSpec::new(name, ["train", "score"], capacity);
    spec.tasks[1] = TaskSpec { name: "score".to_owned(), columns: vec!["advantage".to_owned()] };
    spec.length_columns = vec!["response_ids".to_owned()];
    spec
}

/// A buffer to which a snapshot is written.
#[derive(Clone, Default)]
pub(crate) struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Bytes {
    /// Removes and returns the bytes that were written.
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(crate) async fn snapshot(queue: &TransferQueue, partition: Option<&str>) -> Vec<u8> {
    let bytes = Bytes::default();
    queue.snapshot(partition, bytes.clone()).await.unwrap();
    bytes.take()
}

pub(crate) async fn restore(queue: &TransferQueue, bytes: &[u8]) -> Result<(), QueueError> {
    queue.restore(Cursor::new(bytes.to_vec())).await.map(drop)
}

/// A row as a consumer sees it: its handle, group, version and values.
pub(crate) type Seen = (RowHandle, String, u64, RecordBatch);

/// The rows that a task can take, in the order of `sampler`. They are nacked afterwards.
pub(crate) async fn seen(partition: &Partition, task: &str, sampler: Sampler) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut held = Vec::new();
    while let Some(lease) = partition.take(&Take { sampler, ..Take::rows(task, 7) }).await.unwrap() {
        let mut at = 0;
        for batch in lease.batches() {
            for row in 0..batch.num_rows() {
                let (handle, group) = (lease.rows()[at], lease.groups()[at].clone());
                seen.push((handle, group, lease.policy_versions()[at], batch.slice(row, 1)));
                at += 1;
            }
        }
        held.push(lease);
    }
    for lease in held {
        lease.nack().await.unwrap();
    }
    seen
}

/// All rows of a partition, as each task sees them with each sampler.
pub(crate) async fn all_of(queue: &TransferQueue, name: &str) -> Vec<Vec<Seen>> {
    let partition = queue.partition(name).unwrap();
    let mut all = Vec::new();
    for task in ["train", "score"] {
        for sampler in [Sampler::Fifo, Sampler::Priority, Sampler::Freshest] {
            all.push(seen(&partition, task, sampler).await);
        }
    }
    all
}

pub(crate) async fn assert_same(left: &TransferQueue, right: &TransferQueue, name: &str) {
    assert_eq!(all_of(left, name).await, all_of(right, name).await);
    let (one, other) = (left.partition(name).unwrap(), right.partition(name).unwrap());
    assert_eq!(one.inspect(), other.inspect());
    assert_eq!(one.records(), other.records());
    assert_eq!(one.spec(), other.spec());
    let (one, other) = (left.verify().await.unwrap(), right.verify().await.unwrap());
    assert!(one.is_sound() && other.is_sound(), "{one:?} {other:?}");
}

/// Fills a queue with rows in many states: groups that are whole, open, partly acked or cleared; columns that
/// span groups; priorities, versions, tokens and records; and a second partition.
pub(crate) async fn furnish(queue: &TransferQueue) -> Vec<RowHandle> {
    let partition = queue.declare(spec("train", 4096)).await.unwrap();
    let mut handles = Vec::new();
    for group in 0..12_i64 {
        let put = Put {
            policy_version: (group % 4) as u64,
            priority: group * 7 % 5,
            token: Some(format!("token {group}")),
            record: Some(format!("record {group}, ünïcode")),
            ..Put::group(format!("g{group}"), rows(group * 8, 8, 16))
        };
        handles.push(partition.put(put, None).await.unwrap());
    }
    let several: Vec<RowHandle> = handles[2..9].concat();
    partition.write_columns(&several, advantages(several.len())).await.unwrap();
    partition.write_columns(&handles[10], advantages(8)).await.unwrap();
    partition.take(&Take::groups("score", 2)).await.unwrap().unwrap().ack().await.unwrap();
    partition.take(&Take::rows("train", 11)).await.unwrap().unwrap().ack().await.unwrap();
    partition.clear(&handles[4][1..6]).await.unwrap();
    partition.clear(&handles[5]).await.unwrap();
    for part in 0..2 {
        let batch = rows(900 + part * 3, 3, 16);
        partition.put(Put { group_size: 8, ..Put::group("open", batch) }, None).await.unwrap();
    }
    let half = Put { group_size: 8, ..Put::group("hollow", rows(950, 4, 16)) };
    let hollow = partition.put(half, None).await.unwrap();
    partition.clear(&hollow).await.unwrap();
    partition.forget_records(2).await.unwrap();
    let other = queue.declare(PartitionSpec::new("other", ["train", "score"], 16)).await.unwrap();
    other.put(Put::group("x", rows(5_000, 2, 4)), None).await.unwrap();
    handles.concat()
}
