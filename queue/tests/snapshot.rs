//! A snapshot shows a queue at one moment, is about as large as the live rows, and can be restored.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use parking_lot::Mutex;
use rolldock_queue::{
    Durability, PartitionSpec, Put, QueueConfig, QueueError, RowHandle, Sampler, Take, TransferQueue,
};
use support::{assert_same, furnish, in_memory, on_disk, restore, rows, seen, snapshot};
use tokio::sync::watch;
use tokio::time::Instant;

const TOKENS: i32 = 1024;

#[tokio::test]
async fn a_snapshot_moves_a_queue_from_memory_to_disk_and_back_unchanged() {
    let first = in_memory();
    furnish(&first).await;
    let held = first.partition("train").unwrap().take(&Take::groups("train", 3)).await.unwrap().unwrap();
    let bytes = snapshot(&first, None).await;
    held.nack().await.unwrap();

    let dir = tempfile::tempdir().unwrap();
    let second = on_disk(dir.path());
    restore(&second, &bytes).await.unwrap();
    assert_same(&first, &second, "train").await;
    assert_same(&first, &second, "other").await;
    let again = snapshot(&second, None).await;
    second.close();
    drop(second);
    let second = on_disk(dir.path());
    assert_same(&first, &second, "train").await;

    let third = in_memory();
    restore(&third, &again).await.unwrap();
    assert_same(&first, &third, "train").await;
    // The copies still have the tokens and the right free capacity, and the incomplete group can be
    // completed.
    for queue in [&second, &third] {
        let partition = queue.partition("train").unwrap();
        let rows_before = partition.stats().rows;
        let repeated = Put { token: Some("token 5".to_owned()), ..Put::group("again", rows(0, 8, 16)) };
        partition.put(repeated, None).await.unwrap();
        assert_eq!(partition.stats().rows, rows_before);
        let ready = partition.ready_groups("train").unwrap();
        partition.put(Put { group_size: 8, ..Put::group("open", rows(906, 2, 16)) }, None).await.unwrap();
        assert_eq!(partition.ready_groups("train").unwrap(), ready + 1);
        let hollow = Put { group_size: 8, ..Put::group("hollow", rows(954, 4, 16)) };
        let given_up = partition.put(hollow, None).await;
        assert!(matches!(given_up, Err(QueueError::GroupClosed { .. })), "{given_up:?}");
        assert_eq!(partition.ready_groups("train").unwrap(), ready + 1, "half of it is gone");
        let late = Some(Instant::now() + Duration::from_millis(10));
        let full = partition.put(Put::group("full", rows(0, 4096, 1)), late).await;
        assert!(matches!(full, Err(QueueError::Deadline { .. })), "{full:?}");
    }
}

#[tokio::test]
async fn one_partition_is_a_snapshot_too_and_is_not_restored_over_another() {
    let queue = in_memory();
    furnish(&queue).await;
    let bytes = snapshot(&queue, Some("other")).await;
    let before = queue.inspect();
    assert_eq!(restore(&queue, &bytes).await, Err(QueueError::PartitionExists { name: "other".to_owned() }));
    assert_eq!(queue.inspect(), before);
    queue.remove("other").await.unwrap();
    restore(&queue, &bytes).await.unwrap();
    assert_eq!(queue.inspect().partitions, before.partitions);
    let unknown = queue.snapshot(Some("missing"), Vec::new()).await;
    assert!(matches!(unknown, Err(QueueError::UnknownPartition { .. })));
    // If one partition of the snapshot exists already, no partition is restored.
    let all = snapshot(&queue, None).await;
    queue.remove("train").await.unwrap();
    assert!(matches!(restore(&queue, &all).await, Err(QueueError::PartitionExists { .. })));
    assert!(matches!(queue.partition("train"), Err(QueueError::UnknownPartition { .. })));
}

