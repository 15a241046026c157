//! The queue checks the limits of a request before it allocates memory for the request. The queue can read
//! back everything that it accepts.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, NullArray, RecordBatch};
use arrow_schema::{DataType, Field};
use rolldock_queue::{
    ColumnSpec, Durability, PartitionSpec, Put, Queue, QueueConfig, QueueError, Share, Stale, Take,
    TransferQueue,
};
use serde_json::{Value, json};
use support::{in_memory, on_disk, restore, rows, snapshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!(1), |inner, _| json!([inner]))
}

#[tokio::test]
async fn tags_that_are_taken_in_are_read_back_and_deeper_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let queue = on_disk(dir.path());
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    let tagged = |group: &str, depth| Put { tags: vec![nested(depth)], ..Put::group(group, rows(0, 1, 4)) };
    let deep = partition.put(tagged("deep", 65), None).await;
    assert!(matches!(deep, Err(QueueError::BadRequest { .. })), "{deep:?}");
    let handles = partition.put(tagged("a", 60), None).await.unwrap();
    let deep = partition.set_tags(vec![(handles[0], nested(127))]).await;
    assert!(matches!(deep, Err(QueueError::BadRequest { .. })), "{deep:?}");
    partition.set_tags(vec![(handles[0], nested(62))]).await.unwrap();
    queue.close();
    drop((partition, queue));
    let queue = on_disk(dir.path());
    let lease = queue.partition("train").unwrap().take(&Take::rows("train", 1)).await.unwrap().unwrap();
    assert_eq!(lease.tags(), [nested(62)]);
}

#[tokio::test]
async fn types_that_could_not_be_read_back_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let queue = on_disk(dir.path());
    let nested = |depth| {
        (0..depth).fold(DataType::Int8, |inner, _| DataType::List(Arc::new(Field::new("item", inner, true))))
    };
    let spec = |name: &str, depth| PartitionSpec {
        columns: vec![ColumnSpec::new("deep", nested(depth))],
        ..PartitionSpec::new(name, ["train"], 64)
    };
    let deep = queue.declare(spec("deep", 60)).await;
    assert!(matches!(deep, Err(QueueError::BadRequest { .. })), "{deep:?}");
    queue.declare(spec("fits", 30)).await.unwrap();
    queue.close();
    drop(queue);
    assert_eq!(on_disk(dir.path()).partitions().len(), 1);
}

#[tokio::test]
async fn a_share_of_more_consumers_than_there_can_be_is_refused() {
    let partition = in_memory().declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    partition.put(Put::group("a", rows(0, 2, 4)), None).await.unwrap();
    for share in [
        Share { ranks: u32::MAX, ..Share::of(0, 2) },
        Share { members: u32::MAX, ..Share::of(0, 2) },
        Share { ranks: 65_537, ..Share::of(0, 2) },
    ] {
        let refused = partition.take(&Take { share: Some(share), ..Take::groups("train", 4) }).await;
        assert!(matches!(refused, Err(QueueError::BadRequest { .. })), "{refused:?}");
    }
    let widest = Share { ranks: 65_536, ..Share::of(0, 2) };
    assert!(
        partition.take(&Take { share: Some(widest), ..Take::groups("train", 9) }).await.unwrap().is_none()
    );
}

/// A batch that has a number of rows but no data.
fn claimed(rows: usize) -> RecordBatch {
    let nothing: ArrayRef = Arc::new(NullArray::new(rows));
    RecordBatch::try_from_iter([("nothing", nothing)]).unwrap()
}

