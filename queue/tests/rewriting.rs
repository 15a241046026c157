//! Replaced values: which reader sees which value, how much space the values use on disk and in memory, and
//! which writes are refused.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, ListArray, RecordBatch};
use arrow_schema::DataType;
use rolldock_queue::{
    ColumnSpec, Durability, ExportFormat, Lease, Partition, PartitionSpec, Put, QueueConfig, QueueError,
    RowHandle, Share, Take, TaskSpec, TransferQueue,
};
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

fn open(dir: Option<&Path>) -> TransferQueue {
    let config = QueueConfig {
        dir: dir.map(Path::to_owned),
        durability: Durability::Os,
        segment_bytes: 64 << 10,
        journal_bytes: 16 << 10,
        ..QueueConfig::default()
    };
    TransferQueue::open(config).unwrap()
}

fn numbers(name: &str, numbers: impl IntoIterator<Item = i64>) -> (String, ArrayRef) {
    (name.to_owned(), Arc::new(Int64Array::from_iter_values(numbers)))
}

fn batch(columns: impl IntoIterator<Item = (String, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Rows of one group with the columns `id` and `value`.
fn rows(count: i64, value: i64) -> RecordBatch {
    batch([numbers("id", 0..count), numbers("value", (0..count).map(|_| value))])
}

fn values(count: usize, value: i64) -> RecordBatch {
    batch([numbers("value", (0..count).map(|_| value))])
}

fn column(batches: &[RecordBatch], name: &str) -> Vec<i64> {
    batches.iter().flat_map(|batch| batch[name].as_primitive::<Int64Type>().values().to_vec()).collect()
}

fn seen(lease: &Lease) -> Vec<i64> {
    column(lease.batches(), "value")
}

async fn declared(queue: &TransferQueue, tasks: &[&str]) -> Partition {
    queue.declare(PartitionSpec::new("p", tasks.iter().copied(), 1000)).await.unwrap()
}

async fn taken(partition: &Partition, task: &str) -> Lease {
    partition.take(&Take::groups(task, 1)).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_value_is_replaced_only_where_that_is_asked_for() {
    let queue = open(None);
    let partition = declared(&queue, &["t"]).await;
    let handles = partition.put(Put::group("g", rows(2, 1)), None).await.unwrap();
    let refused = partition.write_columns(&handles, values(2, 2)).await;
    assert!(matches!(refused, Err(QueueError::ColumnExists { .. })), "{refused:?}");
    let other: ArrayRef = Arc::new(arrow_array::StringArray::from(vec!["a", "b"]));
    let cast = partition.overwrite_columns(&handles, batch([("value".to_owned(), other)])).await;
    assert!(matches!(cast, Err(QueueError::WrongType { .. })), "{cast:?}");
    let twice = partition.overwrite_columns(&[handles[0]; 2], values(2, 2)).await;
    assert!(matches!(twice, Err(QueueError::BadRequest { .. })), "{twice:?}");
    // Rows without the column get the new values.
    partition
        .overwrite_columns(&handles, batch([numbers("more", [5, 6]), numbers("value", [3, 4])]))
        .await
        .unwrap();
    let read = partition.get(&handles, None).await.unwrap();
    assert_eq!((column(&read, "value"), column(&read, "more")), (vec![3, 4], vec![5, 6]));
    assert_eq!(column(&read, "id"), [0, 1]);
    let stats = partition.stats();
    assert_eq!((stats.columns["id"], stats.columns["value"], stats.columns["more"]), (2, 2, 2));
    let mut exported = Vec::new();
    assert_eq!(partition.export(ExportFormat::Jsonl, &mut exported).await, Ok(2));
    let exported: Vec<Value> =
        serde_json::Deserializer::from_slice(&exported).into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(exported, [json!({"id": 0, "value": 3, "more": 5}), json!({"id": 1, "value": 4, "more": 6})]);
    partition.clear(&handles[..1]).await.unwrap();
    let gone = partition.overwrite_columns(&handles, values(2, 9)).await;
    assert!(matches!(gone, Err(QueueError::StaleHandle { .. })), "{gone:?}");
    assert_eq!(column(&partition.get(&handles[1..], None).await.unwrap(), "value"), [4]);
    assert!(queue.verify().await.unwrap().is_sound());
}

#[tokio::test]
async fn a_task_that_has_not_acked_sees_the_new_values_and_one_that_has_only_if_it_asks() {
    let queue = open(None);
    let partition = declared(&queue, &["early", "late"]).await;
    let handles = partition.put(Put::group("g", rows(2, 1)), None).await.unwrap();
    let early = taken(&partition, "early").await;
    assert_eq!(seen(&early), [1, 1]);
    early.ack().await.unwrap();
    let held = taken(&partition, "late").await;
    partition.overwrite_columns(&handles, values(2, 2)).await.unwrap();
    // A lease keeps its values. When the rows are given back, the next lease has the new values.
    assert_eq!(seen(&held), [1, 1]);
    held.nack().await.unwrap();
    let late = taken(&partition, "late").await;
    assert_eq!(seen(&late), [2, 2]);
    // The task that has acked does not get the rows again.
    assert!(partition.take(&Take::groups("early", 1)).await.unwrap().is_none());
    assert_eq!(column(&partition.get(&handles, None).await.unwrap(), "value"), [2, 2]);
    assert_eq!(partition.reset("early").await, Ok(2));
    assert_eq!(seen(&taken(&partition, "early").await), [2, 2]);
    late.ack().await.unwrap();
}

#[tokio::test]
async fn all_members_of_a_lease_read_the_values_that_it_began_with() {
    for dir in [None, Some(tempfile::tempdir().unwrap())] {
        let queue = open(dir.as_ref().map(tempfile::TempDir::path));
        let partition = declared(&queue, &["t"]).await;
        let handles = partition.put(Put::group("g", rows(2, 1)), None).await.unwrap();
        partition.overwrite_columns(&handles, values(2, 2)).await.unwrap();
        let member = |member| Take {
            share: Some(Share { members: 3, member, ..Share::of(0, 1) }),
            ..Take::groups("t", 1)
        };
        let first = partition.take(&member(0)).await.unwrap().unwrap();
        // The values, and all columns of the put, are replaced several times while the lease is held.
        for value in 3..9 {
            let new = if value % 2 == 0 { values(2, value) } else { rows(2, value) };
            partition.overwrite_columns(&handles, new).await.unwrap();
        }
        let second = partition.take(&member(1)).await.unwrap().unwrap();
        assert_eq!((seen(&first), seen(&second)), (vec![2, 2], vec![2, 2]));
        assert_eq!(column(&partition.get(&handles, None).await.unwrap(), "value"), [8, 8]);
        assert!(queue.verify().await.unwrap().is_sound());
        drop((first, second));
        let third = partition.take(&member(2)).await.unwrap().unwrap();
        assert_eq!(seen(&third), [8, 8], "the lease has ended, so this is another one");
        drop(third);
        assert!(queue.verify().await.unwrap().is_sound());
    }
}

/// The bytes of the files in a directory.
fn bytes_in(dir: &Path) -> u64 {
    std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

#[tokio::test]
async fn replaced_values_give_their_room_back() {
    const LENGTH: i64 = 4096;
    let long = |value: i64| {
        let list = || Some((0..LENGTH).map(move |_| Some(value)));
        let lists = ListArray::from_iter_primitive::<Int64Type, _, _>((0..2).map(|_| list()));
        batch([("long".to_owned(), Arc::new(lists) as ArrayRef)])
    };
    for dir in [None, Some(tempfile::tempdir().unwrap())] {
        let path = dir.as_ref().map(tempfile::TempDir::path);
        let queue = open(path);
        let spec = PartitionSpec { capacity_bytes: Some(1 << 20), ..PartitionSpec::new("p", ["t"], 1000) };
        let partition = queue.declare(spec).await.unwrap();
        let handles = partition.put(Put::group("g", rows(2, 0)), None).await.unwrap();
        partition.overwrite_columns(&handles, long(0)).await.unwrap();
        let once = partition.stats().payload_bytes;
        // Without freeing, a mebibyte would be full after sixteen writes.
        for value in 1..=100 {
            partition.overwrite_columns(&handles, long(value)).await.unwrap();
            if value % 10 == 0 {
                // One of the values is kept until the lease ends.
                let lease = taken(&partition, "t").await;
                partition.overwrite_columns(&handles, long(value)).await.unwrap();
                lease.nack().await.unwrap();
            }
        }
        assert_eq!(partition.stats().payload_bytes, once);
        let held = queue.inspect().payload_bytes;
        assert!(held < 4 * 2 * 8 * LENGTH as u64, "payload_bytes={held}");
        if let Some(path) = path {
            let found = bytes_in(path);
            assert!(found < 1 << 20, "bytes={found} on disk");
        }
        let Some(path) = path else { continue };
        queue.close();
        drop((partition, queue));
        let queue = open(Some(path));
        let partition = queue.partition("p").unwrap();
        assert_eq!(partition.stats().payload_bytes, once);
        let read = partition.get(&handles, Some(&["long".to_owned()])).await.unwrap();
        assert_eq!(read[0]["long"].to_data(), long(100)["long"].to_data());
        assert!(queue.verify().await.unwrap().is_sound());
    }
}

#[tokio::test]
async fn the_order_of_rows_and_their_group_survive_a_rewritten_journal_and_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(Some(dir.path()));
    let partition = declared(&queue, &["t"]).await;
    let handles = partition.put(Put::group("g", rows(6, 1)), None).await.unwrap();
    // All columns of some rows are replaced, so the group is no longer in one chunk.
    let replace = |at: &[usize], value: i64| {
        let chosen: Vec<RowHandle> = at.iter().map(|at| handles[*at]).collect();
        let ids = numbers("id", at.iter().map(|at| *at as i64));
        let new = batch([ids, numbers("value", at.iter().map(|_| value))]);
        let partition = partition.clone();
        async move { partition.overwrite_columns(&chosen, new).await.unwrap() }
    };
    replace(&[1, 4], 2).await;
    replace(&[4, 2], 3).await;
    let expected = vec![1, 2, 3, 1, 3, 1];
    let mut snapshot = Vec::new();
    let mut begun = queue.begin_snapshot(None).await.unwrap();
    while let Some(piece) = begun.next_piece().unwrap() {
        snapshot.extend(piece);
    }
    drop(begun);
    // During these writes, the journal is rewritten.
    for _ in 0..400 {
        let more = partition.put(Put::group("x", rows(1, 0)), None).await.unwrap();
        partition.clear(&more).await.unwrap();
    }
    queue.close();
    drop((partition, queue));
    let restored = open(None);
    restored.restore(std::io::Cursor::new(snapshot)).await.unwrap();
    for queue in [open(Some(dir.path())), restored] {
        let partition = queue.partition("p").unwrap();
        let lease = taken(&partition, "t").await;
        assert_eq!(column(lease.batches(), "id"), [0, 1, 2, 3, 4, 5]);
        assert_eq!(seen(&lease), expected);
        lease.ack().await.unwrap();
        // The group was complete and is freed, so a put under its name begins another group.
        partition.put(Put { group_size: 2, ..Put::group("g", rows(1, 0)) }, None).await.unwrap();
        assert!(queue.verify().await.unwrap().is_sound());
    }
}

#[tokio::test]
async fn tokens_are_counted_from_the_new_values() {
    let lists = |name: &str, lengths: &[i64]| {
        let lists = lengths.iter().map(|length| Some((0..*length).map(Some)));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
        (name.to_owned(), lists)
    };
    let dir = tempfile::tempdir().unwrap();
    let queue = open(Some(dir.path()));
    let length_columns = ["prompt", "response"].map(str::to_owned).to_vec();
    let spec = PartitionSpec { length_columns, ..PartitionSpec::new("p", ["t"], 100) };
    let partition = queue.declare(spec).await.unwrap();
    let mut handles = Vec::new();
    for group in 0..3 {
        let put = batch([lists("prompt", &[10]), lists("response", &[10])]);
        handles.extend(partition.put(Put::group(format!("g{group}"), put), None).await.unwrap());
    }
    let fit = |partition: Partition| async move {
        let lease = partition.take(&Take::tokens("t", 60)).await.unwrap().unwrap();
        lease.rows().len()
    };
    assert_eq!(fit(partition.clone()).await, 3);
    // Partial rollouts continue, so the responses are longer now.
    partition.overwrite_columns(&handles[..2], batch([lists("response", &[20, 21])])).await.unwrap();
    assert_eq!(fit(partition.clone()).await, 1, "10 + 20 and 10 + 21 tokens");
    partition.overwrite_columns(&handles[1..2], batch([lists("response", &[20])])).await.unwrap();
    assert_eq!(fit(partition.clone()).await, 2);
    queue.close();
    drop((partition, queue));
    let queue = open(Some(dir.path()));
    assert_eq!(fit(queue.partition("p").unwrap()).await, 2);
}

/// Writers race for the same rows while readers take and read them. No reader sees an older value after a
/// newer value, and no reader sees two writes in one lease or in one read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_never_go_back_and_are_never_mixed() {
    const WRITES: i64 = 150;
    for dir in [None, Some(tempfile::tempdir().unwrap())] {
        let path = dir.as_ref().map(tempfile::TempDir::path);
        let queue = open(path);
        let partition = declared(&queue, &["t"]).await;
        let handles = partition.put(Put::group("g", rows(4, 0)), None).await.unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let reading = TaskTracker::new().spawn({
            let (partition, handles, done) = (partition.clone(), handles.clone(), Arc::clone(&done));
            async move {
                let (mut last, mut looks) = (0, 0);
                while looks < 3 || !done.load(Ordering::Relaxed) {
                    let lease = taken(&partition, "t").await;
                    let read = partition.get(&handles, None).await.unwrap();
                    for seen in [seen(&lease), column(&read, "value")] {
                        assert!(seen.iter().all(|value| *value == seen[0]), "{seen:?}");
                        assert!(seen[0] >= last, "{} after {last}", seen[0]);
                        last = seen[0];
                        looks += 1;
                    }
                    lease.nack().await.unwrap();
                }
            }
        });
        // Both writers write the same cells. A write gets its number when it begins, and waits for the
        // previous write.
        for value in 1..=WRITES {
            let (whole, part) = (rows(4, value), values(4, value));
            let (one, other) = tokio::join!(
                partition.overwrite_columns(&handles, whole),
                partition.overwrite_columns(&handles, part)
            );
            one.unwrap();
            other.unwrap();
        }
        done.store(true, Ordering::Relaxed);
        reading.await.unwrap();
        assert!(queue.verify().await.unwrap().is_sound());
        let Some(path) = path else { continue };
        queue.close();
        drop((partition, queue));
        let queue = open(Some(path));
        let read = queue.partition("p").unwrap().get(&handles, None).await.unwrap();
        assert_eq!(column(&read, "value"), [WRITES; 4]);
    }
}

#[tokio::test]
async fn a_column_that_a_task_waits_for_makes_its_rows_ready_once() {
    let queue = open(None);
    let mut spec = PartitionSpec::new("p", ["t"], 100);
    spec.tasks = vec![TaskSpec { name: "t".to_owned(), columns: vec!["more".to_owned()] }];
    spec.columns = vec![ColumnSpec::new("other", DataType::Int64)];
    let partition = queue.declare(spec).await.unwrap();
    // Before the first put, rows may have any columns.
    let first = Take { columns: Some(vec!["value".to_owned()]), ..Take::groups("t", 1) };
    assert!(partition.take(&first).await.unwrap().is_none());
    let handles = partition.put(Put::group("g", rows(2, 1)), None).await.unwrap();
    assert!(partition.take(&Take::groups("t", 1)).await.unwrap().is_none());
    // The type of the column is not known yet, but the task waits for it.
    let early = Take { columns: Some(vec!["more".to_owned()]), ..Take::groups("t", 1) };
    assert!(partition.take(&early).await.unwrap().is_none());
    let unknown = Take { columns: Some(vec!["unheard of".to_owned()]), ..Take::groups("t", 1) };
    let refused = partition.take(&unknown).await;
    assert!(matches!(refused, Err(QueueError::UnknownColumn { .. })), "{refused:?}");
    let more = |value| batch([numbers("more", [value, value])]);
    partition.overwrite_columns(&handles, more(1)).await.unwrap();
    let lease = taken(&partition, "t").await;
    partition.overwrite_columns(&handles, more(2)).await.unwrap();
    assert!(partition.take(&Take::groups("t", 1)).await.unwrap().is_none(), "the rows are leased");
    lease.ack().await.unwrap();
    assert_eq!(partition.stats().rows, 0);
    assert!(queue.verify().await.unwrap().is_sound());
}
