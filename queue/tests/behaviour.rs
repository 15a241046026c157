//! Checks that the queue in memory does not have the faults of other queues. The name of each test describes
//! the fault.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{Float32Array, Int32Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use futures::FutureExt;
use rolldock_queue::{
    OnFull, Partition, PartitionSpec, Put, QueueConfig, QueueError, Take, TaskSpec, TransferQueue,
};
use tokio::time::Instant;

fn ids(first: i32, rows: usize) -> RecordBatch {
    let schema = Schema::new(vec![Field::new("id", DataType::Int32, false)]);
    let ids = Int32Array::from_iter_values(first..first + rows as i32);
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(ids)]).unwrap()
}

fn rewards(rows: usize) -> RecordBatch {
    let schema = Schema::new(vec![Field::new("reward", DataType::Float32, false)]);
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(Float32Array::from(vec![1.0; rows]))]).unwrap()
}

async fn partition(spec: PartitionSpec) -> Partition {
    TransferQueue::open(QueueConfig::default()).unwrap().declare(spec).await.unwrap()
}

fn spec(capacity: usize) -> PartitionSpec {
    PartitionSpec::new("p", ["train"], capacity)
}

async fn put(partition: &Partition, group: &str, rows: usize) {
    partition.put(Put::group(group, ids(0, rows)), None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_starving_reader_delays_no_other() {
    let queue = partition(PartitionSpec {
        tasks: vec![
            TaskSpec { name: "hungry".into(), columns: vec!["reward".into()] },
            TaskSpec { name: "train".into(), columns: vec![] },
        ],
        ..spec(10)
    })
    .await;
    let take = Take::groups("hungry", 1).until(Instant::now() + Duration::from_secs(60));
    let mut starving = Box::pin(queue.take(&take));
    assert!((&mut starving).now_or_never().is_none());
    put(&queue, "g", 2).await;
    assert!((&mut starving).now_or_never().is_none(), "its column is missing");
    let served = queue.take(&Take::groups("train", 1)).await.unwrap().unwrap();
    queue.write_columns(served.rows(), rewards(2)).await.unwrap();
    let lease = starving.await.unwrap().unwrap();
    assert_eq!(lease.concat().unwrap().num_columns(), 2);
}

#[tokio::test(start_paused = true)]
async fn rows_of_a_dead_consumer_are_given_again() {
    let queue = partition(PartitionSpec { lease_ms: 1000, ..spec(10) }).await;
    put(&queue, "g", 2).await;
    let lost = queue.take(&Take::groups("train", 1)).await.unwrap().unwrap();
    assert!(queue.take(&Take::groups("train", 1)).await.unwrap().is_none(), "one lease at a time");
    let take = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(5));
    let again = queue.take(&take).await.unwrap().unwrap();
    assert!(
        matches!(lost.ack().await.unwrap_err(), QueueError::LeaseGone { .. }),
        "no lease is honoured twice"
    );
    again.renew().await.unwrap();
    again.ack().await.unwrap();
    assert_eq!(queue.stats().rows, 0);
}

#[tokio::test]
async fn groups_are_never_mixed_and_reused_slots_change_nothing() {
    let queue = partition(spec(100)).await;
    for round in 0..20 {
        let half = Put { group_size: 4, ..Put::group(format!("slow{round}"), ids(0, 2)) };
        queue.put(half, None).await.unwrap();
        put(&queue, &format!("fast{round}"), 3).await;
        let lease = queue.take(&Take::groups("train", 5)).await.unwrap().unwrap();
        assert!(lease.groups().iter().all(|group| *group == format!("fast{round}")), "{:?}", lease.groups());
        lease.ack().await.unwrap();
        let rest = Put { group_size: 4, ..Put::group(format!("slow{round}"), ids(2, 2)) };
        queue.put(rest, None).await.unwrap();
        let lease = queue.take(&Take::groups("train", 5)).await.unwrap().unwrap();
        assert_eq!(lease.rows().len(), 4);
        lease.ack().await.unwrap();
    }
    assert_eq!(queue.stats().rows, 0);
}

#[tokio::test]
async fn a_stale_handle_is_never_another_rows_bytes() {
    let queue = partition(spec(2)).await;
    let old = queue.put(Put::group("g", ids(0, 2)), None).await.unwrap();
    queue.take(&Take::groups("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
    // Slots are reused in turn, so a slot is reused only after many other slots.
    for _ in 0..20_000 {
        let new = queue.put(Put::group("h", ids(5, 2)), None).await.unwrap();
        if new.iter().any(|row| row.slot == old[0].slot) {
            break;
        }
        queue.clear(&new).await.unwrap();
    }
    assert_eq!(queue.stats().rows, 2, "the slots are used again");
    let error = queue.write_columns(&old, rewards(2)).await.unwrap_err();
    assert!(matches!(error, QueueError::StaleHandle { .. }), "{error}");
}

#[tokio::test]
async fn another_dtype_is_an_error_and_never_a_cast() {
    let queue = partition(spec(10)).await;
    put(&queue, "g", 1).await;
    let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
    let wide = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(Int64Array::from(vec![1]))]).unwrap();
    let error = queue.put(Put::group("h", wide), None).await.unwrap_err();
    assert_eq!(error.to_string(), "column=id has dtype=Int32, found dtype=Int64");
    assert_eq!(queue.stats().rows, 1);
}

#[tokio::test]
async fn a_put_over_capacity_leaves_nothing_behind() {
    let queue = partition(PartitionSpec { on_full: OnFull::Refuse, ..spec(4) }).await;
    put(&queue, "g", 3).await;
    let error = queue.put(Put::group("h", ids(0, 2)), None).await.unwrap_err();
    assert!(matches!(error, QueueError::Full { .. }), "{error}");
    let error = queue.put(Put::group("h", ids(0, 5)), None).await.unwrap_err();
    assert!(matches!(error, QueueError::TooLarge { rows: 5, capacity: 4 }), "{error}");
    let error = queue.put(Put { group_size: 1, ..Put::group("o", ids(0, 2)) }, None).await.unwrap_err();
    assert!(matches!(error, QueueError::GroupOverflow { .. }), "{error}");
    let stats = queue.stats();
    assert_eq!((stats.rows, stats.rows_reserved, stats.groups), (3, 0, 1));
    put(&queue, "i", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_partition_blocks_in_turn_and_a_cancelled_put_leaves_nothing() {
    let queue = partition(spec(4)).await;
    put(&queue, "g", 4).await;
    let mut first = Box::pin(queue.put(Put::group("h", ids(0, 4)), None));
    assert!((&mut first).now_or_never().is_none());
    let mut second = Box::pin(queue.put(Put::group("i", ids(0, 1)), None));
    assert!((&mut second).now_or_never().is_none());
    let late = queue.put(Put::group("j", ids(0, 1)), Some(Instant::now() + Duration::from_secs(1))).await;
    assert!(matches!(late.unwrap_err(), QueueError::Deadline { .. }));
    drop(first);
    queue.take(&Take::groups("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
    second.await.unwrap();
    assert_eq!((queue.stats().rows, queue.stats().rows_reserved), (1, 0));
}

#[tokio::test]
async fn drop_oldest_drops_whole_groups_that_no_lease_holds() {
    let queue = partition(PartitionSpec { on_full: OnFull::DropOldest, ..spec(6) }).await;
    for group in ["a", "b", "c"] {
        put(&queue, group, 2).await;
    }
    let held = queue.take(&Take::groups("train", 1)).await.unwrap().unwrap();
    put(&queue, "d", 2).await;
    assert_eq!(queue.stats().dispositions.dropped, 2);
    let rest = queue.take(&Take::groups("train", 9)).await.unwrap().unwrap();
    assert_eq!(rest.groups(), ["c", "c", "d", "d"]);
    let error = queue.put(Put::group("e", ids(0, 2)), None).await.unwrap_err();
    assert!(matches!(error, QueueError::Full { .. }), "everything is held: {error}");
    drop((held, rest));
}

#[tokio::test]
async fn a_repeated_put_does_not_double() {
    let queue = partition(spec(10)).await;
    let once = Put { token: Some("t".into()), record: Some("words".into()), ..Put::group("g", ids(0, 2)) };
    let rows = queue.put(once.clone(), None).await.unwrap();
    assert_eq!(queue.put(once, None).await.unwrap(), rows);
    assert_eq!(queue.stats().rows, 2);
    assert_eq!(queue.records(), ["words"]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_puts_is_the_end_of_waiting() {
    let queue = partition(spec(10)).await;
    put(&queue, "g", 1).await;
    let held = queue.take(&Take::groups("train", 1)).await.unwrap().unwrap();
    let take = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(60));
    let mut waiting = Box::pin(queue.take(&take));
    assert!((&mut waiting).now_or_never().is_none());
    queue.end_of_puts();
    assert!((&mut waiting).now_or_never().is_none(), "the held group may come back");
    held.ack().await.unwrap();
    assert!(waiting.await.unwrap().is_none());
    let error = queue.put(Put::group("h", ids(0, 1)), None).await.unwrap_err();
    assert!(matches!(error, QueueError::Closed { .. }), "{error}");
}

#[tokio::test]
async fn an_embedded_take_copies_no_payload() {
    let queue = partition(spec(10)).await;
    let batch = ids(0, 4);
    let bytes = batch.column(0).to_data().buffers()[0].as_ptr();
    queue.put(Put::group("g", batch), None).await.unwrap();
    let lease = queue.take(&Take::groups("train", 1)).await.unwrap().unwrap();
    assert_eq!(lease.batches()[0].column(0).to_data().buffers()[0].as_ptr(), bytes);
}

#[tokio::test]
async fn unknown_names_are_named() {
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    assert!(matches!(queue.partition("q").unwrap_err(), QueueError::UnknownPartition { .. }));
    let partition = queue.declare(spec(10)).await.unwrap();
    put(&partition, "g", 1).await;
    let error = partition.take(&Take::groups("eval", 1)).await.unwrap_err().to_string();
    assert_eq!(error, "partition=p has no task=eval; it has train");
    let columns = Take { columns: Some(vec!["x".into()]), ..Take::groups("train", 1) };
    assert!(matches!(partition.take(&columns).await.unwrap_err(), QueueError::UnknownColumn { .. }));
    let error = queue.declare(spec(11)).await.unwrap_err();
    assert!(matches!(error, QueueError::DeclaredOtherwise { .. }), "{error}");
}

#[tokio::test]
async fn the_cost_of_a_take_depends_on_its_rows_and_not_on_the_queue() {
    let fastest = async |resident: i32| {
        let queue = partition(spec(100_000)).await;
        for group in 0..resident / 2 {
            put(&queue, &format!("g{group}"), 2).await;
        }
        let mut times = Vec::new();
        for _ in 0..300 {
            let started = Instant::now();
            queue.take(&Take::groups("train", 8)).await.unwrap().unwrap().nack().await.unwrap();
            times.push(started.elapsed());
        }
        // Other work of the machine only adds time, so the minimum is the best estimate.
        times.into_iter().min().unwrap()
    };
    let (few, many) = (fastest(16).await, fastest(50_000).await);
    // A scan of all rows would take 50 microseconds, at one nanosecond per row.
    assert!(many < few * 2 + Duration::from_micros(15), "{few:?} among 16 rows, {many:?} among 50,000");
}