#[tokio::test]
async fn rows_are_counted_before_anything_is_done_for_each() {
    let spec = PartitionSpec {
        length_columns: vec!["length".to_owned()],
        row_bytes_max: Some(1 << 20),
        capacity_bytes: Some(1 << 20),
        ..PartitionSpec::new("train", ["train"], 64)
    };
    let queue = in_memory();
    let partition = queue.declare(spec.clone()).await.unwrap();
    let started = Instant::now();
    let refused = partition.put(Put::group("a", claimed(1_000_000_000_000)), None).await;
    assert!(matches!(refused, Err(QueueError::TooLarge { capacity: 64, .. })), "{refused:?}");
    let handles = partition.put(Put::group("a", rows(0, 2, 4)), None).await.unwrap();
    let refused = partition.write_columns(&handles, claimed(1_000_000_000_000)).await;
    assert!(matches!(refused, Err(QueueError::BadRequest { .. })), "{refused:?}");
    let wide = PartitionSpec { name: "wide".to_owned(), capacity_rows: usize::MAX, ..spec };
    let wide = queue.declare(wide).await.unwrap();
    let refused = wide.put(Put::group("a", claimed(1 << 40)), None).await;
    assert!(matches!(refused, Err(QueueError::TooLarge { .. })), "{refused:?}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_partition_of_any_capacity_takes_rows_back_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    for capacity in [usize::MAX, usize::MAX >> 3, 1 << 40] {
        let name = capacity.to_string();
        let queue = on_disk(dir.path());
        let partition = queue.declare(PartitionSpec::new(&name, ["train"], capacity)).await.unwrap();
        partition.put(Put::group("a", rows(0, 8, 4)), None).await.unwrap();
        queue.close();
        drop((partition, queue));
        let queue = on_disk(dir.path());
        let partition = queue.partition(&name).unwrap();
        assert_eq!(partition.clear_all().await.unwrap(), 8);
        partition.put(Put::group("b", rows(0, 8, 4)), None).await.unwrap();
        assert_eq!(partition.stats().rows, 8);
        let restored = in_memory();
        restore(&restored, &snapshot(&queue, Some(&name)).await).await.unwrap();
    }
}

#[tokio::test]
async fn a_restore_takes_what_the_queue_itself_wrote_after_any_number_of_uses_of_its_slots() {
    let queue = in_memory();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 8)).await.unwrap();
    // The loop puts and frees enough rows to bring slots above the capacity into use.
    for round in 0..5_000 {
        let rows = partition.put(Put::group(round.to_string(), rows(0, 4, 1)), None).await.unwrap();
        partition.clear(&rows).await.unwrap();
    }
    let last = partition.put(Put::group("last", rows(0, 8, 1)), None).await.unwrap();
    assert!(last.iter().any(|row| row.slot >= 8));
    let restored = in_memory();
    restore(&restored, &snapshot(&queue, None).await).await.unwrap();
    assert_eq!(restored.partition("train").unwrap().stats().rows, 8);
}

#[tokio::test]
async fn rows_of_a_put_without_durability_are_visible_to_every_client() {
    let dir = tempfile::tempdir().unwrap();
    let config = QueueConfig { dir: Some(dir.path().to_owned()), ..QueueConfig::default() };
    let queue = TransferQueue::open(config).unwrap();
    let durability = Some(Durability::None);
    let spec = PartitionSpec { durability, ..PartitionSpec::new("train", ["train"], 4096) };
    let partition = queue.declare(spec).await.unwrap();
    for round in 0..50_i64 {
        let handles = partition.put(Put::group(round.to_string(), rows(round, 2, 4)), None).await.unwrap();
        match round % 5 {
            0 => partition.clear(&handles).await.unwrap(),
            1 => partition.set_tags(vec![(handles[0], json!(round))]).await.unwrap(),
            2 => drop(partition.get(&handles, None).await.unwrap()),
            3 => partition.write_columns(&handles, support::advantages(2)).await.unwrap(),
            _ => {
                let lease = partition.take(&Take::only("train", handles)).await.unwrap();
                assert_eq!(lease.map(|lease| lease.rows().len()), Some(2));
            }
        }
        let kept = partition.put(Put::group(format!("kept {round}"), rows(round, 1, 4)), None).await.unwrap();
        let restored = in_memory();
        restore(&restored, &snapshot(&queue, None).await).await.unwrap();
        restored.partition("train").unwrap().get(&kept, None).await.unwrap();
    }
}

