//! Tests of a partition beyond puts and takes: keys, tags, capacities, versions, resets and watches.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use rolldock_queue::{
    GroupSampler, OnFull, Partition, PartitionSpec, Put, QueueConfig, QueueError, ReadyGroup, Stale, Take,
    TransferQueue,
};
use serde_json::json;
use tokio::time::Instant;

fn batch(first: i64, rows: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows));
    RecordBatch::try_from_iter([("id", ids)]).unwrap()
}

fn texts(bytes: usize, rows: usize) -> RecordBatch {
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|_| "x".repeat(bytes))));
    RecordBatch::try_from_iter([("text", texts)]).unwrap()
}

async fn partition(spec: PartitionSpec) -> Partition {
    TransferQueue::open(QueueConfig::default()).unwrap().declare(spec).await.unwrap()
}

fn spec() -> PartitionSpec {
    PartitionSpec::new("p", ["train", "ref"], 64)
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(20))
}

fn keyed(group: &str, keys: &[&str]) -> Put {
    let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    let tags = keys.iter().map(|key| json!({ "of": key })).collect();
    Put { keys: keys.clone(), tags, ..Put::group(group, batch(0, keys.len() as i64)) }
}

#[tokio::test]
async fn a_key_names_one_row_at_a_time_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = QueueConfig { dir: Some(dir.path().to_owned()), ..QueueConfig::default() };
    let queue = TransferQueue::open(config.clone()).unwrap();
    let partition = queue.declare(spec()).await.unwrap();
    let rows = partition.put(keyed("a", &["a0", "a1"]), None).await.unwrap();
    let taken = partition.put(keyed("b", &["b0", "a1"]), None).await;
    assert_eq!(taken, Err(QueueError::KeyExists { key: "a1".to_owned() }));
    let twice = partition.put(keyed("b", &["b0", "b0"]), None).await;
    assert_eq!(twice, Err(QueueError::KeyExists { key: "b0".to_owned() }));
    let few = Put { keys: vec!["k".to_owned()], ..Put::group("b", batch(0, 2)) };
    assert!(matches!(partition.put(few, None).await, Err(QueueError::BadRequest { .. })));
    partition.set_tags(vec![(rows[0], json!("changed"))]).await.unwrap();
    queue.close();
    drop((queue, partition));

    let queue = TransferQueue::open(config).unwrap();
    let partition = queue.partition("p").unwrap();
    let found = partition.find(&["a1".to_owned(), "a0".to_owned()]).unwrap();
    assert_eq!((found[0].row, found[1].row), (rows[1], rows[0]));
    assert_eq!((&found[0].tags, &found[1].tags), (&json!({ "of": "a1" }), &json!("changed")));
    assert!(matches!(partition.find(&["b0".to_owned()]), Err(QueueError::UnknownKey { .. })));
    // A take returns keys and tags. A key can be used again when its row is freed.
    let lease = partition.take(&Take::groups("train", 1)).await.unwrap().unwrap();
    assert_eq!(lease.keys(), [Some("a0".to_owned()), Some("a1".to_owned())]);
    assert_eq!(lease.tags()[1], json!({ "of": "a1" }));
    partition.clear(&rows).await.unwrap();
    assert_eq!(partition.keyed_rows(), []);
    partition.put(keyed("c", &["a0"]), None).await.unwrap();
}

#[tokio::test]
async fn a_capacity_in_bytes_blocks_and_is_given_back() {
    let partition = partition(PartitionSpec { capacity_bytes: Some(10 << 10), ..spec() }).await;
    let rows = partition.put(Put::group("a", texts(2000, 3)), None).await.unwrap();
    assert_eq!(partition.stats().payload_bytes, 6 << 10);
    let never = partition.put(Put::group("b", texts(11 << 10, 1)), soon()).await;
    assert!(matches!(never, Err(QueueError::TooManyBytes { .. })), "{never:?}");
    let full = partition.put(Put::group("b", texts(5 << 10, 1)), soon()).await;
    assert!(matches!(full, Err(QueueError::Deadline { .. })), "{full:?}");
    // Columns count against the capacity, but a write of columns never waits for space.
    partition.write_columns(&rows, texts_named("more", 2000, 3)).await.unwrap();
    assert_eq!(partition.stats().payload_bytes, 12 << 10);
    partition.clear(&rows[..1]).await.unwrap();
    let full = partition.put(Put::group("b", texts(3000, 1)), soon()).await;
    assert!(matches!(full, Err(QueueError::Deadline { .. })), "2 KiB are free: {full:?}");
    partition.put(Put::group("b", texts(1000, 1)), soon()).await.unwrap();
    partition.clear(&rows[1..]).await.unwrap();
    partition.put(Put::group("c", texts(8000, 1)), soon()).await.unwrap();
}

fn texts_named(name: &str, bytes: usize, rows: usize) -> RecordBatch {
    RecordBatch::try_from_iter([(name, Arc::clone(texts(bytes, rows).column(0)))]).unwrap()
}

