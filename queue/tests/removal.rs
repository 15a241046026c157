//! Tests of the removal of a partition.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use rolldock_queue::{PartitionSpec, Put, QueueError, Take, TransferQueue};
use support::{furnish, in_memory, on_disk, rows, spec};
use tokio::time::Instant;

#[tokio::test]
async fn a_removed_partition_is_gone_for_all_clients_and_a_later_one_is_another() {
    let dir = tempfile::tempdir().unwrap();
    for queue in [in_memory(), on_disk(dir.path())] {
        let handles = furnish(&queue).await;
        let partition = queue.partition("train").unwrap();
        let lease = partition.take(&Take::groups("train", 1)).await.unwrap().unwrap();
        let narrow = queue.declare(PartitionSpec::new("narrow", ["train"], 2)).await.unwrap();
        narrow.put(Put::group("a", rows(0, 2, 4)), None).await.unwrap();
        let until = Take::groups("train", 1).until(Instant::now() + Duration::from_secs(20));
        let empty = queue.declare(PartitionSpec::new("empty", ["train"], 2)).await.unwrap();
        let removing = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            for name in ["narrow", "empty", "train"] {
                queue.remove(name).await.unwrap();
                let again = queue.remove(name).await;
                assert!(matches!(again, Err(QueueError::UnknownPartition { .. })), "{again:?}");
            }
        };
        let (taken, put, ()) =
            tokio::join!(empty.take(&until), narrow.put(Put::group("b", rows(0, 1, 4)), None), removing);
        assert!(matches!(taken, Err(QueueError::UnknownPartition { .. })), "{taken:?}");
        assert!(matches!(put, Err(QueueError::Closed { .. })), "{put:?}");
        assert!(lease.ack().await.is_err());
        assert!(partition.put(Put::group("late", rows(0, 1, 4)), None).await.is_err());
        let payload = queue.inspect().payload_bytes;
        queue.remove("other").await.unwrap();
        assert_eq!(queue.inspect().payload_bytes, 0, "before the last one {payload}");
        let anew = queue.declare(spec("train", 4096)).await.unwrap();
        let fresh = anew.put(Put::group("a", rows(0, 8, 4)), None).await.unwrap();
        assert!(handles.iter().all(|handle| !fresh.contains(handle)), "handles are not used again");
        assert!(matches!(anew.clear(&handles[..1]).await, Err(QueueError::StaleHandle { .. })));
        assert!(queue.verify().await.unwrap().is_sound());
        queue.close();
    }
    let queue = on_disk(dir.path());
    assert_eq!(queue.partitions().len(), 1);
    assert_eq!(queue.partition("train").unwrap().stats().rows, 8);
    assert!(queue.verify().await.unwrap().is_sound());
}

#[tokio::test]
async fn puts_that_race_with_a_removal_never_land_in_a_later_partition() {
    let dir = tempfile::tempdir().unwrap();
    let queue = on_disk(dir.path());
    for round in 0..40 {
        let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
        let puts = (0..8).map(|at| partition.put(Put::group(format!("{round}/{at}"), rows(0, 1, 4)), None));
        let anew = async {
            queue.remove("train").await.unwrap();
            queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap()
        };
        let (_, anew) = tokio::join!(futures::future::join_all(puts), anew);
        assert_eq!(anew.stats().rows, 0, "round={round}");
        queue.remove("train").await.unwrap();
    }
    queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    assert_eq!(queue.inspect().payload_bytes, 0);
    queue.close();
    drop(queue);
    assert_eq!(on_disk(dir.path()).partition("train").unwrap().stats().rows, 0);
}

#[tokio::test]
async fn the_payload_of_a_directory_is_that_of_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let queue = on_disk(dir.path());
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 4096)).await.unwrap();
    partition.put(Put::group("a", rows(0, 1_000, 16)), None).await.unwrap();
    let all = queue.inspect().payload_bytes;
    assert!((64_000..160_000).contains(&all), "payload_bytes={all}");
    partition.take(&Take::rows("train", 900)).await.unwrap().unwrap().ack().await.unwrap();
    let tenth = all / 10..all / 10 + 1_000;
    assert!(tenth.contains(&queue.inspect().payload_bytes), "{} of {all}", queue.inspect().payload_bytes);
    let read_only = TransferQueue::open_read_only(dir.path()).unwrap();
    assert!(tenth.contains(&read_only.inspect().payload_bytes), "{}", read_only.inspect().payload_bytes);
    partition.clear_all().await.unwrap();
    assert_eq!(queue.inspect().payload_bytes, 0);
}