#[tokio::test]
async fn a_checkpoint_writes_only_live_records() {
    for tokens in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        for queue in [in_memory(), on_disk(dir.path())] {
            let partition = queue.declare(PartitionSpec::new("train", ["train"], 65_536)).await.unwrap();
            for group in 0..1_000 {
                let token = tokens.then(|| format!("{group:032x}"));
                let put = Put { token, ..Put::group(format!("group {group}"), rows(group * 8, 8, TOKENS)) };
                partition.put(put, None).await.unwrap();
            }
            for _ in 0..860 {
                partition.take(&Take::groups("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
            }
            // Half of the rows of each of the next 80 groups are cleared.
            for group in 0..80 {
                let lease = partition.take(&Take::rows("train", 8)).await.unwrap().unwrap();
                let at = |parity: usize| move |(at, _): &(usize, &RowHandle)| (at + group) % 2 == parity;
                let rows = || lease.rows().iter().enumerate();
                let gone: Vec<RowHandle> = rows().filter(at(0)).map(|(_, row)| *row).collect();
                let kept: Vec<RowHandle> = rows().filter(at(1)).map(|(_, row)| *row).collect();
                lease.nack().await.unwrap();
                partition.clear(&gone).await.unwrap();
                // The kept rows of the group stay leased, so the next take returns rows of the next group.
                let lease = partition.take(&Take::rows("train", 4)).await.unwrap().unwrap();
                assert_eq!(lease.rows(), kept);
                std::mem::forget(lease);
            }
            let live = partition.stats().rows;
            assert_eq!(live, 80 * 4 + 60 * 8, "a tenth of 8000");
            let live_bytes = live * (8 + 4 + TOKENS as usize * 4);
            let held = queue.inspect().payload_bytes;
            let size = snapshot(&queue, None).await.len();
            println!(
                "live {live_bytes} bytes, held {held}, snapshot {size}: {:.3}",
                size as f64 / live_bytes as f64
            );
            assert!(size * 10 <= live_bytes * 11, "live {live_bytes} bytes, snapshot {size}");
        }
    }
}

/// Takes snapshots during puts and acks. Every snapshot must show a moment between two of these calls.
async fn under_traffic(queue: TransferQueue) {
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 65_536)).await.unwrap();
    let acknowledged = Arc::new(Mutex::new((0_i64, 0_i64)));
    let moments = watch::Sender::new(0_i64);
    let producing = async {
        for group in 0..400_i64 {
            let put = Put { group_size: 4, ..Put::group(group.to_string(), rows(group * 4, 4, 64)) };
            partition.put(put, None).await.unwrap();
            acknowledged.lock().0 = group + 1;
            if group % 8 == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            // Three snapshots end before the puts end, even if the snapshots are slow.
            if group % 100 == 99 && group < 300 {
                moments.subscribe().wait_for(|moments| *moments > group / 100).await.unwrap();
            }
        }
    };
    let consuming = async {
        for group in 0..200 {
            let take = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(20));
            partition.take(&take).await.unwrap().unwrap().ack().await.unwrap();
            acknowledged.lock().1 = group + 1;
        }
    };
    let watching = async {
        while acknowledged.lock().0 < 400 {
            let before = *acknowledged.lock();
            let bytes = snapshot(&queue, None).await;
            let after = *acknowledged.lock();
            let copy = in_memory();
            restore(&copy, &bytes).await.unwrap();
            let copied = copy.partition("train").unwrap();
            let mut groups: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
            for (_, group, _, row) in seen(&copied, "train", Sampler::Fifo).await {
                let id = row.column_by_name("id").unwrap().as_primitive::<Int64Type>().value(0);
                groups.entry(group.parse().unwrap()).or_default().push(id);
            }
            for (group, ids) in &groups {
                assert_eq!(*ids, (group * 4..group * 4 + 4).collect::<Vec<_>>(), "a group is whole");
            }
            let (first, last) = (*groups.keys().next().unwrap_or(&0), *groups.keys().last().unwrap_or(&-1));
            assert_eq!(groups.len() as i64, last - first + 1, "nothing is missing in between");
            if !groups.is_empty() {
                // The snapshot has all puts and acks that were acknowledged before it began, and at most one
                // call that was not yet acknowledged when it ended.
                assert!(before.0 <= last + 1 && last <= after.0, "{before:?} {last} {after:?}");
                assert!(before.1 <= first && first <= after.1 + 1, "{before:?} {first} {after:?}");
                assert_eq!(copied.stats().dispositions.acked, first as u64 * 4);
            }
            moments.send_modify(|moments| *moments += 1);
        }
    };
    let ((), (), ()) = tokio::join!(producing, consuming, watching);
    let moments = *moments.borrow();
    assert!(moments > 2, "{moments}");
    assert!(queue.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_under_traffic_is_consistent() {
    under_traffic(in_memory()).await;
    let dir = tempfile::tempdir().unwrap();
    under_traffic(on_disk(dir.path())).await;
    let dir = tempfile::tempdir().unwrap();
    let small = QueueConfig {
        dir: Some(dir.path().to_owned()),
        durability: Durability::None,
        segment_bytes: 4096,
        journal_bytes: 4096,
        ..QueueConfig::default()
    };
    under_traffic(TransferQueue::open(small).unwrap()).await;
}

#[tokio::test]
async fn rows_that_are_freed_during_a_snapshot_are_in_it() {
    let dir = tempfile::tempdir().unwrap();
    for queue in [in_memory(), on_disk(dir.path())] {
        let handles = furnish(&queue).await;
        let reference = in_memory();
        restore(&reference, &snapshot(&queue, None).await).await.unwrap();
        let mut begun = queue.begin_snapshot(None).await.unwrap();
        let mut bytes = begun.next_piece().unwrap().unwrap().to_vec();
        let partition = queue.partition("train").unwrap();
        assert!(partition.clear_all().await.unwrap() > 0);
        queue.remove("other").await.unwrap();
        assert_eq!(partition.stats().rows, 0);
        assert!(matches!(partition.clear(&handles[40..41]).await, Err(QueueError::StaleHandle { .. })));
        while let Some(piece) = begun.next_piece().unwrap() {
            bytes.extend_from_slice(&piece);
        }
        let copy = in_memory();
        restore(&copy, &bytes).await.unwrap();
        assert_same(&reference, &copy, "train").await;
    }
}

#[tokio::test]
async fn a_snapshot_that_has_begun_outlives_its_queue_and_keeps_others_from_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let queue = on_disk(dir.path());
    furnish(&queue).await;
    let expected = snapshot(&queue, None).await;
    let mut begun = queue.begin_snapshot(None).await.unwrap();
    queue.close();
    drop(queue);
    let config = || QueueConfig { dir: Some(dir.path().to_owned()), ..QueueConfig::default() };
    let refused = TransferQueue::open(config());
    assert!(matches!(refused, Err(QueueError::InUse { .. })), "{refused:?}");
    let mut bytes = Vec::new();
    while let Some(piece) = begun.next_piece().unwrap() {
        bytes.extend_from_slice(&piece);
    }
    assert!(bytes == expected, "{} bytes, expected {}", bytes.len(), expected.len());
    drop(begun);
    assert!(TransferQueue::open(config()).unwrap().verify().await.unwrap().is_sound());
}
