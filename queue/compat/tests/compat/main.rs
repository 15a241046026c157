//! Tests for known faults of other queues, each with the compatible calls of that queue.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod data_pool;
mod transfer_dock;
mod transfer_queue;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray};
use rolldock_queue::{
    LocalConfig, LocalListener, LocalQueue, LocalServiceConfig, PartitionSpec, Queue, QueueConfig,
    QueueError, RemoteConfig, RemoteQueue, ServiceConfig, TransferQueue, Unfinished, serve, serve_local,
};
use rolldock_queue_compat::{
    DataPool, DockConfig, MetaRequest, Path as StepPath, Pick, PoolConfig, Step, TransferDock,
    TransferQueueClient,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

fn memory() -> TransferQueue {
    TransferQueue::open(QueueConfig::default()).unwrap()
}

fn on_disk(dir: &Path) -> TransferQueue {
    // The journal is small, so that it is rewritten too.
    let config = QueueConfig { dir: Some(dir.to_owned()), journal_bytes: 2048, ..QueueConfig::default() };
    TransferQueue::open(config).unwrap()
}

fn step(prompt: &str, trajectory: &str, step_index: u32, is_last: bool) -> Step {
    Step {
        prompt_ids: vec![1, 2, 3],
        response_ids: vec![step_index; 2],
        reward: 0.5,
        trajectory_uid: trajectory.to_owned(),
        prompt_uid: prompt.to_owned(),
        step_index,
        policy_version: 0,
        is_last,
        metadata: json!({ "tool": "search" }),
        path: StepPath::default(),
    }
}

fn pool_config(capacity: usize) -> PoolConfig {
    let config = PoolConfig::new("pool", ["train"], capacity, 2);
    PoolConfig { group_deadline: Some(Duration::from_secs(60)), ..config }
}

async fn pool(config: PoolConfig) -> DataPool {
    DataPool::open(Arc::new(memory()), config).await.unwrap()
}

/// Submits both trajectories of a prompt, with one step each.
async fn submit_group(pool: &DataPool, prompt: &str) {
    let steps = ["a", "b"].map(|name| step(prompt, &format!("{prompt}-{name}"), 0, true));
    pool.submit_steps(&steps).await.unwrap();
}

fn texts(batch: &RecordBatch, column: &str) -> Vec<String> {
    batch[column].as_string::<i32>().iter().map(|text| text.unwrap().to_owned()).collect()
}

fn ints(name: &str, values: &[i64]) -> RecordBatch {
    let values: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
    RecordBatch::try_from_iter([(name, values)]).unwrap()
}

fn longs(batch: &RecordBatch, name: &str) -> Vec<i64> {
    batch[name].as_primitive::<Int64Type>().values().to_vec()
}

/// Text, JSON and lists of different lengths.
fn mixed() -> RecordBatch {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["", "ünïcode"]));
    let json: ArrayRef = Arc::new(StringArray::from(vec![r#"{"a":[1,null]}"#, "null"]));
    let ragged: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([
        Some(vec![Some(1), Some(2), Some(3)]),
        Some(vec![]),
    ]));
    RecordBatch::try_from_iter([("text", texts), ("json", json), ("ragged", ragged)]).unwrap()
}

async fn client(spec: PartitionSpec) -> TransferQueueClient {
    let queue = memory();
    queue.declare(spec).await.unwrap();
    TransferQueueClient::new(Arc::new(queue))
}

fn spec() -> PartitionSpec {
    PartitionSpec::new("train", ["actor", "ref"], 8)
}

/// Uses keys as clients of a TransferQueue do. The client may use a queue in this process or a server.
async fn keys_tour(client: &TransferQueueClient) {
    let keys = ["k0", "k1"].map(str::to_owned);
    let tags = vec![json!({ "step": 1 }), Value::Null];
    client.kv_batch_put(&keys, "train", Some(ints("id", &[10, 11])), Some(tags)).await.unwrap();
    client.kv_put("k2", "train", Some(ints("id", &[12])), Some(json!("late"))).await.unwrap();
    let list = client.kv_list("train").await.unwrap();
    assert_eq!(list["k0"], json!({ "step": 1 }));
    assert_eq!((&list["k1"], &list["k2"], list.len()), (&Value::Null, &json!("late"), 3));
    // Add fields to existing keys and to a new one, and then replace only a tag.
    let keys = ["k2", "k3", "k0"].map(str::to_owned);
    client.kv_batch_put(&keys, "train", Some(ints("reward", &[2, 3, 0])), None).await.unwrap();
    client.kv_put("k1", "train", None, Some(json!("now"))).await.unwrap();
    assert_eq!(client.kv_list("train").await.unwrap()["k1"], json!("now"));
    let reward = ["reward".to_owned()];
    let read = client.kv_batch_get(&keys, "train", Some(&reward)).await.unwrap();
    assert_eq!(longs(&read, "reward"), [2, 3, 0]);
    let both = client.kv_batch_get(&["k0".to_owned(), "k2".to_owned()], "train", None).await.unwrap();
    assert_eq!((longs(&both, "id"), longs(&both, "reward")), (vec![10, 12], vec![0, 2]));
    let missing = client.kv_batch_get(&["k1".to_owned()], "train", Some(&reward)).await;
    assert_eq!(missing, Err(QueueError::ColumnMissing { column: "reward".to_owned() }));
    let twice = client.kv_put("k0", "train", Some(ints("id", &[1])), None).await;
    assert_eq!(twice, Err(QueueError::ColumnExists { column: "id".to_owned() }));
    client.kv_clear(&["k0".to_owned(), "k3".to_owned()], "train").await.unwrap();
    let left: Vec<String> = client.kv_list("train").await.unwrap().into_keys().collect();
    assert_eq!(left, ["k1", "k2"]);
    let gone = client.kv_batch_get(&["k0".to_owned()], "train", None).await;
    assert!(matches!(gone, Err(QueueError::UnknownKey { .. })), "{gone:?}");
    client.clear_partition("train").await.unwrap();
    assert!(client.kv_list("train").await.unwrap().is_empty());
}

#[tokio::test]
async fn the_compatible_calls_work_against_a_server_too() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = serve(memory(), listener, ServiceConfig::default(), CancellationToken::new());
    let _server = AbortOnDropHandle::new(TaskTracker::new().spawn(serving));
    compat_tour(Arc::new(RemoteQueue::new(RemoteConfig::new(url)).unwrap())).await;
}