#[tokio::test]
async fn a_capacity_in_bytes_refuses_and_drops_as_declared() {
    let bytes = Some(4 << 10);
    let refusing = PartitionSpec { capacity_bytes: bytes, on_full: OnFull::Refuse, ..spec() };
    let refusing = partition(refusing).await;
    refusing.put(Put::group("a", texts(3000, 1)), None).await.unwrap();
    let full = refusing.put(Put::group("b", texts(3000, 1)), None).await;
    assert!(matches!(full, Err(QueueError::Full { .. })), "{full:?}");
    let dropping = PartitionSpec { capacity_bytes: bytes, on_full: OnFull::DropOldest, ..spec() };
    let dropping = partition(dropping).await;
    for group in ["a", "b", "c"] {
        dropping.put(Put::group(group, texts(1500, 1)), None).await.unwrap();
    }
    assert_eq!((dropping.stats().rows, dropping.stats().dispositions.dropped), (2, 1));
}

#[tokio::test]
async fn a_row_above_the_limit_is_refused_and_nothing_is_changed() {
    let partition = partition(PartitionSpec { row_bytes_max: Some(100), ..spec() }).await;
    let mixed: ArrayRef = Arc::new(StringArray::from(vec!["short".to_owned(), "x".repeat(200)]));
    let put = Put::group("a", RecordBatch::try_from_iter([("text", mixed)]).unwrap());
    let long = partition.put(put, None).await.unwrap_err();
    assert!(matches!(long, QueueError::RowTooLong { row: 1, bytes_max: 100, .. }), "{long}");
    assert_eq!((partition.stats().rows, partition.stats().rows_reserved), (0, 0));
}

#[tokio::test]
async fn a_reset_task_sees_again_what_others_still_need() {
    let partition = partition(spec()).await;
    for group in 0..3 {
        partition.put(Put::group(format!("g{group}"), batch(group * 2, 2)), None).await.unwrap();
    }
    partition.take(&Take::groups("ref", 1)).await.unwrap().unwrap().ack().await.unwrap();
    partition.take(&Take::groups("train", 2)).await.unwrap().unwrap().ack().await.unwrap();
    let stats = partition.stats();
    assert_eq!((stats.rows, stats.tasks[0].acked_rows, stats.tasks[0].ready_rows), (4, 2, 2));
    assert!(!stats.tasks[0].is_all_consumed());
    assert_eq!(partition.reset("train").await.unwrap(), 2);
    assert_eq!(partition.reset("train").await.unwrap(), 0);
    let lease = partition.take(&Take::groups("train", 9)).await.unwrap().unwrap();
    assert_eq!(lease.groups(), ["g1", "g1", "g2", "g2"]);
    lease.ack().await.unwrap();
    let stats = partition.stats();
    assert!(stats.tasks[0].is_all_consumed());
    assert!(!stats.tasks[1].is_all_consumed());
}

#[tokio::test]
async fn staleness_counts_from_the_newest_version() {
    let partition = partition(spec()).await;
    for version in 0..5 {
        let put = Put { policy_version: version, ..Put::group(format!("v{version}"), batch(0, 1)) };
        partition.put(put, None).await.unwrap();
    }
    let take = |most| Take { max_staleness: Some(most), ..Take::groups("train", 9) };
    let fresh = partition.take(&take(1)).await.unwrap().unwrap();
    assert_eq!(fresh.groups(), ["v3", "v4"]);
    fresh.nack().await.unwrap();
    partition.announce(5).await.unwrap();
    partition.announce(2).await.unwrap();
    assert_eq!(partition.stats().policy_version, 5);
    let delivered = Take { stale: Stale::Deliver, ..take(1) };
    let all = partition.take(&delivered).await.unwrap().unwrap();
    assert_eq!(all.fresh_from(), 4);
    let stale: Vec<bool> = (0..5).map(|row| all.is_stale(row)).collect();
    assert_eq!(stale, [true, true, true, true, false]);
    all.nack().await.unwrap();
    let dropping = Take { stale: Stale::Drop, ..take(2) };
    assert_eq!(partition.take(&dropping).await.unwrap().unwrap().groups(), ["v3", "v4"]);
    assert_eq!(partition.stats().dispositions.stale, 3);
}