#[tokio::test]
async fn a_put_makes_the_partition_that_it_names_and_nothing_else_does() {
    let dir = tempfile::tempdir().unwrap();
    let config = QueueConfig {
        dir: Some(dir.path().to_owned()),
        put_spec: PartitionSpec::new("", ["score"], 16),
        ..QueueConfig::default()
    };
    let queue = TransferQueue::open(config.clone()).unwrap();
    let unknown = Queue::take(&queue, "fresh", &Take::rows("score", 1)).await;
    assert!(matches!(unknown, Err(QueueError::UnknownPartition { .. })), "{unknown:?}");
    Queue::put(&queue, "fresh", Put::group("a", rows(0, 1, 4)), None).await.unwrap();
    let twice = tokio::join!(
        Queue::put(&queue, "at once", Put::group("a", rows(0, 1, 4)), None),
        Queue::put(&queue, "at once", Put::group("b", rows(0, 1, 4)), None),
    );
    assert!(twice.0.is_ok() && twice.1.is_ok(), "{twice:?}");
    for name in ["", "_blobs", "a/b", "new\nline", &"x".repeat(257)] {
        let refused = Queue::put(&queue, name, Put::group("a", rows(0, 1, 4)), None).await;
        assert!(matches!(refused, Err(QueueError::BadRequest { .. })), "{name:?}: {refused:?}");
    }
    let mut refused = None;
    for number in 0..1100 {
        let put = Queue::put(&queue, &number.to_string(), Put::group("a", rows(0, 1, 1)), None).await;
        if let Err(error) = put {
            refused = Some(error);
            break;
        }
    }
    assert!(matches!(refused, Some(QueueError::BadRequest { .. })), "{refused:?}");
    queue.close();
    drop(queue);
    let queue = TransferQueue::open(QueueConfig { create_on_put: false, ..config }).unwrap();
    assert_eq!(queue.partition("fresh").unwrap().spec().tasks[0].name, "score");
    assert_eq!(queue.partition("at once").unwrap().stats().rows, 2);
    let unknown = Queue::put(&queue, "another", Put::group("a", rows(0, 1, 4)), None).await;
    assert!(matches!(unknown, Err(QueueError::UnknownPartition { .. })), "{unknown:?}");
}

#[tokio::test]
async fn the_end_of_puts_outlives_the_process_when_it_was_said_and_not_when_the_queue_was_closed() {
    let dir = tempfile::tempdir().unwrap();
    for said in [false, true] {
        let queue = on_disk(dir.path());
        let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
        assert!(!partition.stats().ended, "closing a queue ends nothing for the next process");
        partition.put(Put::group("a", rows(0, 1, 4)), None).await.unwrap();
        if said {
            Queue::end_of_puts(&queue, "train").await.unwrap();
            partition.end().await.unwrap();
        }
        queue.close();
    }
    let queue = on_disk(dir.path());
    let partition = queue.partition("train").unwrap();
    let until = || Take::rows("train", 9).until(Instant::now() + Duration::from_secs(20));
    partition.take(&until()).await.unwrap().unwrap().ack().await.unwrap();
    assert!(partition.take(&until()).await.unwrap().is_none(), "the take does not wait for more");
    let late = partition.put(Put::group("b", rows(0, 1, 4)), None).await;
    assert!(matches!(late, Err(QueueError::Closed { .. })), "{late:?}");
    let restored = in_memory();
    restore(&restored, &snapshot(&queue, None).await).await.unwrap();
    assert!(restored.partition("train").unwrap().stats().ended);
}