#[tokio::test]
async fn the_compatible_calls_work_through_shared_memory_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("queue.sock");
    let listener = LocalListener::bind(&path, LocalServiceConfig::default()).unwrap();
    let serving = serve_local(memory(), listener, CancellationToken::new());
    let _server = AbortOnDropHandle::new(TaskTracker::new().spawn(serving));
    compat_tour(Arc::new(LocalQueue::new(LocalConfig::new(&path)).unwrap())).await;
}

/// Uses all three interfaces on a queue behind a server.
async fn compat_tour(remote: Arc<dyn Queue>) {
    remote.declare(spec()).await.unwrap();
    let client = TransferQueueClient::new(Arc::clone(&remote));
    keys_tour(&client).await;
    client.put_group("train", "g", ints("id", &[1, 2])).await.unwrap();
    let request = MetaRequest { whole_groups: true, ..MetaRequest::new("train", "actor", 1) };
    let meta = client.get_meta(&request).await.unwrap().unwrap();
    assert_eq!((meta.meta().rows.len(), meta.lease().groups()), (2, &["g", "g"].map(str::to_owned)[..]));
    assert_eq!(longs(&client.get_data(meta.meta(), None).await.unwrap(), "id"), [1, 2]);
    meta.consume().await.unwrap();

    let config = DockConfig::new("dock", [("train", vec![])], 4, 2);
    let dock = TransferDock::open(Arc::clone(&remote), config).await.unwrap();
    dock.put_experience(&mixed(), &[0, 1]).await.unwrap();
    let read = dock.get_experience("train", None, Pick::Prompts(1), None).await.unwrap().unwrap();
    assert_eq!((read.batch(), read.indexes()), (&mixed(), &[0, 1][..]));
    read.consume().await.unwrap();
    dock.clear().await.unwrap();

    // One client submits, and another one fetches.
    let config = || PoolConfig {
        group_deadline: Some(Duration::from_millis(50)),
        unfinished: Unfinished::Give,
        ..pool_config(64)
    };
    let patient = PoolConfig { group_deadline: Some(Duration::from_secs(60)), ..config() };
    let producer = DataPool::open(Arc::clone(&remote), patient).await.unwrap();
    let consumer = DataPool::open(remote, config()).await.unwrap();
    let first = step("p", "a", 0, false);
    producer.submit_step(first.clone()).await.unwrap();
    producer.submit_step(first.clone()).await.unwrap();
    let other = producer.submit_step(Step { reward: 3.0, ..first }).await;
    assert!(matches!(other, Err(QueueError::StepDiffers { .. })), "{other:?}");
    let batch = consumer.wait_batch("train", 1, Duration::from_secs(10)).await.unwrap().unwrap();
    assert_eq!((batch.prompt_uids(), batch.is_incomplete()), (vec!["p"], true));
    let late = producer.submit_step(step("p", "a", 1, true)).await;
    assert!(matches!(late, Err(QueueError::GroupClosed { .. })), "{late:?}");
    batch.consume().await.unwrap();
    submit_group(&producer, "q").await;
    assert_eq!(consumer.fetch_batch("train", 1).await.unwrap().unwrap().prompt_uids(), ["q"]);
}