#[tokio::test]
async fn given_rows_are_waited_for_and_never_consumed_by_asking() {
    let partition = partition(spec()).await;
    let rows = partition.put(Put::group("a", batch(0, 3)), None).await.unwrap();
    let held = partition.take(&Take::only("train", vec![rows[1]])).await.unwrap().unwrap();
    let both = Take::only("train", vec![rows[2], rows[1]]);
    assert!(partition.take(&both).await.unwrap().is_none());
    // A take that is dropped while it waits leases nothing.
    let waiting =
        tokio::time::timeout(Duration::from_millis(5), partition.take(&both.clone().until(far()))).await;
    assert!(waiting.is_err());
    let (taken, ()) =
        tokio::join!(async { partition.take(&both.clone().until(far())).await.unwrap().unwrap() }, async {
            tokio::task::yield_now().await;
            held.nack().await.unwrap();
        });
    let ids: Vec<i64> = taken
        .batches()
        .iter()
        .flat_map(|batch| batch["id"].as_primitive::<Int64Type>().values().to_vec())
        .collect();
    assert_eq!(ids, [2, 1]);
    taken.ack().await.unwrap();
    let again = partition.take(&both).await.unwrap_err();
    assert!(matches!(again, QueueError::RowConsumed { .. }), "{again}");
    let twice = partition.take(&Take::only("train", vec![rows[0], rows[0]])).await.unwrap_err();
    assert!(matches!(twice, QueueError::BadRequest { .. }), "{twice}");
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Chooses this number of groups, the newest first.
struct Newest(usize);

impl GroupSampler for Newest {
    fn choose(&self, ready: &[ReadyGroup<'_>], _: &Take) -> Vec<usize> {
        (0..ready.len()).rev().take(self.0).collect()
    }
}

#[tokio::test]
async fn a_users_sampler_chooses_and_its_mistakes_are_errors() {
    let partition = partition(spec()).await;
    for group in ["a", "b", "c"] {
        partition.put(Put::group(group, batch(0, 1)), None).await.unwrap();
    }
    let take = Take::groups("train", 2);
    let lease = partition.take_by(&take, &Newest(2)).await.unwrap().unwrap();
    assert_eq!(lease.groups(), ["c", "b"]);
    struct Wrong;
    impl GroupSampler for Wrong {
        fn choose(&self, ready: &[ReadyGroup<'_>], _: &Take) -> Vec<usize> {
            vec![ready.len()]
        }
    }
    let wrong = partition.take_by(&take, &Wrong).await.unwrap_err();
    assert!(matches!(wrong, QueueError::BadRequest { .. }), "{wrong}");
    // The take waits until the sampler can choose enough groups.
    let at_least = Take { at_least: 2, ..Take::groups("train", 2) }.until(far());
    let (lease, _) = tokio::join!(partition.take_by(&at_least, &Newest(2)), async {
        tokio::task::yield_now().await;
        partition.put(Put::group("d", batch(0, 1)), None).await.unwrap()
    });
    assert_eq!(lease.unwrap().unwrap().groups(), ["d", "a"]);
}

#[tokio::test]
async fn a_watcher_sees_changes_and_production() {
    let partition = partition(spec()).await;
    let before = partition.stats();
    let same = partition.stats_after(before.revision, Instant::now() + Duration::from_millis(5)).await;
    assert_eq!(same, before);
    let (seen, rows) = tokio::join!(partition.stats_after(before.revision, far()), async {
        tokio::task::yield_now().await;
        partition.put(Put::group("a", batch(0, 2)), None).await.unwrap()
    });
    assert!(seen.revision > before.revision);
    partition.write_columns(&rows[..1], texts(3, 1)).await.unwrap();
    let columns = partition.stats().columns;
    assert_eq!((columns["id"], columns["text"]), (2, 1));
    partition.clear(&rows[..1]).await.unwrap();
    let columns = partition.stats().columns;
    assert_eq!((columns["id"], columns["text"]), (1, 0));
}

#[tokio::test]
async fn many_waiting_takers_are_woken_one_for_each_group() {
    let partition = partition(PartitionSpec { capacity_rows: 5000, ..spec() }).await;
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..2000 {
        let partition = partition.clone();
        waiting.spawn(async move { partition.take(&Take::groups("train", 1).until(far())).await });
    }
    tokio::task::yield_now().await;
    for group in 0..50 {
        partition.put(Put::group(format!("g{group}"), batch(group, 1)), None).await.unwrap();
    }
    let mut groups = Vec::new();
    while groups.len() < 50 {
        let lease = waiting.join_next().await.unwrap().unwrap().unwrap().unwrap();
        groups.extend(lease.groups().to_vec());
        lease.ack().await.unwrap();
    }
    // A take that is dropped passes its wake-up on to another take.
    waiting.abort_all();
    while waiting.join_next().await.is_some() {}
    let (first, second) = (Take::groups("train", 1).until(far()), Take::groups("train", 1).until(far()));
    let other = partition.clone();
    let mut gone = tokio::task::JoinSet::new();
    gone.spawn(async move { other.take(&first).await.map(drop) });
    tokio::task::yield_now().await;
    let (lease, ()) = tokio::join!(partition.take(&second), async {
        tokio::task::yield_now().await;
        partition.put(Put::group("last", batch(0, 1)), None).await.unwrap();
        gone.abort_all();
    });
    assert_eq!(lease.unwrap().unwrap().groups(), ["last"]);
}
