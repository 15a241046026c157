//! Faults of other queues, by name, through the faces that have their calls.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type, UInt32Type};
use arrow_array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray};
use arrow_schema::DataType;
use rolldock_queue::face::{
    DataPool, DockConfig, MetaRequest, Pick, PoolConfig, Step, TransferDock, TransferQueueClient,
};
use rolldock_queue::{
    LocalConfig, LocalListener, LocalQueue, LocalServiceConfig, OnFull, PartitionSpec, Queue, QueueConfig,
    QueueError, RemoteConfig, RemoteQueue, ServiceConfig, Share, TransferQueue, Unfinished, serve,
    serve_local,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

fn memory() -> TransferQueue {
    TransferQueue::open(QueueConfig::default()).unwrap()
}

fn on_disk(dir: &Path) -> TransferQueue {
    // Small, so that the journal is rewritten too.
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
    }
}

fn pool_config(capacity: usize) -> PoolConfig {
    let config = PoolConfig::new("pool", ["train"], capacity, 2);
    PoolConfig { group_deadline: Some(Duration::from_secs(60)), ..config }
}

async fn pool(config: PoolConfig) -> DataPool {
    DataPool::open(Arc::new(memory()), config).await.unwrap()
}

/// Both trajectories of a prompt, of one step each.
async fn submit_group(pool: &DataPool, prompt: &str) {
    let steps = ["a", "b"].map(|name| step(prompt, &format!("{prompt}-{name}"), 0, true));
    pool.submit_steps(&steps).await.unwrap();
}

fn texts(batch: &RecordBatch, column: &str) -> Vec<String> {
    batch[column].as_string::<i32>().iter().map(|text| text.unwrap().to_owned()).collect()
}

fn flags(batch: &RecordBatch, column: &str) -> Vec<bool> {
    batch[column].as_boolean().iter().map(Option::unwrap).collect()
}

#[tokio::test(start_paused = true)]
async fn one_unfinished_rollout_at_the_head_blocks_nobody() {
    let pool = pool(pool_config(64)).await;
    pool.submit_step(step("slow", "slow-a", 0, false)).await.unwrap();
    assert!(pool.fetch_batch("train", 4).await.unwrap().is_none(), "none, at once");
    submit_group(&pool, "p").await;
    submit_group(&pool, "q").await;
    let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
    assert_eq!(batch.prompt_uids(), ["p"]);
    batch.consume().await.unwrap();
    // The slow one is fetched when its last trajectory is complete, in whatever order its steps came.
    pool.submit_step(step("slow", "slow-b", 1, false)).await.unwrap();
    pool.submit_step(step("slow", "slow-a", 1, true)).await.unwrap();
    pool.submit_step(step("slow", "slow-b", 0, false)).await.unwrap();
    let dropped = pool.fetch_batch("train", 4).await.unwrap().unwrap();
    assert_eq!(dropped.prompt_uids(), ["q"]);
    drop(dropped);
    let waiting = pool.wait_batch("train", 4, Duration::from_secs(30));
    let (batch, ()) = tokio::join!(waiting, async {
        tokio::task::yield_now().await;
        pool.complete_trajectory("slow-b").await.unwrap();
        pool.complete_trajectory("slow-b").await.unwrap();
    });
    drop(batch);
    let batch = pool.fetch_batch("train", 4).await.unwrap().unwrap();
    assert_eq!(batch.prompt_uids(), ["slow", "q"]);
    assert_eq!(texts(batch.batch(), "trajectory_uid")[..4], ["slow-a", "slow-a", "slow-b", "slow-b"]);
    assert_eq!(batch.batch()["step_index"].as_primitive::<UInt32Type>().values()[..4], [0, 1, 0, 1]);
    assert!(!batch.is_incomplete());
}

