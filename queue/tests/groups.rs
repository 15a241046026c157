//! A take of groups returns only complete groups, even if rows are lost or put late.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::path::Path;

use rolldock_queue::{Partition, PartitionSpec, Put, QueueConfig, QueueError, Take, TransferQueue};
use support::{in_memory, on_disk, restore, rows, snapshot};

fn part(group: &str, first: i64, count: i64, group_size: usize) -> Put {
    Put { group_size, ..Put::group(group, rows(first, count, 4)) }
}

async fn declared(queue: &TransferQueue) -> Partition {
    queue.declare(PartitionSpec::new("train", ["train"], 256)).await.unwrap()
}

async fn taken(partition: &Partition) -> Vec<(String, usize)> {
    let Some(lease) = partition.take(&Take::groups("train", 99)).await.unwrap() else { return Vec::new() };
    let mut groups: Vec<(String, usize)> = Vec::new();
    for group in lease.groups() {
        match groups.last_mut() {
            Some((last, rows)) if last == group => *rows += 1,
            _ => groups.push((group.clone(), 1)),
        }
    }
    groups
}

/// Inverts the byte at offset `at` of the first segment.
fn damage(dir: &Path, at: usize) {
    let segment = dir.join("segment-00000000.arrow");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[at] ^= 0xff;
    std::fs::write(&segment, bytes).unwrap();
}

#[tokio::test]
async fn a_group_one_of_whose_puts_rotted_is_lost_whole() {
    let dir = tempfile::tempdir().unwrap();
    let queue = on_disk(dir.path());
    let partition = declared(&queue).await;
    partition.put(part("a", 0, 2, 4), None).await.unwrap();
    partition.put(part("a", 2, 2, 4), None).await.unwrap();
    partition.put(part("b", 4, 4, 4), None).await.unwrap();
    damage(dir.path(), 600);
    let rotten = partition.take(&Take::groups("train", 1)).await;
    assert!(matches!(rotten, Err(QueueError::Corrupt { .. })), "{rotten:?}");
    assert_eq!(taken(&partition).await, [("b".to_owned(), 4)], "the other half of the group is no group");
    assert_eq!(partition.stats().dispositions.lost, 4);
}