#[tokio::test]
async fn no_rank_starves_while_others_take_what_comes() {
    let partition = in_memory().declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    let take = |rank| Take { share: Some(Share::of(rank, 4)), ..Take::groups("train", 8) };
    for group in 0..3 {
        partition.put(Put::group(group.to_string(), rows(0, 1, 4)), None).await.unwrap();
        assert!(partition.take(&take(0)).await.unwrap().is_none(), "there is not one for each");
    }
    partition.put(Put::group("3", rows(0, 1, 4)), None).await.unwrap();
    for rank in 0..4 {
        assert_eq!(partition.take(&take(rank)).await.unwrap().unwrap().rows().len(), 1, "rank={rank}");
    }
    // If a take has fewer groups than there are ranks, the ranks get groups in turn.
    let narrow = |rank| Take { share: Some(Share::of(rank, 4)), ..Take::groups("train", 1) };
    for group in 4..12 {
        partition.put(Put::group(group.to_string(), rows(0, 1, 4)), None).await.unwrap();
    }
    let mut got = [0; 4];
    for _ in 0..2 {
        for rank in [3, 1, 0, 2] {
            let lease = partition.take(&narrow(rank)).await.unwrap();
            got[rank as usize] += lease.map_or(0, |lease| {
                let rows = lease.rows().len();
                std::mem::forget(lease);
                rows
            });
        }
    }
    assert_eq!(got, [2; 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_that_meets_a_clear_gets_what_is_left() {
    let partition = in_memory().declare(PartitionSpec::new("train", ["train"], 4096)).await.unwrap();
    let taker = {
        let partition = partition.clone();
        async move {
            let mut taken = 0;
            while taken < 400 {
                let until = Instant::now() + Duration::from_secs(30);
                match partition.take(&Take::groups("train", 4).until(until)).await {
                    Ok(Some(lease)) => {
                        let rows: usize = lease.batches().iter().map(RecordBatch::num_rows).sum();
                        assert_eq!((lease.rows().len(), lease.groups().len()), (rows, rows));
                        taken += 1;
                        drop(lease);
                        tokio::task::yield_now().await;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    };
    let mut taking = JoinSet::new();
    taking.spawn(taker);
    for round in 0.. {
        if let Some(taker) = taking.try_join_next() {
            return taker.unwrap();
        }
        let handles = partition.put(Put::group(round.to_string(), rows(0, 8, 4)), None).await.unwrap();
        tokio::task::yield_now().await;
        partition.clear(&handles[..4]).await.unwrap();
        partition.clear(&handles[4..]).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn groups_that_become_stale_while_a_take_waits_are_dropped() {
    let partition = in_memory().declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    partition.put(Put { policy_version: 1, ..Put::group("old", rows(0, 2, 4)) }, None).await.unwrap();
    let held = partition.take(&Take::groups("train", 1)).await.unwrap().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let take = Take { max_staleness: Some(1), stale: Stale::Drop, ..Take::groups("train", 1).until(until) };
    let announcing = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        held.nack().await.unwrap();
        partition.announce(5).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let dropped = partition.stats().dispositions.stale;
        partition.put(Put { policy_version: 5, ..Put::group("new", rows(0, 1, 4)) }, None).await.unwrap();
        dropped
    };
    let (lease, dropped) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            partition.take(&take).await.unwrap().unwrap()
        },
        announcing
    );
    // The take may have leased the old group after the group was nacked and before the announcement made the
    // group stale.
    assert!(dropped == 2 || lease.groups() == ["old", "old"], "dropped={dropped} {:?}", lease.groups());
}

#[tokio::test]
async fn columns_of_many_groups_come_in_chunks_of_moderate_size_and_together() {
    let dir = tempfile::tempdir().unwrap();
    for queue in [in_memory(), on_disk(dir.path())] {
        let partition = queue.declare(PartitionSpec::new("train", ["train"], 4096)).await.unwrap();
        let mut handles = Vec::new();
        for group in 0..16 {
            let put = Put::group(group.to_string(), rows(group * 4, 4, 4));
            handles.extend(partition.put(put, None).await.unwrap());
        }
        let wide: ArrayRef = {
            use arrow_array::types::Int32Type;
            use arrow_array::{Array, ListArray};
            let lists = (0..64).map(|row| Some((0..32 << 10).map(move |at| Some(at + row))));
            let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
            assert!(lists.len() == handles.len());
            Arc::new(lists)
        };
        let batch = RecordBatch::try_from_iter([("wide", Arc::clone(&wide))]).unwrap();
        partition.write_columns(&handles, batch).await.unwrap();
        let report = queue.verify().await.unwrap();
        assert!(report.is_sound(), "{report:?}");
        assert!(report.chunks >= 16 + 4, "8 MiB lie in {} chunks", report.chunks - 16);
        let found = partition.get(&handles, Some(&["wide".to_owned()])).await.unwrap();
        let found = arrow_select::concat::concat_batches(&found[0].schema(), &found).unwrap();
        assert_eq!(found["wide"].to_data(), wide.to_data());
        queue.close();
    }
    let queue = on_disk(dir.path());
    assert!(queue.verify().await.unwrap().is_sound());
    let lease = queue.partition("train").unwrap().take(&Take::rows("train", 64)).await.unwrap().unwrap();
    assert_eq!(lease.concat().unwrap()["wide"].len(), 64);
}