#[tokio::test(start_paused = true)]
async fn late_steps_make_no_zombie_groups() {
    let queue = Arc::new(memory());
    let config = PoolConfig { unfinished: Unfinished::Give, ..pool_config(64) };
    let pool = DataPool::open(queue.clone(), config).await.unwrap();
    let closed = |outcome: Result<(), QueueError>| {
        assert!(matches!(outcome, Err(QueueError::GroupClosed { .. })), "{outcome:?}");
    };
    pool.submit_step(step("p", "a", 0, true)).await.unwrap();
    let late = pool.submit_step(step("p", "a", 1, false)).await;
    assert!(matches!(late, Err(QueueError::SampleClosed { .. })), "{late:?}");
    pool.submit_step(step("p", "b", 0, true)).await.unwrap();
    closed(pool.submit_step(step("p", "c", 0, true)).await);
    let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
    closed(pool.submit_step(step("p", "c", 0, true)).await);
    batch.consume().await.unwrap();
    closed(pool.submit_step(step("p", "c", 0, true)).await);
    closed(pool.submit_step(step("p", "a", 0, true)).await);
    let gone = pool.complete_trajectory("a").await;
    assert!(matches!(gone, Err(QueueError::UnknownSample { .. })), "{gone:?}");
    // Given up, and given as it is.
    pool.submit_step(step("late", "d", 0, false)).await.unwrap();
    tokio::time::advance(Duration::from_secs(61)).await;
    let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
    assert_eq!((batch.prompt_uids(), batch.is_incomplete()), (vec!["late"], true));
    assert_eq!(flags(batch.batch(), "incomplete"), [true]);
    closed(pool.submit_step(step("late", "d", 1, true)).await);
    closed(pool.complete_trajectory("d").await);
    batch.consume().await.unwrap();
    closed(pool.submit_step(step("late", "d", 1, true)).await);
    let stats = Queue::status(queue.as_ref(), "pool").await.unwrap();
    assert_eq!((stats.rows, stats.groups, pool.expired_groups()), (0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn groups_that_are_given_up_are_dropped_where_that_is_wanted() {
    let queue = Arc::new(memory());
    let pool = DataPool::open(queue.clone(), pool_config(64)).await.unwrap();
    pool.submit_steps(&[step("p", "a", 0, false), step("p", "a", 1, true)]).await.unwrap();
    tokio::time::advance(Duration::from_secs(59)).await;
    assert_eq!(pool.expire().await.unwrap(), []);
    tokio::time::advance(Duration::from_secs(2)).await;
    let given_up = pool.expire().await.unwrap();
    let of = |at: usize| (given_up[at].samples, given_up[at].samples_whole, given_up[at].rows);
    assert_eq!((given_up.len(), of(0)), (1, (2, 1, 2)));
    let stats = Queue::status(queue.as_ref(), "pool").await.unwrap();
    assert_eq!((stats.rows, stats.groups, stats.dispositions.dropped), (0, 0, 2));
    let late = pool.submit_step(step("p", "b", 0, true)).await;
    assert!(matches!(late, Err(QueueError::GroupClosed { .. })), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn the_limit_is_a_limit_while_nobody_fetches() {
    let mut config = PoolConfig { submit_wait: Duration::from_secs(5), ..pool_config(4) };
    config.partition.on_full = OnFull::Block;
    let queue = Arc::new(memory());
    let pool = DataPool::open(queue.clone(), config.clone()).await.unwrap();
    // Steps of groups that are not complete count.
    for (index, is_last) in [(0, false), (1, false), (2, false), (3, true)] {
        pool.submit_step(step("p", "a", index, is_last)).await.unwrap();
    }
    let full = pool.submit_step(step("p", "b", 0, true)).await;
    assert!(matches!(full, Err(QueueError::Deadline { .. })), "{full:?}");
    assert_eq!(Queue::status(queue.as_ref(), "pool").await.unwrap().rows, 4);
    // A group that nobody completes is given up in time, also for one who waits for its room.
    let patient = PoolConfig { submit_wait: Duration::from_secs(600), ..config };
    let pool = DataPool::open(queue.clone(), patient).await.unwrap();
    pool.submit_step(step("q", "c", 0, true)).await.unwrap();
    assert_eq!(Queue::status(queue.as_ref(), "pool").await.unwrap().rows, 1);

    let mut refusing = pool_config(2);
    refusing.partition.on_full = OnFull::Refuse;
    let pool = DataPool::open(Arc::new(memory()), refusing).await.unwrap();
    submit_group(&pool, "p").await;
    let full = pool.submit_step(step("q", "c", 0, true)).await;
    assert!(matches!(full, Err(QueueError::Full { .. })), "{full:?}");
    pool.fetch_batch("train", 1).await.unwrap().unwrap().consume().await.unwrap();
    submit_group(&pool, "q").await;
}

#[tokio::test]
async fn duplicate_steps_are_kept_once() {
    let pool = pool(pool_config(64)).await;
    let first = step("p", "a", 0, false);
    pool.submit_step(first.clone()).await.unwrap();
    pool.submit_step(first.clone()).await.unwrap();
    let other = pool.submit_step(Step { reward: 0.25, ..first.clone() }).await;
    assert_eq!(other, Err(QueueError::StepDiffers { trajectory: "a".to_owned(), step: 0 }));
    // Some new, some not, one twice in the same call; also when the trajectory and the group are complete.
    let steps = [first.clone(), step("p", "a", 1, false), step("p", "a", 1, false), step("p", "a", 2, true)];
    pool.submit_steps(&steps).await.unwrap();
    pool.submit_steps(&steps).await.unwrap();
    pool.submit_step(step("p", "b", 0, true)).await.unwrap();
    pool.submit_steps(&steps).await.unwrap();
    let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
    assert_eq!(batch.batch()["step_index"].as_primitive::<UInt32Type>().values()[..], [0, 1, 2, 0]);
    // Two at once.
    let twice = step("q", "c", 0, false);
    let (left, right) = tokio::join!(pool.submit_step(twice.clone()), pool.submit_step(twice));
    assert_eq!((left, right), (Ok(()), Ok(())));
}

#[tokio::test]
async fn the_staleness_threshold_is_used() {
    let pool = pool(PoolConfig { staleness_threshold: 2, ..pool_config(64) }).await;
    let at = |trajectory: &str, version: u64| Step {
        policy_version: version,
        ..step("p", trajectory, version as u32, version == 9)
    };
    pool.submit_steps(&[at("a", 6), at("a", 7), at("a", 9), at("b", 8), at("b", 9)]).await.unwrap();
    let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
    assert_eq!(flags(batch.batch(), "off_policy"), [true, false, false, false, false]);
    assert_eq!(batch.batch()["importance_weight"].null_count(), 5);
    let (rows, weights) = (batch.rows().to_vec(), [1.0, 2.0, 3.0, 4.0, 5.0]);
    pool.write_importance_weights(&rows, &weights).await.unwrap();
    drop(batch);
    pool.announce(10).await.unwrap();
    let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
    assert_eq!((batch.off_policy_count(), flags(batch.batch(), "off_policy")[1]), (2, true));
    let read = batch.batch()["importance_weight"].as_primitive::<Float32Type>().values().to_vec();
    assert_eq!(read, weights);
}

#[tokio::test]
async fn group_sizes_go_by_prompt_and_more_trajectories_are_refused() {
    let sizes = |prompt: &str| (prompt == "one").then_some(1);
    let pool = pool(PoolConfig { group_sizes: Some(Arc::new(sizes)), ..pool_config(64) }).await;
    pool.submit_step(step("one", "a", 0, true)).await.unwrap();
    assert_eq!(pool.fetch_batch("train", 9).await.unwrap().unwrap().prompt_uids(), ["one"]);
    pool.submit_step(step("two", "b", 0, false)).await.unwrap();
    pool.submit_step(step("two", "c", 0, false)).await.unwrap();
    let third = pool.submit_step(step("two", "d", 0, false)).await;
    assert!(matches!(third, Err(QueueError::GroupOverflow { size: 2, .. })), "{third:?}");
    let moved = pool.submit_step(step("three", "b", 1, false)).await;
    assert!(matches!(moved, Err(QueueError::DeclaredOtherwise { .. })), "{moved:?}");
}

#[tokio::test]
async fn a_pool_survives_a_restart_with_what_it_knows() {
    let dir = tempfile::tempdir().unwrap();
    let queue = on_disk(dir.path());
    let pool = DataPool::open(Arc::new(queue.clone()), pool_config(64)).await.unwrap();
    for number in 0..20 {
        let prompt = format!("p{number}");
        submit_group(&pool, &prompt).await;
        let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
        batch.consume().await.unwrap();
    }
    pool.submit_steps(&[step("q", "a", 0, false), step("q", "a", 1, true)]).await.unwrap();
    pool.submit_step(step("q", "b", 0, false)).await.unwrap();
    submit_group(&pool, "whole").await;
    queue.close();
    drop((pool, queue));

    let queue = on_disk(dir.path());
    let pool = DataPool::open(Arc::new(queue.clone()), pool_config(64)).await.unwrap();
    for late in [step("p3", "z", 0, true), step("whole", "z", 0, true)] {
        let late = pool.submit_step(late).await;
        assert!(matches!(late, Err(QueueError::GroupClosed { .. })), "{late:?}");
    }
    let late = pool.submit_step(step("q", "a", 2, false)).await;
    assert!(matches!(late, Err(QueueError::SampleClosed { .. })), "{late:?}");
    pool.submit_step(step("q", "b", 0, false)).await.unwrap();
    pool.complete_trajectory("b").await.unwrap();
    queue.close();
    drop((pool, queue));

    let queue = on_disk(dir.path());
    let pool = DataPool::open(Arc::new(queue), pool_config(64)).await.unwrap();
    let batch = pool.fetch_batch("train", 9).await.unwrap().unwrap();
    assert_eq!((batch.prompt_uids(), batch.rows().len()), (vec!["q", "whole"], 5));
}

fn ints(name: &str, values: &[i64]) -> RecordBatch {
    let values: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
    RecordBatch::try_from_iter([(name, values)]).unwrap()
}

fn longs(batch: &RecordBatch, name: &str) -> Vec<i64> {
    batch[name].as_primitive::<Int64Type>().values().to_vec()
}

fn dock_config() -> DockConfig {
    DockConfig::new("dock", [("train", vec!["id", "reward"]), ("reward", vec!["id"])], 4, 2)
}

#[tokio::test(start_paused = true)]
async fn asking_by_index_marks_nothing_before_the_rows_are_there() {
    let dock = TransferDock::open(Arc::new(memory()), dock_config()).await.unwrap();
    let ask = async |indexes: &[u64], wait| {
        dock.get_experience("reward", None, Pick::Indexes(indexes.to_vec()), wait).await
    };
    assert!(ask(&[0, 3], None).await.unwrap().is_none());
    dock.put_experience(&ints("id", &[30, 0]), &[3, 0]).await.unwrap();
    // One of them is not there: neither is marked.
    assert!(ask(&[0, 1], None).await.unwrap().is_none());
    let late = ask(&[0, 1], Some(Duration::from_secs(1))).await;
    assert!(matches!(late, Err(QueueError::Deadline { .. })), "{late:?}");
    let experience = ask(&[0, 3], None).await.unwrap().unwrap();
    assert_eq!((longs(experience.batch(), "id"), experience.indexes()), (vec![0, 30], &[0, 3][..]));
    drop(experience);
    ask(&[3], None).await.unwrap().unwrap().consume().await.unwrap();
    assert!(matches!(ask(&[3], None).await, Err(QueueError::RowConsumed { .. })));
    // Waiting for rows and for columns that come later.
    let wait = Some(Duration::from_secs(60));
    let training = dock.get_experience("train", None, Pick::Indexes(vec![1, 0]), wait);
    let (experience, ()) = tokio::join!(training, async {
        tokio::task::yield_now().await;
        dock.put_experience(&ints("reward", &[7, 8]), &[0, 1]).await.unwrap();
        dock.put_experience(&ints("id", &[1, 2]), &[1, 2]).await.unwrap();
    });
    let experience = experience.unwrap().unwrap();
    assert_eq!(
        (longs(experience.batch(), "id"), longs(experience.batch(), "reward")),
        (vec![1, 0], vec![8, 7])
    );
    drop(experience);
    assert!(matches!(
        dock.put_experience(&ints("reward", &[7]), &[4]).await,
        Err(QueueError::BadRequest { .. })
    ));
    assert!(matches!(
        dock.put_experience(&ints("reward", &[9]), &[0]).await,
        Err(QueueError::ColumnExists { .. })
    ));
}

#[tokio::test]
async fn prompts_are_given_whole_and_all_consumed_means_all() {
    let dock = TransferDock::open(Arc::new(memory()), dock_config()).await.unwrap();
    for _ in 0..2 {
        assert!(!dock.all_consumed("reward").await.unwrap(), "nothing is there");
        dock.put_experience(&ints("id", &[0, 2, 3]), &[0, 2, 3]).await.unwrap();
        let prompt = dock.get_experience("reward", None, Pick::Prompts(1), None).await.unwrap().unwrap();
        assert_eq!(prompt.indexes(), [2, 3]);
        prompt.consume().await.unwrap();
        assert!(dock.get_experience("reward", None, Pick::Prompts(1), None).await.unwrap().is_none());
        assert!(dock.get_experience("reward", None, Pick::Samples(2), None).await.unwrap().is_none());
        dock.put_experience(&ints("id", &[1]), &[1]).await.unwrap();
        dock.get_experience("reward", None, Pick::Samples(2), None)
            .await
            .unwrap()
            .unwrap()
            .consume()
            .await
            .unwrap();
        assert!(dock.all_consumed("reward").await.unwrap());
        assert!(!dock.all_consumed("train").await.unwrap());
        assert!(matches!(dock.all_consumed("nobody").await, Err(QueueError::UnknownTask { .. })));
        dock.clear().await.unwrap();
    }
    // A half prompt that was cleared begins anew.
    dock.put_experience(&ints("id", &[0]), &[0]).await.unwrap();
    dock.clear().await.unwrap();
    dock.put_experience(&ints("id", &[5, 6]), &[0, 1]).await.unwrap();
    assert!(dock.get_experience("reward", None, Pick::Prompts(1), None).await.unwrap().is_some());
}

#[tokio::test]
async fn int64_stays_int64() {
    let dock = TransferDock::open(Arc::new(memory()), dock_config()).await.unwrap();
    let values = [i64::MAX, i64::MIN + 1, (1 << 53) + 1];
    dock.put_experience(&ints("id", &values), &[0, 1, 2]).await.unwrap();
    let read =
        dock.get_experience("reward", None, Pick::Indexes(vec![0, 1, 2]), None).await.unwrap().unwrap();
    assert_eq!(read.batch()["id"].data_type(), &DataType::Int64);
    assert_eq!(longs(read.batch(), "id"), values);
    let narrow: ArrayRef = Arc::new(arrow_array::Int32Array::from(vec![1]));
    let narrow = RecordBatch::try_from_iter([("id", narrow)]).unwrap();
    assert!(matches!(dock.put_experience(&narrow, &[3]).await, Err(QueueError::WrongType { .. })));
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

#[tokio::test]
async fn strings_json_and_ragged_columns_are_kept() {
    let config = DockConfig::new("dock", [("train", vec![])], 4, 2);
    let dock = TransferDock::open(Arc::new(memory()), config).await.unwrap();
    dock.put_experience(&mixed(), &[0, 1]).await.unwrap();
    let read = dock.get_experience("train", None, Pick::Indexes(vec![0, 1]), None).await.unwrap().unwrap();
    assert_eq!(read.batch(), &mixed());
}

#[tokio::test]
async fn a_dock_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let queue = on_disk(dir.path());
    let dock = TransferDock::open(Arc::new(queue.clone()), dock_config()).await.unwrap();
    dock.put_experience(&ints("id", &[9, 9]), &[0, 1]).await.unwrap();
    dock.clear().await.unwrap();
    dock.put_experience(&ints("id", &[0, 1, 2]), &[0, 1, 2]).await.unwrap();
    dock.put_experience(&ints("reward", &[5, 6]), &[0, 1]).await.unwrap();
    let taken = dock.get_experience("reward", None, Pick::Prompts(1), None).await.unwrap().unwrap();
    taken.consume().await.unwrap();
    let held = dock.get_experience("train", None, Pick::Prompts(1), None).await.unwrap().unwrap();
    queue.close();
    drop((queue, dock, held));

    let dock = TransferDock::open(Arc::new(on_disk(dir.path())), dock_config()).await.unwrap();
    let consumed = dock.get_experience("reward", None, Pick::Indexes(vec![0]), None).await;
    assert!(matches!(consumed, Err(QueueError::RowConsumed { .. })), "{consumed:?}");
    let again = dock.get_experience("train", None, Pick::Prompts(1), None).await.unwrap().unwrap();
    assert_eq!((longs(again.batch(), "reward"), again.indexes()), (vec![5, 6], &[0, 1][..]));
    dock.put_experience(&ints("id", &[3]), &[3]).await.unwrap();
    let rest = dock.get_experience("reward", None, Pick::Prompts(1), None).await.unwrap().unwrap();
    assert_eq!(rest.indexes(), [2, 3]);
    rest.consume().await.unwrap();
    assert!(dock.all_consumed("reward").await.unwrap());
}

async fn client(spec: PartitionSpec) -> TransferQueueClient {
    let queue = memory();
    queue.declare(spec).await.unwrap();
    TransferQueueClient::new(Arc::new(queue))
}

fn spec() -> PartitionSpec {
    PartitionSpec::new("train", ["actor", "ref"], 8)
}

#[tokio::test(start_paused = true)]
async fn metadata_of_a_dead_consumer_comes_back() {
    let client = client(PartitionSpec { lease_ms: 1000, ..spec() }).await;
    client.put("train", ints("id", &[1, 2])).await.unwrap();
    let request = MetaRequest::new("train", "actor", 2);
    let meta = client.get_meta(&request).await.unwrap().unwrap();
    assert_eq!(meta.lease().batches()[0].num_columns(), 0, "no payload");
    assert_eq!(longs(&client.get_data(meta.meta(), None).await.unwrap(), "id"), [1, 2]);
    assert!(client.get_meta(&request).await.unwrap().is_none(), "held");
    drop(meta);
    // One who dies without a word.
    std::mem::forget(client.get_meta(&request).await.unwrap().unwrap());
    assert!(client.get_meta(&request).await.unwrap().is_none());
    let waiting = MetaRequest { wait: Some(Duration::from_secs(10)), ..request.clone() };
    let meta = client.get_meta(&waiting).await.unwrap().unwrap();
    assert!(!client.is_all_consumed("train", "actor").await.unwrap());
    meta.consume().await.unwrap();
    assert!(client.is_all_consumed("train", "actor").await.unwrap());
    assert!(client.get_meta(&request).await.unwrap().is_none(), "consumed");
    assert!(client.get_meta(&MetaRequest::new("train", "ref", 2)).await.unwrap().is_some());
}

#[tokio::test]
async fn a_stale_meta_is_an_error_and_never_another_rows_bytes() {
    let client = client(spec()).await;
    let old = client.put("train", ints("id", &[1, 2])).await.unwrap();
    client.clear_samples(&old).await.unwrap();
    // Slots are used again in turn, and not soon.
    let mut new = client.put("train", ints("id", &[3, 4])).await.unwrap();
    for _ in 0..20_000 {
        if new.rows.iter().any(|row| row.slot == old.rows[0].slot) {
            break;
        }
        client.clear_samples(&new).await.unwrap();
        new = client.put("train", ints("id", &[3, 4])).await.unwrap();
    }
    assert!(new.rows.iter().any(|row| row.slot == old.rows[0].slot), "the slots are used again");
    let stale = |error: QueueError| assert!(matches!(error, QueueError::StaleHandle { .. }), "{error}");
    stale(client.get_data(&old, None).await.unwrap_err());
    stale(client.put_fields(&old, ints("more", &[1, 2])).await.unwrap_err());
    stale(client.clear_samples(&old).await.unwrap_err());
    assert_eq!(longs(&client.get_data(&new, None).await.unwrap(), "id"), [3, 4]);
    client.clear_partition("train").await.unwrap();
    stale(client.get_data(&new, None).await.unwrap_err());
}

/// What the TransferQueue's users do with keys, in this process or not.
async fn keys_tour(client: &TransferQueueClient) {
    let keys = ["k0", "k1"].map(str::to_owned);
    let tags = vec![json!({ "step": 1 }), Value::Null];
    client.kv_batch_put(&keys, "train", Some(ints("id", &[10, 11])), Some(tags)).await.unwrap();
    client.kv_put("k2", "train", Some(ints("id", &[12])), Some(json!("late"))).await.unwrap();
    let list = client.kv_list("train").await.unwrap();
    assert_eq!(list["k0"], json!({ "step": 1 }));
    assert_eq!((&list["k1"], &list["k2"], list.len()), (&Value::Null, &json!("late"), 3));
    // Fields of a key that come later, for keys that are there and one that is not; a tag alone.
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
async fn keys_and_tags_make_a_round_trip() {
    keys_tour(&client(spec()).await).await;
}

#[tokio::test]
async fn the_faces_work_against_a_server_too() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = serve(memory(), listener, ServiceConfig::default(), CancellationToken::new());
    let _server = AbortOnDropHandle::new(TaskTracker::new().spawn(serving));
    faces_tour(Arc::new(RemoteQueue::new(RemoteConfig::new(url)).unwrap())).await;
}

#[tokio::test]
async fn the_faces_work_through_shared_memory_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("queue.sock");
    let listener = LocalListener::bind(&path, LocalServiceConfig::default()).unwrap();
    let serving = serve_local(memory(), listener, CancellationToken::new());
    let _server = AbortOnDropHandle::new(TaskTracker::new().spawn(serving));
    faces_tour(Arc::new(LocalQueue::new(LocalConfig::new(&path)).unwrap())).await;
}

/// All three faces of a queue that is elsewhere.
async fn faces_tour(remote: Arc<dyn Queue>) {
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

    // Who submits and who fetches need not be the same.
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

#[tokio::test]
async fn ranks_of_a_streaming_loader_share_a_batch_and_members_of_a_rank_get_the_same_rows() {
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    queue.declare(PartitionSpec::new("train", ["actor"], 64)).await.unwrap();
    let client = TransferQueueClient::new(Arc::new(queue.clone()));
    for group in 0..4 {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(group * 2..group * 2 + 2));
        client.put("train", RecordBatch::try_from_iter([("id", ids)]).unwrap()).await.unwrap();
    }
    let mut rows = Vec::new();
    for rank in 0..2 {
        let mut of_rank = Vec::new();
        for member in 0..2 {
            let share = Some(Share { member, members: 2, equal_counts: true, ..Share::of(rank, 2) });
            let request = MetaRequest { whole_groups: true, share, ..MetaRequest::new("train", "actor", 4) };
            let meta = client.get_meta(&request).await.unwrap().unwrap();
            assert_eq!(client.get_data(meta.meta(), None).await.unwrap().num_rows(), 4);
            of_rank.push(meta.meta().rows.clone());
            meta.consume().await.unwrap();
        }
        assert_eq!(of_rank[0], of_rank[1], "members of rank {rank}");
        rows.extend(of_rank.swap_remove(0));
    }
    rows.sort_unstable_by_key(|row| (row.slot, row.generation));
    rows.dedup();
    assert_eq!(rows.len(), 8, "each row is one rank's");
    assert!(client.is_all_consumed("train", "actor").await.unwrap());
}