#[tokio::test]
async fn the_rest_of_a_group_that_was_given_up_is_refused_also_after_a_restart_and_a_restore() {
    let dir = tempfile::tempdir().unwrap();
    let small =
        || QueueConfig { dir: Some(dir.path().to_owned()), journal_bytes: 1, ..QueueConfig::default() };
    let queue = TransferQueue::open(small()).unwrap();
    let partition = declared(&queue).await;
    let half = partition.put(part("a", 0, 2, 4), None).await.unwrap();
    partition.clear(&half).await.unwrap();
    assert_eq!(partition.stats().groups, 0, "a group without rows that no client completes is gone");
    let late = || part("a", 2, 2, 4);
    let refused = |outcome| assert!(matches!(outcome, Err(QueueError::GroupClosed { .. })), "{outcome:?}");
    refused(partition.put(late(), None).await);
    let bytes = snapshot(&queue, None).await;
    let restored = in_memory();
    restore(&restored, &bytes).await.unwrap();
    refused(restored.partition("train").unwrap().put(late(), None).await);
    // A complete new group may have the same name.
    partition.put(part("a", 0, 4, 4), None).await.unwrap();
    assert_eq!(taken(&partition).await, [("a".to_owned(), 4)]);
    queue.close();
    drop((partition, queue));
    let queue = TransferQueue::open(small()).unwrap();
    let partition = queue.partition("train").unwrap();
    assert_eq!(taken(&partition).await, [("a".to_owned(), 4)]);
    partition.take(&Take::groups("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
    refused(partition.put(late(), None).await);
    // After the partition is cleared, all names can be used again.
    partition.clear_all().await.unwrap();
    partition.put(late(), None).await.unwrap();
    assert_eq!(partition.stats().groups, 1);
}

#[tokio::test]
async fn rows_on_their_way_into_a_group_that_is_given_up_are_gone_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let queue = on_disk(dir.path());
    let partition = declared(&queue).await;
    let half = partition.put(part("a", 0, 2, 4), None).await.unwrap();
    // The first half is cleared while the other half is encoded.
    let (late, cleared) = tokio::join!(partition.put(part("a", 2, 2, 4), None), partition.clear(&half));
    cleared.unwrap();
    let rows = partition.stats().rows;
    match late {
        Err(QueueError::GroupClosed { .. }) => assert_eq!(rows, 0),
        // The put was complete before the clear.
        late => assert_eq!((late.is_ok(), rows), (true, 2)),
    }
    let groups = partition.stats().groups;
    queue.close();
    drop((partition, queue));
    let queue = on_disk(dir.path());
    let partition = queue.partition("train").unwrap();
    assert_eq!((partition.stats().rows, partition.stats().groups), (rows, groups), "the journal agrees");
    assert!(queue.verify().await.unwrap().is_sound());
}

#[tokio::test]
async fn late_rows_of_a_complete_group_and_other_sizes_make_no_group() {
    let queue = in_memory();
    let partition = declared(&queue).await;
    partition.put(part("a", 0, 2, 4), None).await.unwrap();
    let other = partition.put(part("a", 2, 1, 8), None).await;
    assert!(matches!(other, Err(QueueError::DeclaredOtherwise { .. })), "{other:?}");
    partition.put(part("a", 2, 2, 4), None).await.unwrap();
    let late = partition.put(part("a", 4, 1, 4), None).await;
    assert!(matches!(late, Err(QueueError::GroupOverflow { size: 4, rows: 5, .. })), "{late:?}");
    partition.take(&Take::groups("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
    let late = partition.put(part("a", 4, 1, 4), None).await;
    assert!(matches!(late, Err(QueueError::GroupClosed { .. })), "{late:?}");
    assert_eq!((partition.stats().rows, partition.stats().groups), (0, 0));
    // A put of a complete group may use the name of a closed group.
    for _ in 0..2 {
        partition.put(part("a", 0, 4, 4), None).await.unwrap();
    }
    assert_eq!(partition.stats().groups, 2);
}

#[tokio::test]
async fn rows_that_are_consumed_one_by_one_leave_their_group_open() {
    let queue = in_memory();
    let partition = declared(&queue).await;
    for row in 0..4 {
        partition.put(part("a", row, 1, 4), None).await.unwrap();
        partition.take(&Take::rows("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
    }
    assert_eq!((partition.stats().dispositions.acked, partition.stats().groups), (4, 0));
}

#[tokio::test]
async fn a_declared_group_size_is_what_a_put_means_and_another_is_refused() {
    let queue = in_memory();
    let spec = PartitionSpec { group_size: Some(4), ..PartitionSpec::new("train", ["train"], 64) };
    let partition = queue.declare(spec).await.unwrap();
    partition.put(part("a", 0, 2, 0), None).await.unwrap();
    assert_eq!(taken(&partition).await, []);
    partition.put(part("a", 2, 2, 4), None).await.unwrap();
    assert_eq!(taken(&partition).await, [("a".to_owned(), 4)]);
    let other = partition.put(part("b", 0, 2, 2), None).await;
    assert!(matches!(other, Err(QueueError::DeclaredOtherwise { .. })), "{other:?}");
    let unknown = serde_json::from_str::<PartitionSpec>(
        r#"{"name":"p","tasks":[{"name":"t"}],"capacity_rows":1,"capacity":2}"#,
    );
    assert!(unknown.is_err());
}

#[tokio::test]
async fn a_declared_order_is_that_of_takes_that_do_not_say() {
    use rolldock_queue::Sampler;
    let queue = in_memory();
    let spec = PartitionSpec { order: Sampler::Priority, ..PartitionSpec::new("train", ["train"], 64) };
    let partition = queue.declare(spec).await.unwrap();
    for (group, priority) in [("low", 1), ("high", 9)] {
        partition.put(Put { priority, ..part(group, 0, 1, 1) }, None).await.unwrap();
    }
    let first = async |sampler| {
        let take = Take { sampler, ..Take::groups("train", 1) };
        partition.take(&take).await.unwrap().unwrap().groups().to_vec()
    };
    assert_eq!(first(Sampler::default()).await, ["high"]);
    assert_eq!(first(Sampler::Fifo).await, ["low"]);
}

/// The rows of several small puts share chunks. The rows of a restored snapshot share chunks too.
#[tokio::test]
async fn a_late_part_is_refused_also_where_the_parts_of_its_group_lay_together() {
    let queue = in_memory();
    let partition = declared(&queue).await;
    let half = |group: i64| part(&group.to_string(), group, 1, 2);
    for group in 0..64 {
        partition.put(half(group), None).await.unwrap();
        partition.put(half(group), None).await.unwrap();
    }
    let (copy, copy_of_copy) = (in_memory(), in_memory());
    restore(&copy, &snapshot(&queue, None).await).await.unwrap();
    restore(&copy_of_copy, &snapshot(&copy, None).await).await.unwrap();
    for queue in [queue, copy, copy_of_copy] {
        let partition = queue.partition("train").unwrap();
        let lease = partition.take(&Take::groups("train", 64)).await.unwrap().unwrap();
        assert!(lease.batches().len() <= 4, "{} batches", lease.batches().len());
        lease.ack().await.unwrap();
        for group in [0, 31, 63] {
            let late = partition.put(half(group), None).await;
            assert!(matches!(late, Err(QueueError::GroupClosed { .. })), "{late:?}");
        }
        assert_eq!(partition.stats().groups, 0);
    }
}
